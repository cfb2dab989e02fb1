// Errors of two models layer by layer: a chart over the depth of the model, and a table.

/** @import { DepthSight, ErrorScale, ErrorKind } from "../static/report/depth_panels.js" */
/** @import { Column } from "../static/table.js" */

import { drawAtWidth, scale, ticks } from "../static/charts.js";
import { all, draw, make, shortened } from "../static/elements.js";
import { count, counted, plainNumber, share } from "../static/quantities.js";
import { TableModel, TableView } from "../static/table.js";
import { makeSwitch, tooltip } from "../static/widgets.js";
import { DEPTH, DepthData, ERROR_SCALES, ErrorPanel, NOT_FINITE, RangePanel } from "../static/report/depth_panels.js";

// A chart of errors along the depth of a network: pointer and arrows read it, a drag zooms, a click selects the layer.

class DepthChart {
  /**
   * @param {HTMLElement} host
   * @param {DepthData} data
   * @param {{label: string, pick: (row: number) => void}} options `pick` is called for the layer that was selected
   */
  constructor(host, data, { label, pick }) {
    this.data = data;
    this.label = label;
    this.pick = pick;
    this.from = 0;
    this.to = data.length - 1;
    this.now = -1;
    /** @type {{from: number, to: number, x: number, moved: boolean} | null} */
    this.drag = null;
    /** @type {Set<number>} */
    this.marked = new Set();
    const [scaleName] = data.scales();
    this.scaleName = scaleName ?? "error";
    /** @type {DepthSight} */
    this.sight = { from: 0, to: this.to, x: Number, width: 0, pitch: 1, crowded: false };
    this.svg = draw("svg");
    this.cursor = draw("line", { class: "cursor depth-cursor", y1: DEPTH.top - 12, y2: this.height - DEPTH.axis, visibility: "hidden" });
    this.brush = draw("rect", { class: "depth-brush", y: DEPTH.top - 12, height: this.height - DEPTH.axis - DEPTH.top + 12, visibility: "hidden" });
    this.whole = make("button", { type: "button", onclick: () => this.zoomTo(0, data.length - 1) }, "Whole depth");
    this.room = make("div", { class: "depth-room" });
    this.status = make("output", { class: "quiet", "aria-live": "polite" });
    host.replaceChildren(this.tools(), make("figure", { class: "picture depth" }, this.room));
    drawAtWidth(this.room, (width) => this.draw(width));
  }

  tools() {
    const { data } = this;
    const scales = data.scales();
    const chooser = scales.length > 1 ? [makeSwitch("Error as", Object.fromEntries(scales.map((key) => [key, ERROR_SCALES[key].title])), this.scaleName, (key) => {
      this.scaleName = /** @type {ErrorScale} */ (key);
      this.redraw();
    })] : [];
    return make("div", { class: "tools depth-tools" }, this.keys(), this.status, ...chooser, this.whole);
  }

  keys() {
    const { data } = this;
    /** @type {(name: string, words: string) => HTMLElement} */
    const key = (name, words) => make("span", { class: `key ${name}` }, make("bdi", {}, shortened(words, 60)));
    const curves = data.curves.map((words, place) => key(`key-series series-${place}`, words));
    const kinds = new Set(data.ranges ? Array.from({ length: data.length }, (_, row) => data.rangeKind(row)) : []);
    return make("span", { class: "keys" }, ...curves,
      ...(data.kept.length ? [key("key-kept", "kept")] : []),
      ...(kinds.has("over") ? [key("key-over", "values overflow")] : []),
      ...(kinds.has("under") ? [key("key-under", "values vanish")] : []));
  }

  get height() {
    const ranges = this.data.ranges ? DEPTH.gap + DEPTH.ranges : 0;
    return DEPTH.top + DEPTH.errors + ranges + DEPTH.axis;
  }

