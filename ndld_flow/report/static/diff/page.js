// The page of a diff.

import { startConveniences } from "../conveniences.js";
import { diffTables } from "../diff_table.js";
import { readPageData } from "../unpack.js";

export async function start() {
  startConveniences();
  diffTables(await readPageData());
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
