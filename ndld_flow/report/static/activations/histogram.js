// Histograms of both sides, with the limits of their format and of the colours.

/** @import { Look } from "./state.js" */
/** @import { Tensor } from "./values.js" */
/** @import { ActivationsData } from "./data.js" */

import { clamp, drawAtWidth, scale, ticks } from "../charts.js";
import { draw, make, shortened } from "../elements.js";
import { count, counted } from "../quantities.js";
import { makeSwitch, tooltip } from "../widgets.js";
import { formatOf, rangeText, valueText } from "./values.js";

/** @typedef {(value: number) => number} Scale */

const HISTOGRAM = { height: 170, left: 4, right: 4, top: 8, bottom: 22 };

export class Histograms {
  /**
   * @param {HTMLElement} host
   * @param {ActivationsData} data
   */
  constructor(host, data) {
    this.data = data;
    this.log = true;
    this.room = make("figure", { class: "picture spread" });
    this.about = make("p", { class: "small quiet" });
    /** @type {Tensor | null} */
    this.tensor = null;
    /** @type {Look | null} */
    this.look = null;
    const tools = make("div", { class: "tools" }, makeSwitch("Counts", { log: "log", linear: "linear" }, "log", (kind) => { this.log = kind === "log"; this.picture.again(); }));
    host.replaceChildren(tools, this.room, this.about);
    this.picture = drawAtWidth(this.room, (width) => this.draw(width));
  }

  /**
   * @param {Tensor} tensor
   * @param {Look} look
   */
  show(tensor, look) {
    this.tensor = tensor;
    this.look = look;
    this.picture.again();
  }

  /** @param {number} width */
  draw(width) {
    if (!this.tensor || !this.look) return;
    const { histogram, reference_histogram: reference } = this.tensor;
    const histograms = [histogram, reference].filter((shown) => shown !== null);
    const [low, high] = [Math.min(...histograms.map((shown) => Number(shown.low))), Math.max(...histograms.map((shown) => Number(shown.high)))];
    if (!histogram || !(high > low)) {
      this.room.replaceChildren(make("p", { class: "quiet small" }, histograms.length ? `All finite values are ${valueText(low)}.` : "No finite value."));
      this.about.textContent = "";
      return;
    }
    const x = scale(low, high, HISTOGRAM.left, width - HISTOGRAM.right);
    const bottom = HISTOGRAM.height - HISTOGRAM.bottom;
    const most = Math.max(...histograms.flatMap(({ counts }) => counts));
    /** @type {Scale} */
    const y = (value) => bottom - (bottom - HISTOGRAM.top) * (this.log ? Math.log1p(value) / Math.log1p(most) : value / most);
    const step = ticks(low, high, Math.max(3, width / 70));
    const svg = draw("svg", {
      height: HISTOGRAM.height, viewBox: `0 0 ${width} ${HISTOGRAM.height}`, role: "img", "aria-label": `Values of ${shortened(this.tensor.name, 60)}: ${rangeText(this.tensor.range)}`,
    }, this.window(this.look, x, bottom, width),
    draw("path", { class: "spread-area", d: `${steps(histogram, x, y)}L${x(Number(histogram.high))} ${bottom}L${x(Number(histogram.low))} ${bottom}Z` }),
    ...(reference ? [draw("path", { class: "spread-line", d: steps(reference, x, y) })] : []),
    ...this.limits(this.tensor, x, low, high, bottom), draw("line", { class: "grid", x1: 0, x2: width, y1: bottom, y2: bottom }),
    ...step.map((value) => tickLabel(x(value), width, valueText(Math.abs(value) < 1e-12 * (high - low) ? 0 : value, 3))));
    this.hover(svg, histograms, low, high);
    this.room.replaceChildren(svg);
    this.writeAbout(this.tensor);
  }

  /**
   * The part that the colours cover.
   * @param {Look} look
   * @param {Scale} x
   * @param {number} bottom
   * @param {number} width
   */
  window(look, x, bottom, width) {
    const [from, to] = [-1, 1].map((end) => clamp(x(end / look.scale - look.shift), 0, width));
    return draw("rect", { class: "spread-window", x: from, width: Math.max(0, to - from), y: 0, height: bottom });
  }

  /**
   * @param {Tensor} tensor
   * @param {Scale} x
   * @param {number} low
   * @param {number} high
   * @param {number} bottom
   */
  limits(tensor, x, low, high, bottom) {
    const format = formatOf(tensor);
    const ends = [format.low ?? -format.largest, format.largest].filter((end) => end >= low && end <= high);
    const last = ends.at(-1);
    if (last === undefined) return [];
    const place = x(last) < x(high) - 90 ? { x: x(last) + 4 } : { x: x(last) - 4, "text-anchor": "end" };
    return [
      ...ends.map((end) => draw("line", { class: "spread-limit", x1: x(end), x2: x(end), y1: 0, y2: bottom })),
      draw("text", { class: "limit-name", ...place, y: 16 }, `${format.name} ${ends.length > 1 && !format.low ? "±" : ""}${valueText(last, 5)}`),
    ];
  }

  /**
   * @param {SVGSVGElement} svg
   * @param {Histogram[]} histograms
   * @param {number} low
   * @param {number} high
   */
  hover(svg, histograms, low, high) {
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const bins = histograms[0].counts.length;
      const place = clamp(Math.floor(((event.clientX - box.left - HISTOGRAM.left) / (box.width - HISTOGRAM.left - HISTOGRAM.right)) * bins), 0, bins - 1);
      const edge = (/** @type {number} */ bin) => valueText(low + ((high - low) * bin) / bins, 4);
      const names = histograms.length > 1 ? [this.data.model, this.data.reference] : [this.data.model];
      tooltip.show(event.clientX, event.clientY, [`${edge(place)} to ${edge(place + 1)}`, ...histograms.map((shown, side) => `${names[side]}: ${counted(shown.counts[place] ?? 0, "value")}`)].join("\n"));
    });
    svg.addEventListener("pointerleave", () => tooltip.hide());
  }

  /** @param {Tensor} tensor */
  writeAbout(tensor) {
    const reference = tensor.reference_histogram ? "the line is the reference," : "";
    const sentences = [`${count(tensor.range.elements)} values of ${counted(this.data.samples.length, "sample")}; ${reference} the colours span the grey area`];
    if (tensor.range.nan_count + tensor.range.inf_count) sentences.push(`${count(tensor.range.nan_count)} NaN and ${count(tensor.range.inf_count)} infinite are not in it`);
    if (tensor.saturated || tensor.reference_saturated) sentences.push(`${count(tensor.saturated)} saturated${this.data.two ? ` (reference ${count(tensor.reference_saturated)})` : ""}`);
    this.about.textContent = `${sentences.join("; ")}.`;
  }
}

/**
 * Numbers at the ends stay inside of the chart.
 * @param {number} x
 * @param {number} width
 * @param {string} text
 */
function tickLabel(x, width, text) {
  const half = 3.6 * text.length;
  return draw("text", { x: clamp(x, half, width - half), y: HISTOGRAM.height - 6, "text-anchor": "middle" }, text);
}

/**
 * @param {Histogram} histogram
 * @param {Scale} x
 * @param {Scale} y
 */
function steps({ low, high, counts }, x, y) {
  const wide = (high - low) / counts.length;
  const parts = counts.map((value, place) => `${place ? "V" : `M${x(low).toFixed(1)} `}${y(value).toFixed(1)}H${x(low + wide * (place + 1)).toFixed(1)}`);
  return parts.join("");
}