  /** @param {number} width */
  draw(width) {
    const { data } = this;
    const inner = scale(this.from - 0.5, this.to + 0.5, DEPTH.left, width - DEPTH.right);
    const pitch = (width - DEPTH.left - DEPTH.right) / (this.to - this.from + 1);
    this.sight = { from: this.from, to: this.to, x: inner, width, pitch, crowded: pitch < 1 };
    /** @type {(ErrorPanel | RangePanel)[]} */
    const panels = [new ErrorPanel(data, this.sight, this.scaleName, DEPTH.top)];
    if (data.ranges) panels.push(new RangePanel(data, data.ranges, this.sight, DEPTH.top + DEPTH.errors + DEPTH.gap));
    this.cursor.setAttribute("visibility", "hidden");
    this.svg = draw("svg", {
      height: this.height, viewBox: `0 0 ${width} ${this.height}`, role: "application", "aria-roledescription": "divergence chart", tabindex: 0,
      "aria-label": `${this.label}: ${counted(data.length, "layer")} in the order of execution. Arrow keys go through them, Enter selects, plus and minus zoom, Escape shows the whole depth.`,
    }, ...this.marks(), ...panels.flatMap((panel) => panel.parts()), ...this.axis(width), this.brush, this.cursor);
    this.listen();
    const hadFocus = this.room.contains(document.activeElement);
    this.room.replaceChildren(this.svg);
    if (hadFocus) this.svg.focus({ preventScroll: true });
    this.whole.disabled = this.from === 0 && this.to === data.length - 1;
    this.status.textContent = this.whole.disabled ? "" : `layers ${count(data.position[this.from])} to ${count(data.position[this.to])}`;
  }

  // Mark the rows that are selected in the table; a limited number of lines.
  marks() {
    const rows = [...this.marked].filter((row) => row >= this.from && row <= this.to).slice(0, 500);
    const bottom = this.height - DEPTH.axis;
    return [draw("path", { class: "depth-marked", d: rows.map((row) => `M${this.sight.x(row).toFixed(1)} ${DEPTH.top - 4}V${bottom}`).join("") })];
  }

  /** @param {number[]} rows */
  mark(rows) {
    this.marked = new Set(rows);
    this.svg.querySelector(".depth-marked")?.replaceWith(...this.marks());
  }

  /** @param {number} width */
  axis(width) {
    const y = this.height - DEPTH.axis + 17;
    const { position } = this.data;
    const [low, high] = [position[this.from], position[this.to]];
    const round = ticks(low, Math.max(high, low + 1), Math.max(2, Math.floor((width - DEPTH.left) / 110)));
    // Not every node was compared: a label is at the first layer from its number on.
    const rows = [...new Set(round.map((tick) => position.findIndex((layerPlace) => layerPlace >= tick)))].filter((row) => row >= this.from && row <= this.to);
    return [
      ...rows.map((row) => draw("text", { x: this.sight.x(row), y, "text-anchor": "middle" }, count(this.data.position[row]))),
      draw("text", { x: 0, y }, "layer"),
    ];
  }

  redraw() {
    if (this.sight.width) this.draw(this.sight.width);
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  zoomTo(from, to) {
    const last = this.data.length - 1;
    const least = Math.min(last, 7);
    let [low, high] = [Math.max(0, Math.round(Math.min(from, to))), Math.min(last, Math.round(Math.max(from, to)))];
    if (high - low < least) {
      low = Math.max(0, Math.min(Math.round((low + high - least) / 2), last - least));
      high = low + least;
    }
    [this.from, this.to] = [low, high];
    this.hide();
    this.redraw();
  }

  /**
   * @param {number} factor
   * @param {number} around a row, -1 for the middle
   */
  zoomBy(factor, around) {
    const middle = around < 0 ? (this.from + this.to) / 2 : around;
    this.zoomTo(middle - (middle - this.from) * factor, middle + (this.to - middle) * factor);
  }

  /** @param {number} clientX */
  rowAt(clientX) {
    const box = this.svg.getBoundingClientRect();
    const across = (clientX - box.left - DEPTH.left) / (box.width - DEPTH.left - DEPTH.right);
    const row = Math.floor(this.from + across * (this.to - this.from + 1));
    return Math.min(this.to, Math.max(this.from, row));
  }

  listen() {
    const { svg } = this;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      const row = this.rowAt(event.clientX);
      this.drag = { from: row, to: row, x: event.clientX, moved: false };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => (this.drag ? this.dragTo(this.drag, event) : this.point(this.rowAt(event.clientX), event.clientY)));
    svg.addEventListener("pointerup", (event) => this.release(event));
    svg.addEventListener("pointercancel", () => this.release(null));
    svg.addEventListener("pointerleave", () => this.hide());
    svg.addEventListener("click", (event) => event.pointerType === "touch" && this.pick(this.rowAt(event.clientX)));
    svg.addEventListener("dblclick", () => this.zoomTo(0, this.data.length - 1));
    svg.addEventListener("blur", () => this.hide());
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  /**
   * @param {NonNullable<DepthChart["drag"]>} drag
   * @param {PointerEvent} event
   */
  dragTo(drag, event) {
    if (!drag.moved && Math.abs(event.clientX - drag.x) < 5) return;
    drag.moved = true;
    tooltip.hide();
    drag.to = this.rowAt(event.clientX);
    const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    const x = this.sight.x(low - 0.5);
    for (const [key, value] of [["x", x], ["width", this.sight.x(high + 0.5) - x], ["visibility", "visible"]]) this.brush.setAttribute(String(key), String(value));
    this.status.textContent = counted(high - low + 1, "layer");
  }

  /** @param {PointerEvent | null} event */
  release(event) {
    const { drag } = this;
    this.drag = null;
    this.brush.setAttribute("visibility", "hidden");
    if (!drag || !event) return;
    if (drag.moved) this.zoomTo(drag.from, drag.to);
    else this.pick(this.rowAt(event.clientX));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (by) this.step(by);
    else if (event.key === "Home" || event.key === "End") this.point(event.key === "Home" ? this.from : this.to);
    else if (event.key === "Enter" && this.now >= 0) this.pick(this.now);
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.5, this.now);
    else if (event.key === "-") this.zoomBy(2, this.now);
    else if (event.key === "Escape") this.zoomTo(0, this.data.length - 1);
    else return;
    event.preventDefault();
  }

