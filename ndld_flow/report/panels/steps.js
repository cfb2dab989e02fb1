// Differences between the models before and after a step.

import { diffTables } from "../static/diff_table.js";

/** @param {ReportPayload} payload */
export function show(payload) {
  diffTables(payload);
}
