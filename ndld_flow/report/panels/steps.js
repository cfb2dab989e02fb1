// Differences between the models before and after a step.

import { diffTables } from "../static/diff_table.js";

/** @param {ReportData} data */
export function show({ panels }) {
  diffTables(panels.steps ?? []);
}
