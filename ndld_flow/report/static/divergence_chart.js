// Divergence along the depth of a network: hover and arrows read it, a drag zooms, a click finds the layer in the table.

class DepthChart {
  // `pick(row)` hears which layer was chosen.
  constructor(host, data, { label, pick }) {
    Object.assign(this, { data, label, pick, from: 0, to: data.length - 1, now: -1, drag: null, marked: new Set() });
    const [scaleName] = data.scales();
    this.scaleName = scaleName ?? "error";
    this.room = make("div", { class: "depth-room" });
    this.said = make("output", { class: "quiet", "aria-live": "polite" });
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
    return make("div", { class: "tools depth-tools" }, this.keys(), this.said, ...chooser, this.whole);
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
    this.said.textContent = this.whole.disabled ? "" : `layers ${count(data.position[this.from])} to ${count(data.position[this.to])}`;
  }

  // Only lines, and not too many of them: what is selected in the table.
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
    // Not every node was compared: a label stands at the first layer from its number on.
    const rows = [...new Set(round.map((tick) => position.findIndex((one) => one >= tick)))].filter((row) => row >= this.from && row <= this.to);
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
    for (const [key, value] of [["x", x], ["width", this.sight.x(high + 0.5) - x], ["visibility", "visible"]]) this.brush.setAttribute(key, value);
    this.said.textContent = `${count(high - low + 1)} layers`;
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

  // From where the keyboard is, or from where divergence starts.
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
    for (const [key, value] of [["x1", x], ["x2", x], ["visibility", "visible"]]) this.cursor.setAttribute(key, value);
    tooltip.show(box.left + x, clientY ?? box.top + DEPTH.top + 60, this.data.about(row, this.scaleName));
  }

  hide() {
    this.now = -1;
    this.cursor?.setAttribute("visibility", "hidden");
    tooltip.hide();
  }
}
