// The report of a run or of one profile: each panel fills the places that the template left for it.

import { startConveniences } from "../conveniences.js";
import { readPageData } from "../unpack.js";

/**
 * A panel is a module in the folder `panels`; `show` looks for the places that are its own.
 * @param {{show(data: ReportData): void}[]} panels
 */
export async function start(panels) {
  startConveniences();
  /** @type {ReportData} */
  const data = await readPageData();
  for (const panel of panels) panel.show(data);
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
