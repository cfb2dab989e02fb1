// The list of captured tensors, and the strip that shows their errors over the depth of the model.

/** @import { Tensor } from "./values.js" */
/** @import { ActivationsData } from "./data.js" */

import { clamp, drawAtWidth, scale, ticks } from "../charts.js";
import { around, draw, make, shortened } from "../elements.js";
import { count } from "../quantities.js";
import { makeSwitch, tooltip } from "../widgets.js";
import {
  decibels,
  formatOf,
  largestOf,
  makeBadges,
  metricOf,
  rangeBar,
  rangeText,
  SIZE_AXIS,
  tensorBadges,
  valueText,
} from "./values.js";

/**
 * A quantity of the strip; one without a value shows the ranges of the tensors.
 * @typedef {{label: string, about?: string, value?: (tensor: Tensor) => number, unit?: string, log?: boolean, better?: string}} View
 */

/** @typedef {{y: (value: number) => number, marks: {value: number, text: string}[]}} Axis */

// The list of captured tensors, with search, order and arrow keys.

const BY_NAME = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
/** @param {Tensor} tensor */
const notFinite = ({ range }) => range.nan_count + range.inf_count;
/**
 * @param {number} value
 * @param {number} none
 */
const orNone = (value, none) => (Number.isNaN(value) ? none : value);
/** @type {Record<string, [string, ((a: Tensor, b: Tensor) => number)?]>} */
const TENSOR_ORDERS = {
  execution: ["Order of execution"],
  noise: ["Lowest signal to noise", (a, b) => orNone(metricOf(a, "snr_db"), 1e9) - orNone(metricOf(b, "snr_db"), 1e9)],
  largest: ["Largest values", (a, b) => largestOf(b.range) - largestOf(a.range)],
  broken: ["Not finite", (a, b) => notFinite(b) - notFinite(a)],
  saturated: ["Saturated", (a, b) => b.saturated / b.range.elements - a.saturated / a.range.elements],
  name: ["Name", (a, b) => BY_NAME.compare(a.name, b.name)],
};

export class TensorList {
  /**
   * @param {HTMLElement} host
   * @param {ActivationsData} data
   * @param {(tensor: number) => void} pick is called for the tensor that was selected here
   */
  constructor(host, data, pick) {
    this.data = data;
    this.pick = pick;
    this.order = "execution";
    this.chosen = -1;
    this.shown = [...data.tensors.keys()];
    this.field = make("input", {
      type: "search", placeholder: "Find tensors", "aria-label": "Find tensors", spellcheck: "false", autocomplete: "off",
      title: "All words must occur in name, node, operator, type or what is wrong: relu nan",
      oninput: () => this.arrange(), onkeydown: (/** @type {KeyboardEvent} */ event) => this.keyInField(event),
    });
    const orders = Object.entries(TENSOR_ORDERS).filter(([name]) => data.two || name !== "noise");
    this.select = make("select", { "aria-label": "Order of the list", onchange: () => { this.order = this.select.value; this.arrange(); } },
      ...orders.map(([name, [label]]) => make("option", { value: name }, label)));
    this.count = make("output", { "aria-live": "polite" });
    this.box = make("div", { class: "tensor-list", role: "listbox", tabindex: 0, "aria-label": "Captured tensors", onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event), onclick: (/** @type {MouseEvent} */ event) => this.click(event) });
    this.rows = data.tensors.map((tensor, place) => this.row(tensor, place));
    this.haystacks = data.tensors.map((tensor) => [tensor.name, tensor.node, tensor.op, tensor.dtype, tensor.layout, tensor.shape, ...tensorBadges(tensor).map(([word]) => word)].join("\n").toLowerCase());
    host.replaceChildren(make("div", { class: "tools list-tools" }, this.field, this.select, this.count), this.box);
    this.arrange();
  }

  /**
   * @param {Tensor} tensor
   * @param {number} place
   */
  row(tensor, place) {
    const { two } = this.data;
    const snr = two ? make("span", { class: "snr", title: "Signal to noise against the reference" }, tensor.divergence ? decibels(metricOf(tensor, "snr_db")) : "–") : "";
    return make("div", { role: "option", id: `tensor-${place}`, "aria-selected": "false", "data-place": place },
      make("span", { class: "tensor-name mono", title: shortened(tensor.name, 400) }, make("bdi", {}, shortened(tensor.name, 60))), snr,
      make("span", { class: "tensor-kind" }, make("bdi", {}, `${tensor.op} ${tensor.shape}`), " ", ...makeBadges(tensor)),
      rangeBar(tensor));
  }

  arrange() {
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { tensors } = this.data;
    this.shown = [...tensors.keys()].filter((place) => words.every((word) => this.haystacks[place].includes(word)));
    const compare = TENSOR_ORDERS[this.order][1];
    if (compare) this.shown.sort((a, b) => compare(tensors[a], tensors[b]) || a - b);
    this.box.replaceChildren(...(this.shown.length ? this.shown.map((place) => this.rows[place]) : [make("p", { class: "grid-empty" }, "No tensor matches.")]));
    this.count.textContent = this.shown.length === tensors.length ? count(tensors.length) : `${count(this.shown.length)} of ${count(tensors.length)}`;
    this.reveal();
  }

  /** @param {number} place */
  choose(place) {
    this.rows[this.chosen]?.setAttribute("aria-selected", "false");
    this.rows[place].setAttribute("aria-selected", "true");
    this.chosen = place;
    this.box.setAttribute("aria-activedescendant", `tensor-${place}`);
    this.reveal();
  }

  // Scroll the list only, not the page.
  reveal() {
    const row = this.rows[this.chosen];
    if (!row?.isConnected) return;
    const [top, bottom] = [row.offsetTop, row.offsetTop + row.offsetHeight];
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (bottom > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = bottom - this.box.clientHeight;
  }

  /**
   * Select the next or previous tensor of those shown.
   * @param {number} by
   */
  step(by) {
    if (!this.shown.length) return;
    const at = this.shown.indexOf(this.chosen);
    this.pick(this.shown[at < 0 ? 0 : clamp(at + by, 0, this.shown.length - 1)]);
  }

  /** @param {MouseEvent} event */
  click(event) {
    const row = around(event, "[role=option]");
    if (row) this.pick(Number(row.dataset.place));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const all = this.shown.length;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -all, End: all }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.step(by);
  }

  /** @param {KeyboardEvent} event */
  keyInField(event) {
    if (event.key === "Escape" && this.field.value) this.field.value = "";
    else if (event.key === "Escape") this.field.blur();
    else if (event.key === "ArrowDown" || event.key === "Enter") this.box.focus();
    else return;
    event.preventDefault();
    this.arrange();
    if (event.key === "Enter" && this.shown.length && !this.shown.includes(this.chosen)) this.pick(this.shown[0]);
  }
}

