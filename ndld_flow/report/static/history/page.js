// The page of a history: the tables choose the series of the chart.

import { around, byId, required } from "../elements.js";
import { startConveniences } from "../conveniences.js";
import { readPageData } from "../unpack.js";
import { HistoryChart } from "./chart.js";

export async function start() {
  startConveniences();
  document.documentElement.classList.add("js");
  /** @type {HistoryData} */
  const data = await readPageData();
  if (data.series.length) {
    const chart = new HistoryChart(required("chart"), data);
    document.addEventListener("click", (event) => {
      const button = around(event, "[data-series]");
      if (!button) return;
      chart.show(Number(button.dataset.series), Number(button.dataset.place));
      byId("chart").scrollIntoView();
    });
  }
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
