// The page of a diff.

import { startConveniences } from "../conveniences.js";
import { diffTables } from "../diff_table.js";
import { readPayload } from "../payload.js";

export async function start() {
  startConveniences();
  diffTables(await readPayload());
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