// A strip of all captured tensors in order of execution, with their errors and the range of their values.

const DEPTH = { height: 210, left: 58, right: 8, top: 12, bottom: 24 };
/** @type {Record<string, View>} */
const DEPTH_VIEWS = {
  snr_db: { label: "Signal to noise", value: (tensor) => metricOf(tensor, "snr_db"), unit: "dB", better: "↑" },
  slice_rms: { label: "Worst slice", about: "RMS error of the worst channel, relative to its own spread", value: (tensor) => metricOf(tensor, "slice_rms"), log: true, better: "↓" },
  relative_rms: { label: "Relative RMS", value: (tensor) => metricOf(tensor, "relative_rms"), log: true, better: "↓" },
  cosine: { label: "1 − cosine", value: (tensor) => Math.max(0, 1 - metricOf(tensor, "cosine")), log: true, better: "↓" },
  sizes: { label: "Magnitudes", log: true },
};

export class DepthStrip {
  /**
   * @param {HTMLElement} host
   * @param {ActivationsData} data
   * @param {(tensor: number) => void} pick is called for the tensor that was selected here
   */
  constructor(host, data, pick) {
    this.data = data;
    this.pick = pick;
    this.chosen = -1;
    this.across = 1; // pixels of a tensor
    this.svg = draw("svg");
    this.band = draw("rect", { class: "chosen-band", y: DEPTH.top - 6, height: DEPTH.height - DEPTH.top - DEPTH.bottom + 12, rx: 3 });
    this.hint = draw("rect", { class: "hint-band", y: DEPTH.top, height: DEPTH.height - DEPTH.top - DEPTH.bottom, visibility: "hidden" });
    const views = Object.entries(DEPTH_VIEWS).filter(([name]) => name === "sizes" || data.tensors.some((tensor) => tensor.divergence?.metrics[name] !== undefined));
    this.view = views[0][0];
    const tools = make("div", { class: "tools" });
    if (views.length > 1) {
      tools.append(makeSwitch("Show", Object.fromEntries(views.map(([name, { label }]) => [name, label])), this.view, (view) => { this.view = view; this.picture.again(); }, (view) => DEPTH_VIEWS[view].about ?? ""));
    }
    this.room = make("figure", { class: "picture depth" });
    host.replaceChildren(...(views.length > 1 ? [tools] : []), this.room);
    this.picture = drawAtWidth(this.room, (width) => this.draw(width));
  }

