// Errors of two models layer by layer: a chart over the depth of the model, and a table.

import { drawAtWidth, scale, ticks } from "../static/charts.js";
import { all, draw, make, shortened } from "../static/elements.js";
import { count, plainNumber, share } from "../static/quantities.js";
import { TableModel, TableView } from "../static/table.js";
import { makeSwitch, tooltip } from "../static/widgets.js";
import { DEPTH, DepthData, ERROR_SCALES, ErrorPanel, NOT_FINITE, RangePanel } from "../static/report/depth_panels.js";

// A chart of errors along the depth of a network: pointer and arrows read it, a drag zooms, a click selects the layer.

class DepthChart {
  /**
   * `pick(row)` is called for the layer that was selected.
   * @param {HTMLElement} host
   * @param {DepthData} data
   */
  constructor(host, data, { label, pick }) {
    this.data = data;
    this.label = label;
    this.pick = pick;
    this.from = 0;
    this.to = data.length - 1;
    this.now = -1;
    this.drag = null;
    this.marked = new Set();
    const [scaleName] = data.scales();
    this.scaleName = scaleName ?? "error";
    this.room = make("div", { class: "depth-room" });
    this.status = make("output", { class: "quiet", "aria-live": "polite" });
    host.replaceChildren(this.tools(), make("figure", { class: "picture depth" }, this.room));
    drawAtWidth(this.room, (width) => this.draw(width));
  }

  tools() {
    const { data } = this;
    const scales = data.scales();
    const chooser = scales.length > 1 ? [makeSwitch("Error as", Object.fromEntries(scales.map((key) => [key, ERROR_SCALES[key].title])), this.scaleName, (key) => {
      this.scaleName = key;
      this.redraw();
    })] : [];
    this.whole = make("button", { type: "button", onclick: () => this.zoomTo(0, data.length - 1) }, "Whole depth");
    return make("div", { class: "tools depth-tools" }, this.keys(), this.status, ...chooser, this.whole);
  }

  keys() {
    const { data } = this;
    const key = (name, words) => make("span", { class: `key ${name}` }, make("bdi", {}, shortened(words, 60)));
    const curves = data.curves.map((words, place) => key(`key-series series-${place}`, words));
    const kinds = new Set(data.ranges ? Array.from({ length: data.length }, (_, row) => data.rangeKind(row)) : []);
    return make("span", { class: "keys" }, ...curves,
      ...(data.keptRows.length ? [key("key-kept", "kept")] : []),
      ...(kinds.has("over") ? [key("key-over", "values overflow")] : []),
      ...(kinds.has("under") ? [key("key-under", "values vanish")] : []));
  }

  get height() {
    const ranges = this.data.ranges ? DEPTH.gap + DEPTH.ranges : 0;
    return DEPTH.top + DEPTH.errors + ranges + DEPTH.axis;
  }