  /**
   * Move from the current layer, or from the layer where divergence starts.
   * @param {number} by
   */
  step(by) {
    const start = this.data.first ?? this.from;
    const row = this.now < 0 ? start : Math.min(this.data.length - 1, Math.max(0, this.now + by));
    const span = this.to - this.from;
    if (row < this.from) this.zoomTo(row, row + span);
    else if (row > this.to) this.zoomTo(row - span, row);
    this.point(row);
  }

  /**
   * @param {number} row
   * @param {number} [clientY]
   */
  point(row, clientY) {
    this.now = row;
    const box = this.svg.getBoundingClientRect();
    const x = this.sight.x(row);
    for (const [key, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.cursor.setAttribute(String(key), String(value));
    tooltip.show(box.left + x, clientY ?? box.top + DEPTH.top + 60, this.data.about(row, this.scaleName));
  }

  hide() {
    this.now = -1;
    this.cursor.setAttribute("visibility", "hidden");
    tooltip.hide();
  }
}

// The chart, and the table of all layers, which is built when it is first opened.

/**
 * The error of a curve, if it was measured in this way for any layer.
 * @param {DepthData} data
 * @param {number} place
 * @param {ErrorKind} of
 * @returns {Column[]}
 */
function errorColumns(data, place, of) {
  const [curve, values] = [data.curves[place], data[of][place]];
  if (!data[of].some((known) => known.some((value) => value !== null))) return [];
  const bound = of === "error" && data.bound ? data.bound.error : Infinity;
  return [{
    key: `${of}${place}`, label: of === "error" ? `${shortened(curve, 14)}: error` : "1 − cosine", longLabel: `${shortened(curve, 40)}: ${ERROR_SCALES[of].title}`,
    csvLabel: `${curve} ${of === "error" ? "relative_error" : "1-cosine"}`, width: "minmax(112px, 0.7fr)", numeric: true, right: true, hidden: of === "distance" && place > 0,
    value: (row) => (values[row] === NOT_FINITE ? Infinity : values[row]), format: (_, row) => (values[row] === null ? "" : data.errorWords(place, row, of)),
    tone: (row) => (values[row] === NOT_FINITE || (values[row] ?? 0) > bound ? "bad" : ""),
    csv: (row) => (values[row] === NOT_FINITE ? "not finite" : values[row] ?? ""),
  }];
}

/** @param {number} value */
const partText = (value) => (value === 0 ? "0" : value < 0.001 ? "< 0.1 %" : share(value));

/**
 * The ranges of the layers' values.
 * @param {DepthData} data
 * @returns {Column[]}
 */
function rangeColumns(data) {
  const { ranges } = data;
  if (!ranges) return [];
  /** @type {(key: Exclude<keyof DepthRanges, "nonfinite">, label: string, format: (value: number) => string, tone?: (row: number) => string) => Column} */
  const range = (key, label, format, tone) => ({
    key, label, width: "minmax(92px, 0.6fr)", numeric: true, right: true, hidden: key === "subnormal_share" || key === "rms",
    value: (row) => ranges[key][row], format: (value) => (value === null ? "" : format(value)), csv: (row) => ranges[key][row] ?? "", tone,
  });
  const values = [
    range("largest_abs", "Largest", plainNumber, (row) => (data.rangeKind(row) === "over" ? "bad" : "")),
    range("smallest_abs", "Smallest", plainNumber), range("rms", "RMS", plainNumber),
  ];
  if (!data.limits) return values;
  return [
    ...values,
    range("beyond_share", "Beyond", partText, (row) => ((ranges.beyond_share[row] ?? 0) > 0 ? "bad" : "")),
    range("vanishing_share", "Vanish", partText), range("subnormal_share", "Subnormal", partText),
  ];
}

/**
 * @param {DepthData} data
 * @returns {Column[]}
 */
function depthColumns(data) {
  /** @param {number} row */
  const marks = (row) => [row === data.first ? "starts here" : "", data.isKept.has(row) ? "kept" : ""].filter(Boolean).join(", ");
  return [
    { key: "index", label: "#", width: "64px", numeric: true, right: true, position: true, value: (row) => data.position[row], format: count },
    { key: "node", label: "Node", width: "minmax(170px, 1.6fr)", mono: true, value: (row) => data.node[row] },
    { key: "type", label: "Type", width: "minmax(120px, 0.8fr)", tally: true, value: (row) => data.op_type[row] },
    { key: "tensor", label: "Tensor", width: "minmax(150px, 1fr)", mono: true, hidden: true, value: (row) => data.tensor[row] },
    { key: "dims", label: "Dims", width: "minmax(120px, 0.7fr)", hidden: true, value: (row) => data.dims[row] },
    ...data.curves.flatMap((_, place) => [...errorColumns(data, place, "error"), ...errorColumns(data, place, "distance")]),
    ...rangeColumns(data),
    { key: "mark", label: "Mark", width: "minmax(96px, 0.5fr)", value: marks, element: (value) => make("span", { class: "point-mark tie" }, value) },
  ];
}

/**
 * @param {TableModel} model
 * @param {DepthData} data
 */
function describeDepth(model, data) {
  if (model.selected.size !== 1) {
    return [make("p", {}, model.selected.size ? `${counted(model.selected.size, "layer")} selected, marked in the chart.` : "Select a layer for its details; a click on the chart selects one.")];
  }
  const [row] = model.selected;
  const list = make("dl");
  /** @type {(label: string, value: string) => void} */
  const add = (label, value) => value && list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, value)));
  add("Layer", `#${data.position[row]} ${data.called(row)}`);
  add("Tensor", `${data.tensor[row]} ${data.dims[row]}`.trim());
  data.curves.forEach((curve, place) => add(curve, data.scales().map((key) => `${ERROR_SCALES[key].title} ${data.errorWords(place, row, key)}`).join(", ")));
  add("Reference", data.rangeWords(row));
  return [list];
}

