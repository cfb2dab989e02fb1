// Differences between the models before and after a step.

import { diffTables } from "../../diff_table.js";

export function show(payload) {
  diffTables(payload);
}