  draw(width) {
    const { data } = this;
    const inner = scale(this.from - 0.5, this.to + 0.5, DEPTH.left, width - DEPTH.right);
    const pitch = (width - DEPTH.left - DEPTH.right) / (this.to - this.from + 1);
    this.sight = { from: this.from, to: this.to, x: inner, width, pitch, crowded: pitch < 1 };
    /** @type {(ErrorPanel | RangePanel)[]} */
    const panels = [new ErrorPanel(data, this.sight, this.scaleName, DEPTH.top)];
    if (data.ranges) panels.push(new RangePanel(data, this.sight, DEPTH.top + DEPTH.errors + DEPTH.gap));
    this.cursor = draw("line", { class: "cursor depth-cursor", y1: DEPTH.top - 12, y2: this.height - DEPTH.axis, visibility: "hidden" });
    this.brush = draw("rect", { class: "depth-brush", y: DEPTH.top - 12, height: this.height - DEPTH.axis - DEPTH.top + 12, visibility: "hidden" });
    this.svg = draw("svg", {
      height: this.height, viewBox: `0 0 ${width} ${this.height}`, role: "application", "aria-roledescription": "divergence chart", tabindex: 0,
      "aria-label": `${this.label}: ${count(data.length)} layers in the order of execution. Arrow keys go through them, Enter selects, plus and minus zoom, Escape shows the whole depth.`,
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

  mark(rows) {
    this.marked = new Set(rows);
    if (!this.svg) return;
    const old = this.svg.querySelector(".depth-marked");
    old.replaceWith(...this.marks());
  }

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
    if (this.sight) this.draw(this.sight.width);
  }

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

  zoomBy(factor, around) {
    const middle = around < 0 ? (this.from + this.to) / 2 : around;
    this.zoomTo(middle - (middle - this.from) * factor, middle + (this.to - middle) * factor);
  }

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
      this.drag = { from: this.rowAt(event.clientX), x: event.clientX, moved: false };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => (this.drag ? this.dragTo(event) : this.point(this.rowAt(event.clientX), event.clientY)));
    svg.addEventListener("pointerup", (event) => this.release(event));
    svg.addEventListener("pointercancel", () => this.release(null));
    svg.addEventListener("pointerleave", () => this.hide());
    svg.addEventListener("click", (event) => event.pointerType === "touch" && this.pick(this.rowAt(event.clientX)));
    svg.addEventListener("dblclick", () => this.zoomTo(0, this.data.length - 1));
    svg.addEventListener("blur", () => this.hide());
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  dragTo(event) {
    const { drag } = this;
    if (!drag.moved && Math.abs(event.clientX - drag.x) < 5) return;
    drag.moved = true;
    tooltip.hide();
    drag.to = this.rowAt(event.clientX);
    const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to)];
    const x = this.sight.x(low - 0.5);
    for (const [key, value] of [["x", x], ["width", this.sight.x(high + 0.5) - x], ["visibility", "visible"]]) this.brush.setAttribute(String(key), String(value));
    this.status.textContent = `${count(high - low + 1)} layers`;
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    this.brush.setAttribute("visibility", "hidden");
    if (!drag || !event) return;
    if (drag.moved) this.zoomTo(drag.from, drag.to);
    else this.pick(this.rowAt(event.clientX));
  }

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

  // Move from the current layer, or from the layer where divergence starts.
  step(by) {
    const start = this.data.first ?? this.from;
    const row = this.now < 0 ? start : Math.min(this.data.length - 1, Math.max(0, this.now + by));
    const span = this.to - this.from;
    if (row < this.from) this.zoomTo(row, row + span);
    else if (row > this.to) this.zoomTo(row - span, row);
    this.point(row);
  }

  point(row, clientY) {
    this.now = row;
    const box = this.svg.getBoundingClientRect();
    const x = this.sight.x(row);
    for (const [key, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.cursor.setAttribute(String(key), String(value));
    tooltip.show(box.left + x, clientY ?? box.top + DEPTH.top + 60, this.data.about(row, this.scaleName));
  }

  hide() {
    this.now = -1;
    this.cursor?.setAttribute("visibility", "hidden");
    tooltip.hide();
  }
}

// The chart, and the table of all layers, which is built when it is first opened.

/** @param {DepthData} data */
function depthColumns(data) {
  const known = (value) => (value === NOT_FINITE ? Infinity : value);
  const errors = data.curves.flatMap((curve, place) => ["error", "distance"].filter((of) => data[of].some((values) => values.some((value) => value !== null))).map((of) => ({
    key: `${of}${place}`, label: of === "error" ? `${shortened(curve, 14)}: error` : "1 − cosine", longLabel: `${shortened(curve, 40)}: ${ERROR_SCALES[of].title}`,
    csvLabel: `${curve} ${of === "error" ? "relative_error" : "1-cosine"}`, width: "minmax(112px, 0.7fr)", numeric: true, right: true, hidden: of === "distance" && place > 0,
    value: (row) => known(data[of][place][row]), format: (_, row) => (data[of][place][row] === null ? "" : data.errorWords(place, row, of)),
    tone: (row) => (data[of][place][row] === NOT_FINITE || (of === "error" && data.bound && data.error[place][row] > data.bound.error) ? "bad" : ""),
    csv: (row) => (data[of][place][row] === NOT_FINITE ? "not finite" : data[of][place][row] ?? ""),
  })));
  const range = (key, label, format, tone = (_row) => "") => ({
    key, label, width: "minmax(92px, 0.6fr)", numeric: true, right: true, hidden: key === "subnormal_share" || key === "rms",
    value: (row) => data.ranges[key][row], format: (value) => (value === null ? "" : format(value)), csv: (row) => data.ranges[key][row] ?? "", tone,
  });
  const part = (value) => (value === 0 ? "0" : value < 0.001 ? "< 0.1 %" : share(value));
  const ranges = data.ranges ? [
    range("largest_abs", "Largest", plainNumber, (row) => (data.rangeKind(row) === "over" ? "bad" : "")), range("smallest_abs", "Smallest", plainNumber), range("rms", "RMS", plainNumber),
    ...(data.limits ? [range("beyond_share", "Beyond", part, (row) => (data.ranges.beyond_share[row] > 0 ? "bad" : "")), range("vanishing_share", "Vanish", part), range("subnormal_share", "Subnormal", part)] : []),
  ] : [];
  const marks = (row) => [row === data.first ? "starts here" : "", data.kept.has(row) ? "kept" : ""].filter(Boolean).join(", ");
  return [
    { key: "index", label: "#", width: "64px", numeric: true, right: true, position: true, value: (row) => data.position[row], format: count },
    { key: "node", label: "Node", width: "minmax(170px, 1.6fr)", mono: true, value: (row) => data.node[row] },
    { key: "type", label: "Type", width: "minmax(120px, 0.8fr)", tally: true, value: (row) => data.op_type[row] },
    { key: "tensor", label: "Tensor", width: "minmax(150px, 1fr)", mono: true, hidden: true, value: (row) => data.tensor[row] },
    { key: "dims", label: "Dims", width: "minmax(120px, 0.7fr)", hidden: true, value: (row) => data.dims[row] },
    ...errors, ...ranges,
    { key: "mark", label: "Mark", width: "minmax(96px, 0.5fr)", value: marks, element: (value) => make("span", { class: "point-mark tie" }, value) },
  ];
}

/**
 * @param {TableModel} model
 * @param {DepthData} data
 */
function describeDepth(model, data) {
  if (model.selected.size !== 1) {
    return [make("p", {}, model.selected.size ? `${count(model.selected.size)} layers selected: they are marked in the chart.` : "Select a layer for its details; a click on the chart selects one.")];
  }
  const [row] = model.selected;
  const list = make("dl");
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
   * @param {DepthPayload} packed
   * @param {string[]} texts
   * @param {{label: string, file: string}} names
   */
  constructor(host, packed, texts, { label, file }) {
    /** Made when it is first opened. */
    this.table = null;
    this.data = new DepthData(packed, texts);
    this.label = label;
    this.file = file;
    this.room = make("div");
    const chart = make("div");
    this.folder = make("details", { class: "plain depth-table" }, make("summary", {}, `All ${count(this.data.length)} layers as a table`), this.room);
    host.replaceChildren(chart, this.folder);
    this.chart = new DepthChart(chart, this.data, { label, pick: (row) => this.choose([row]) });
    this.folder.addEventListener("toggle", () => this.folder.open && this.build());
  }

  build() {
    this.table ??= new TableView(this.room, new TableModel(depthColumns(this.data), this.data.length), {
      label: "layers by divergence", file: this.file, describe: (model) => describeDepth(model, this.data), selected: (rows) => this.chart.mark(rows),
    });
  }

  choose(rows) {
    this.folder.open = true;
    this.build();
    this.table.choose(rows);
    this.table.tools.scrollIntoView({ block: "nearest" });
  }

  // The layer of a node, from elsewhere on the page.
  rowOf(node) {
    return this.data.node.indexOf(node);
  }
}

/** @param {ReportPayload} payload */
export function show(payload) {
  const parts = new Map();
  for (const host of all('[data-live="depth"]')) {
    const place = Number(host.dataset.depth);
    parts.set(place, new DepthPart(host, payload.depths[place], payload.texts, { label: host.dataset.label, file: host.dataset.file }));
  }
  // From a kept node to its place in the chart.
  for (const button of all("[data-depth-row]")) {
    const [depth, row] = button.dataset.depthRow.split(",").map(Number);
    button.addEventListener("click", () => parts.get(depth)?.choose([row]));
  }
}