class DepthPart {
  /**
   * @param {HTMLElement} host
   * @param {DepthCurves} curves
   * @param {{label: string, file: string}} names
   */
  constructor(host, curves, { label, file }) {
    /** @type {TableView | null} built when it is first opened */
    this.table = null;
    this.data = new DepthData(curves);
    this.label = label;
    this.file = file;
    this.room = make("div");
    const chart = make("div");
    this.folder = make("details", { class: "plain depth-table" }, make("summary", {}, `All ${counted(this.data.length, "layer")} as a table`), this.room);
    host.replaceChildren(chart, this.folder);
    this.chart = new DepthChart(chart, this.data, { label, pick: (row) => this.choose([row]) });
    this.folder.addEventListener("toggle", () => this.folder.open && this.build());
  }

  build() {
    return this.table ??= new TableView(this.room, new TableModel(depthColumns(this.data), this.data.length), {
      label: "layers by divergence", file: this.file, describe: (model) => describeDepth(model, this.data), selected: (rows) => this.chart.mark(rows),
    });
  }

  /** @param {number[]} rows */
  choose(rows) {
    this.folder.open = true;
    const table = this.build();
    table.choose(rows);
    table.tools.scrollIntoView({ block: "nearest" });
  }
}

/** @param {ReportData} data */
export function show({ panels }) {
  const depths = [...(panels.precision?.depths ?? []), ...(panels.accuracy ?? [])];
  /** @type {Map<number, DepthPart>} */
  const parts = new Map();
  for (const host of all('[data-live="depth"]')) {
    const place = Number(host.dataset.depth);
    const depth = depths[place];
    if (depth) parts.set(place, new DepthPart(host, depth, { label: host.dataset.label ?? "", file: host.dataset.file ?? "layers.csv" }));
  }
  // From a kept node to its place in the chart.
  for (const button of all("[data-depth-row]")) {
    const [depth, row] = (button.dataset.depthRow ?? "").split(",").map(Number);
    button.addEventListener("click", () => parts.get(depth)?.choose([row]));
  }
}