  /** @param {number} place */
  choose(place) {
    this.chosen = place;
    this.mark();
  }

  /** @param {number} width */
  draw(width) {
    const { tensors } = this.data;
    const across = (width - DEPTH.left - DEPTH.right) / tensors.length;
    this.across = across;
    const x = (/** @type {number} */ place) => DEPTH.left + (place + 0.5) * across;
    const kind = DEPTH_VIEWS[this.view];
    const axis = this.axis(kind);
    this.hint.setAttribute("visibility", "hidden");
    const svg = draw("svg", {
      height: DEPTH.height, viewBox: `0 0 ${width} ${DEPTH.height}`, tabindex: 0, role: "slider", "aria-label": `${kind.label} of captured tensors, in order of execution`,
      "aria-valuemin": 1, "aria-valuemax": tensors.length,
    }, this.band, this.hint, ...axis.marks.flatMap(({ value, text }) => [
      draw("line", { class: "grid", x1: DEPTH.left, x2: width - DEPTH.right, y1: axis.y(value), y2: axis.y(value) }),
      draw("text", { x: DEPTH.left - 8, y: axis.y(value) + 4, "text-anchor": "end" }, text)]),
    draw("text", { x: DEPTH.left, y: DEPTH.height - 6 }, shortened(tensors[0].name, Math.floor(width / 20))),
    draw("text", { x: width - DEPTH.right, y: DEPTH.height - 6, "text-anchor": "end" }, shortened(tensors[tensors.length - 1].name, Math.floor(width / 20))),
    ...(kind.value ? this.line(x, axis, kind.value, kind.log ?? false) : this.sizes(x, axis, width)));
    this.listen(svg);
    this.svg = svg;
    this.room.replaceChildren(svg);
    this.mark();
  }

  /**
   * @param {View} view
   * @returns {Axis}
   */
  axis({ value, log, unit }) {
    const [top, bottom] = [DEPTH.top, DEPTH.height - DEPTH.bottom];
    if (!value) return logAxis(SIZE_AXIS.low, SIZE_AXIS.high, bottom, top);
    const values = this.data.tensors.map(value).filter((amount) => Number.isFinite(amount) && Math.abs(amount) < 300 && (!log || amount > 0));
    if (log) {
      const powers = values.map(Math.log10);
      return logAxis(Math.floor(Math.min(-4, ...powers)), Math.ceil(Math.max(0, ...powers)), bottom, top);
    }
    const [low, high] = [Math.min(0, ...values), Math.max(60, ...values)];
    const y = scale(low, high, bottom, top);
    return { y: (amount) => clamp(y(amount), top, bottom), marks: ticks(low, high, 5).map((tick) => ({ value: tick, text: `${valueText(tick)} ${unit}` })) };
  }

  /**
   * @param {(place: number) => number} x
   * @param {Axis} axis
   * @param {(tensor: Tensor) => number} value
   * @param {boolean} log
   */
  line(x, axis, value, log) {
    const { tensors } = this.data;
    // Equal tensors have no noise: they are at the best end, on a log scale, too.
    const spots = tensors.map((tensor, place) => ({ tensor, x: x(place), at: value(tensor) })).filter(({ at }) => !Number.isNaN(at));
    const y = (/** @type {{at: number}} */ { at }) => axis.y(log && at <= 0 ? 1e-300 : at);
    const path = spots.map((spot, place) => `${place ? "L" : "M"}${spot.x.toFixed(1)} ${y(spot).toFixed(1)}`).join("");
    const radius = clamp(this.across * 0.35, 1.5, 5);
    const marks = spots.map((spot) => {
      if (!notFinite(spot.tensor)) return draw("circle", { class: "spot", cx: spot.x, cy: y(spot), r: radius });
      const r = radius + 1;
      return draw("path", { class: "spot-bad", d: `M${spot.x - r} ${y(spot) - r}l${2 * r} ${2 * r}m0 ${-2 * r}l${-2 * r} ${2 * r}` });
    });
    return [draw("path", { class: "depth-line", d: path }), ...marks];
  }

