// Facts about a tensor, and the table of its channels.

/** @import { Look, State } from "./state.js" */
/** @import { Column } from "../table.js" */
/** @import { Tensor } from "./values.js" */
/** @import { ActivationsData, TensorMaps } from "./data.js" */

import { make, shortened } from "../elements.js";
import { count, plainNumber } from "../quantities.js";
import { TableModel, TableView } from "../table.js";
import { selectionSummary } from "../widgets.js";
import { chunkText } from "./data.js";
import { decibels, makeBadges, smallShare, valueText } from "./values.js";

// Texts around the maps: the tensor, the sample, and the resolution of the maps.

/**
 * @param {ActivationsData} data
 * @param {Tensor} tensor
 */
export function tensorHead(data, tensor) {
  const place = tensor.position < 0 ? "an input of the model" : `node ${tensor.position} in order of execution`;
  const facts = [tensor.op, tensor.node && tensor.node !== tensor.name ? shortened(tensor.node, 60) : "", place];
  const dtype = tensor.reference_dtype && tensor.reference_dtype !== tensor.dtype ? `${tensor.dtype} (reference ${tensor.reference_dtype})` : tensor.dtype;
  return [
    make("h3", { class: "mono" }, make("bdi", {}, shortened(tensor.name, 120))),
    make("p", { class: "small" }, make("bdi", {}, `${dtype} ${tensor.shape} ${tensor.layout}`), make("span", { class: "quiet" }, " · ", make("bdi", {}, facts.filter(Boolean).join(" · "))), " ", ...makeBadges(tensor)),
  ];
}

/**
 * @param {ActivationsData} data
 * @param {State} state
 * @param {(sample: number) => void} choose
 */
export function tensorAbout(data, state, choose) {
  return [samplePart(data, state, choose), tensorFacts(data, state.tensor), ...arrayLinks(data, data.tensors[state.tensor], state.sample)];
}

/**
 * The sample that is shown, and buttons for others.
 * @param {ActivationsData} data
 * @param {State} state
 * @param {(sample: number) => void} choose
 */
function samplePart(data, state, choose) {
  const sample = data.samples[state.sample];
  const figure = make("figure", { class: "fed" });
  if (sample?.picture >= 0) figure.append(make("img", { src: `data:image/png;base64,${chunkText(sample.picture)}`, alt: `Input: ${sample.label}` }));
  const samples = data.samplesOf(state.tensor);
  const label = make("bdi", {}, sample?.label ?? "");
  if (samples.length > 1) {
    const select = make("select", { "aria-label": "Sample", title: "Next sample: n", onchange: () => choose(Number(select.value)) },
      ...samples.map((shown) => make("option", { value: shown, selected: shown === state.sample }, shortened(data.samples[shown]?.label ?? String(shown), 40))));
    figure.append(make("figcaption", {}, select, make("span", { class: "quiet small" }, ` ${samples.indexOf(state.sample) + 1} of ${samples.length}`)));
  } else figure.append(make("figcaption", { class: "small" }, label));
  const inputs = sample?.inputs.map(([name, how]) => make("p", { class: "quiet small" }, make("bdi", { class: "mono" }, name), " ", make("bdi", {}, how))) ?? [];
  figure.append(...inputs);
  return figure;
}

/**
 * @param {ActivationsData} data
 * @param {number} place
 */
function tensorFacts(data, place) {
  const tensor = data.tensors[place];
  const { range, reference_range: reference } = tensor;
  const sides = reference ? [reference, range] : [range];
  const names = reference ? [data.reference, data.model] : [data.model];
  /** @type {(label: string, of: (range: TensorRange) => string) => HTMLElement} */
  const row = (label, of) => make("tr", {}, make("th", { scope: "row" }, label), ...sides.map((side) => make("td", { class: "n" }, of(side))));
  const format = tensor.format.name;
  const rows = [row("Least", (values) => valueText(values.minimum, 5)), row("Most", (values) => valueText(values.maximum, 5)), row("RMS", (values) => valueText(values.rms, 5)), row("Nearest to 0", (values) => (values.smallest_abs ? valueText(values.smallest_abs, 3) : "–"))];
  /** @type {[string, "nan_count" | "inf_count" | "beyond_share" | "subnormal_share" | "vanishing_share", (value: number) => string][]} */
  const optional = [["NaN", "nan_count", count], ["Infinite", "inf_count", count], [`Beyond ${format}`, "beyond_share", smallShare], ["Subnormal", "subnormal_share", smallShare], ["Rounded to 0", "vanishing_share", smallShare]];
  for (const [label, key, text] of optional) if (sides.some((side) => side[key] > 0)) rows.push(row(label, (values) => (values[key] > 0 ? text(values[key]) : "0")));
  const table = make("table", { class: "dense tensor-facts" },
    make("thead", {}, make("tr", {}, make("td"), ...names.map((name) => make("th", { scope: "col", class: "n" }, make("bdi", {}, shortened(name, 14)))))), make("tbody", {}, ...rows));
  const metrics = Object.entries(tensor.divergence?.metrics ?? {}).map(([name, value]) => `${name.replaceAll("_", " ")} ${name === "snr_db" ? decibels(Number(value)) : plainMetric(Number(value))}`);
  return make("div", {}, table, metrics.length ? make("p", { class: "small quiet" }, make("bdi", {}, `Against the reference: ${metrics.join(", ")}`)) : "");
}

