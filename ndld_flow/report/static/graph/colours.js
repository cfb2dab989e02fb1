// Modes that the nodes of a graph can be coloured by. Colours are tokens of graph.css, read anew when the theme changes.

/** @import { Blocks } from "./blocks.js" */

import { make, shortened } from "../elements.js";
import { count, counted, milliseconds, signedShare } from "../quantities.js";

/**
 * @typedef {object} GraphMode
 * @property {string} key
 * @property {string} title
 * @property {(layer: number, palette: GraphPalette) => string} colour
 * @property {(layer: number) => string} text the second line of a node
 * @property {() => Node[]} legend
 * @property {(blocks: Blocks) => GraphMode} [ofBlocks] the same mode for blocks of layers
 */

export class GraphPalette {
  /** @param {HTMLElement} host */
  constructor(host) {
    this.probe = make("i", { hidden: true });
    host.append(this.probe);
    /** @type {Map<string, string>} */
    this.known = new Map();
  }

  /**
   * A token as `rgb(r, g, b)` or `rgba(r, g, b, a)` in the current theme.
   * @param {string} token
   */
  css(token) {
    const known = this.known.get(token);
    if (known) return known;
    this.probe.style.color = `var(${token})`;
    const colour = getComputedStyle(this.probe).color;
    this.known.set(token, colour);
    return colour;
  }

  /** @param {string} token */
  rgb(token) {
    return (this.css(token).match(/[\d.]+/g) ?? []).slice(0, 3).map(Number);
  }

  /**
   * 0 to 1 along --name-0 ... --name-4.
   * @param {string} name
   * @param {number} part
   */
  along(name, part) {
    const at = Math.min(1, Math.max(0, part)) * 4;
    const low = Math.min(3, Math.floor(at));
    const from = this.rgb(`--${name}-${low}`);
    const to = this.rgb(`--${name}-${low + 1}`);
    return `rgb(${from.map((value, place) => Math.round(value + (to[place] - value) * (at - low))).join(" ")})`;
  }

  forget() {
    this.known.clear();
  }
}

/**
 * @param {string} token
 * @param {string} text
 */
const legendSwatch = (token, text) =>
  make("span", { class: "graph-key" }, make("i", { style: `background:var(${token})` }), text);

/**
 * @param {string} name
 * @param {string} low
 * @param {string} high
 */
const legendScale = (name, low, high, middle = "") =>
  make("span", { class: "graph-key" }, low, make("i", { class: `graph-scale ${name}` }), middle, high);

/**
 * Sequential colours. Most layers are quick: the root spreads them.
 * @param {{key?: string, title?: string, value: (layer: number) => number, format?: (value: number) => string, layers: number}} options
 * @returns {GraphMode}
 */
export function heatMode({ key = "latency", title = "Latency", value, format = milliseconds, layers }) {
  let most = 1e-12;
  for (let layer = 0; layer < layers; layer++) most = Math.max(most, value(layer));
  return {
    key,
    title,
    colour: (layer, palette) => palette.along("graph-heat", Math.sqrt(value(layer) / most)),
    text: (layer) => format(value(layer)),
    legend: () => [legendScale("graph-heat", format(0), format(most))],
    ofBlocks: ({ members }) => {
      const sums = members.map((inside) => inside.reduce((sum, layer) => sum + value(layer), 0));
      return heatMode({ key, title, value: (block) => sums[block], format, layers: sums.length });
    },
  };
}

/**
 * Diverging colours of the ratio of candidate to base, null where there is no pair. Twice and half are the ends.
 * `together` gives the ratio of several layers, for blocks.
 * @param {{key?: string, title?: string, ratio: (layer: number) => number | null, together?: (layers: number[]) => number | null, format?: (ratio: number) => string, end?: number}} options
 * @returns {GraphMode}
 */
export function deltaMode({ key = "delta", title = "Change", ratio, together, format = (value) => signedShare(value - 1), end = 2 }) {
  /** @param {number} layer */
  const known = (layer) => {
    const value = ratio(layer);
    return value !== null && Number.isFinite(value) && value > 0 ? value : null;
  };
  return {
    key,
    title,
    colour: (layer, palette) => {
      const value = known(layer);
      return value === null ? palette.css("--graph-none") : palette.along("graph-delta", 0.5 + Math.log(value) / Math.log(end) / 2);
    },
    text: (layer) => {
      const value = known(layer);
      return value === null ? "no pair" : format(value);
    },
    legend: () => [
      legendScale("graph-delta", `faster: ${format(1 / end)}`, `slower: ${format(end)}`),
      legendSwatch("--graph-none", "no pair"),
    ],
    ofBlocks: together && (({ members }) => deltaMode({ key, title, ratio: (block) => together(members[block]), format, end })),
  };
}

/**
 * A colour for each of the nine most frequent texts; the others share one with the layers that have none.
 * @param {{key: string, title: string, of: (layer: number) => string, layers: number}} options
 * @returns {GraphMode}
 */
export function kindsMode({ key, title, of, layers }) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (let layer = 0; layer < layers; layer++) counts.set(of(layer), (counts.get(of(layer)) ?? 0) + 1);
  const unrecorded = counts.get("") ?? 0;
  counts.delete("");
  const kinds = [...counts].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
  const tokens = new Map(kinds.slice(0, 9).map(([kind], place) => [kind, `--graph-kind-${place}`]));
  const rest = kinds.slice(9).reduce((sum, [, times]) => sum + times, 0);
  const shown = kinds.slice(0, 9).map(([kind, times], place) => [`--graph-kind-${place}`, `${shortened(kind, 24)} ${count(times)}`]);
  if (rest) shown.push(["--graph-none", `others ${count(rest)}`]);
  if (unrecorded) shown.push(["--graph-none", `not recorded ${count(unrecorded)}`]);
  return {
    key,
    title,
    colour: (layer, palette) => palette.css(tokens.get(of(layer)) ?? "--graph-none"),
    text: of,
    legend: () => shown.map(([token, text]) => legendSwatch(token, text)),
    ofBlocks: ({ members }) => {
      const texts = members.map((inside) => [...new Set(inside.map(of))]);
      return {
        key,
        title,
        colour: (block, palette) => palette.css((texts[block].length === 1 && tokens.get(texts[block][0])) || "--graph-none"),
        text: (block) => (texts[block].length > 1 ? "several" : texts[block][0]),
        legend: () => [...shown, ["--graph-none", "several in a block"]].map(([token, text]) => legendSwatch(token, text)),
      };
    },
  };
}

const FAMILY_TITLES = [
  "Convolution", "Matrix product", "Activation", "Normalization", "Elementwise", "Shape and layout",
  "Pooling, reduction", "Control flow", "Quantization, casts", "Other",
];

/**
 * Families of operators, as collect_graph.py found them.
 * @param {{family: number[]}} graph
 * @param {(layer: number) => string} [text]
 * @returns {GraphMode}
 */
export function familyMode(graph, text = () => "") {
  const used = [...new Set(graph.family)].sort((a, b) => a - b);
  /** @param {number} family */
  const token = (family) => (family === 9 ? "--graph-none" : `--graph-kind-${family}`);
  return {
    key: "family",
    title: "Type",
    colour: (layer, palette) => palette.css(token(graph.family[layer])),
    text,
    legend: () => used.map((family) => legendSwatch(token(family), FAMILY_TITLES[family])),
    ofBlocks: ({ head, members }) => familyMode(
      { family: Array.from(head, (layer) => graph.family[layer]) },
      (block) => (members[block].length > 1 ? counted(members[block].length, "node") : text(head[block])),
    ),
  };
}
