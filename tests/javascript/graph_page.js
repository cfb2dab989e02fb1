// A page with a view of a graph and nothing else. Tests find `view`, `picked`, `kinds` and the modes in its global scope.

import { byId } from "../../ndld_flow/report/static/elements.js";
import { deltaMode, familyMode, heatMode, kindsMode } from "../../ndld_flow/report/static/graph/colours.js";
import { GraphView } from "../../ndld_flow/report/static/graph/view.js";
import { milliseconds } from "../../ndld_flow/report/static/quantities.js";

export function start() {
  const { graph, layers } = JSON.parse(byId("data").textContent);
  /** @type {number[]} */
  const picked = [];
  const kinds = (/** @type {string} */ key) => kindsMode({ key, title: key, of: (layer) => layers[layer][key], layers: layers.length });
  const ratio = (/** @type {number} */ layer) => [null, 1, 2, 0.5][layer % 4];
  const view = new GraphView(byId("host"), graph, {
    label: "test",
    name: (layer) => layers[layer].name,
    type: (layer) => layers[layer].type,
    about: (layer) => `${layers[layer].name}\n${milliseconds(layers[layer].ms)}`,
    pick: (layer) => picked.push(layer),
    modes: [
      heatMode({ value: (layer) => layers[layer].ms, layers: layers.length }),
      familyMode(graph), kinds("precision"), kinds("role"), deltaMode({ ratio, together: (all) => ratio(all[0]) }),
    ],
  });
  Object.assign(globalThis, { view, graph, picked, kinds, familyMode, deltaMode });
}