/**
 * A value close to 1 keeps its nines.
 * @param {number} value
 */
const plainMetric = (value) => (value > 0.999 && value < 1 ? plainNumber(value) : valueText(value, 4));

/**
 * Links to the files with all values at full precision.
 * @param {ActivationsData} data
 * @param {Tensor} tensor
 * @param {number} sample
 */
function arrayLinks(data, tensor, sample) {
  const held = tensor.maps.filter((candidate) => candidate.sample === sample && candidate.array);
  return held.map((file) => make("p", { class: "small" }, make("a", { href: `./${file.array.split("/").map(encodeURIComponent).join("/")}` }, data.two ? `All values of the ${file.side}, .npy` : "All values, .npy")));
}

/**
 * @param {ActivationsData} data
 * @param {TensorMaps | null} maps
 * @param {number} place
 * @param {Look} look
 */
export function mapsNote(data, maps, place, look) {
  if (!maps) return "This page has no map of this tensor.";
  const lines = [];
  const { about } = maps;
  if (about.scale > 1) lines.push(`Each element is the one of largest magnitude of ${about.scale} × ${about.scale}, NaN and infinity first.`);
  if (look.mode === "difference" && maps.reference && maps.candidate) {
    const most = maps.largestDifference(maps.count > 1 ? place : -1);
    lines.push(most > 0 ? `The largest difference shown is ${valueText(most, 3)}; this page's maps have a resolution of ${valueText(maps.resolution, 2)}.` : "Where both are finite, they are equal within the resolution of this page's maps.");
  } else if (data.two && !(maps.reference && maps.candidate)) {
    lines.push(`Only the ${maps.candidate ? "candidate" : "reference"} has this tensor.`);
  }
  return lines.join(" ");
}

// The table of a tensor's channels; a row opens its channel.

/** @type {["minimum" | "maximum" | "mean" | "rms" | "difference_rms", string][]} */
const CHANNEL_NUMBERS = [
  ["minimum", "Least"], ["maximum", "Most"], ["mean", "Mean"], ["rms", "RMS"], ["difference_rms", "RMS difference"],
];

/**
 * @param {Tensor} tensor
 * @returns {Column[]}
 */
export function channelColumns({ channels }) {
  /** @type {Column[]} */
  const measured = CHANNEL_NUMBERS.filter(([name]) => channels[name].some((value) => value !== null)).map(([key, label]) => {
    const values = channels[key];
    const top = values.reduce((/** @type {number} */ most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value ?? 0)) : most), 0);
    const heated = (key === "rms" || key === "difference_rms") && top > 0;
    return {
      key, label, width: key === "difference_rms" ? "minmax(132px, 1fr)" : "minmax(104px, 1fr)", numeric: true, right: true, measure: "mean",
      heat: heated ? (row) => (Number.isFinite(values[row]) ? (values[row] ?? 0) / top : 0) : undefined,
      value: (row) => values[row], format: (value) => (value === null ? "–" : valueText(value, 5)), csv: (row) => values[row] ?? "",
    };
  });
  const { nonfinite, saturated } = channels;
  const counted = { width: "minmax(96px, 0.8fr)", numeric: true, right: true, measure: "sum", format: count };
  return [
    { key: "channel", label: "Channel", width: "96px", numeric: true, position: true, right: true, value: (row) => channels.channel[row] }, ...measured,
    { key: "nonfinite", label: "Not finite", ...counted, value: (row) => nonfinite[row], tone: (row) => (nonfinite[row] ? "bad" : "") },
    { key: "saturated", label: "Saturated", ...counted, value: (row) => saturated[row] },
  ];
}

export class ChannelTable {
  /**
   * @param {HTMLElement} host
   * @param {(channel: number) => void} pick is called for a row that was selected here
   */
  constructor(host, pick) {
    this.host = host;
    this.pick = pick;
    /** @type {Tensor | null} */
    this.tensor = null;
    /** @type {TableView | null} */
    this.table = null;
    /** True while the table follows a channel that was opened elsewhere. */
    this.following = false;
  }

  /** @param {Tensor} tensor */
  show(tensor) {
    if (this.tensor === tensor) return;
    this.tensor = tensor;
    this.table = null;
    const { channel: number } = tensor.channels;
    if (!number.length) {
      this.host.replaceChildren(make("p", { class: "quiet small" }, "This tensor has no channels."));
      return;
    }
    const model = new TableModel(channelColumns(tensor), number.length);
    const file = `${tensor.name.replace(/[^\w.-]+/g, "-").slice(0, 80) || "tensor"}-channels.csv`;
    this.table = new TableView(this.host, model, {
      label: "channels", file, describe: () => (model.selected.size > 1 ? selectionSummary(model) : []),
      selected: (rows) => {
        if (!this.following && rows.length === 1) this.pick(number[rows[0]]);
      },
    });
  }

  /**
   * Select the row of a channel that was opened elsewhere; -1 for none.
   * @param {number} channel
   */
  follow(channel) {
    if (!this.table || !this.tensor) return;
    const row = this.tensor.channels.channel.indexOf(channel);
    const { selected } = this.table.model;
    if (row < 0 ? selected.size !== 1 : selected.size === 1 && selected.has(row)) return;
    this.following = true;
    if (row < 0) {
      this.table.model.clear();
      this.table.refresh();
    } else this.table.choose([row]);
    this.following = false;
  }
}