  /**
   * @param {(place: number) => number} x
   * @param {Axis} axis
   * @param {number} width
   */
  sizes(x, axis, width) {
    const wide = clamp(this.across * 0.3, 1, 14);
    const { format } = this.data.tensors[0];
    const isOnAxis = (/** @type {number} */ value) => value >= 10 ** SIZE_AXIS.low && value <= 10 ** SIZE_AXIS.high;
    /** @type {(value: number | undefined, name: string, dy: number) => SVGElement[]} */
    const limit = (value, name, dy) => value === undefined || !isOnAxis(value) ? [] : [
      draw("line", { class: "border", x1: DEPTH.left, x2: width - DEPTH.right, y1: axis.y(value), y2: axis.y(value) }),
      draw("text", { class: "limit-name", x: width - DEPTH.right, y: axis.y(value) + dy, "text-anchor": "end" }, name)];
    /** @type {(tensor: Tensor, range: TensorRange, place: number, kind: string, shift: number) => SVGElement[]} */
    const bar = (tensor, range, place, kind, shift) => {
      const most = range.inf_count ? 1e300 : largestOf(range);
      if (!(most > 0)) return [];
      const [top, bottom] = [axis.y(most), axis.y(range.smallest_abs || 1e-300)];
      const beyond = most > formatOf(tensor).largest ? " beyond" : "";
      return [draw("rect", { class: `${kind}${beyond}`, x: x(place) + shift * wide - wide / 2, width: wide, y: top, height: Math.max(1, bottom - top) }),
        ...(range.rms > 0 ? [draw("rect", { class: "rms", x: x(place) + shift * wide - wide / 2, width: wide, y: axis.y(range.rms) - 1, height: 2 })] : [])];
    };
    return [
      ...this.data.tensors.flatMap((tensor, place) => (tensor.reference_range
        ? [...bar(tensor, tensor.reference_range, place, "of-reference", -0.55), ...bar(tensor, tensor.range, place, "of-candidate", 0.55)]
        : bar(tensor, tensor.range, place, "of-candidate", 0))),
      ...limit(format.largest, `${format.name}'s largest`, -4), ...limit(format.normal, `${format.name}'s smallest in full`, -4), ...limit(format.smallest, `${format.name}'s smallest`, 13),
    ];
  }

  /** @param {SVGSVGElement} svg */
  listen(svg) {
    const { tensors } = this.data;
    const at = (/** @type {MouseEvent} */ event) => clamp(Math.floor((event.clientX - svg.getBoundingClientRect().left - DEPTH.left) / this.across), 0, tensors.length - 1);
    svg.addEventListener("pointermove", (event) => {
      const place = at(event);
      this.place(this.hint, place);
      tooltip.show(event.clientX, event.clientY, this.describe(tensors[place]));
    });
    svg.addEventListener("pointerleave", () => {
      this.hint.setAttribute("visibility", "hidden");
      tooltip.hide();
    });
    svg.addEventListener("click", (event) => this.pick(at(event)));
    svg.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -tensors.length, End: tensors.length }[event.key];
      if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.pick(clamp(this.chosen + by, 0, tensors.length - 1));
    });
  }

  /** @param {Tensor} tensor */
  describe(tensor) {
    const metrics = ["snr_db", "relative_rms", "cosine"].filter((name) => tensor.divergence?.metrics[name] !== undefined)
      .map((name) => `${name}: ${name === "snr_db" ? decibels(metricOf(tensor, name)) : valueText(metricOf(tensor, name), 4)}`);
    return [shortened(tensor.name, 80), `${tensor.op} ${tensor.shape}`, rangeText(tensor.range), ...metrics, ...tensorBadges(tensor).map(([word]) => word)].join("\n");
  }

  /**
   * @param {SVGElement} band
   * @param {number} place
   */
  place(band, place) {
    const wide = Math.max(this.across, 6);
    for (const [name, value] of [["x", DEPTH.left + (place + 0.5) * this.across - wide / 2], ["width", wide], ["visibility", "visible"]]) band.setAttribute(String(name), String(value));
  }

  mark() {
    if (this.chosen < 0) return;
    this.place(this.band, this.chosen);
    this.svg.setAttribute("aria-valuenow", String(this.chosen + 1));
    this.svg.setAttribute("aria-valuetext", this.describe(this.data.tensors[this.chosen]).replaceAll("\n", ", "));
  }
}

/**
 * Powers of ten from bottom to top; values beyond are at the end.
 * @param {number} low
 * @param {number} high
 * @param {number} bottom
 * @param {number} top
 * @returns {Axis}
 */
function logAxis(low, high, bottom, top) {
  const place = scale(low, high, bottom, top);
  const step = Math.max(1, Math.ceil((high - low) / 7));
  const marks = [];
  for (let power = low; power <= high; power += step) marks.push({ value: 10 ** power, text: `1e${power}`.replace("-", "−") });
  return { y: (value) => clamp(place(Math.log10(value)), top, bottom), marks };
}
