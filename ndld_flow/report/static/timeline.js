// One pass on a canvas: lanes, zoom, pan, a ruler to drag, and spans that lead to their layers and back.
//
// Needs, in this order: quantities.js, elements.js, axis.js, tooltip.js, pictures.js, timeline_data.js, timeline_sight.js,
// timeline_paint.js, timeline_mouse.js, timeline_keys.js.

const SPAN_WORDS = { layer: "layer", moving: "reformat, quantize, cast or copy", overhead: "overhead", transfer: "transfer", pass: "whole pass" };

class Timeline {
  // `data` is a TimelineData; `pick(row)` hears which layer was clicked; `series` gives the report its colour.
  constructor(host, data, { label, series = 0, pick = () => {} }) {
    Object.assign(this, { data, label, series, pick, marked: [], cursor: -1, ruler: null });
    this.sight = new TimelineSight(data);
    this.build(host);
    this.painter = new TimelinePainter(this.canvas, data, this.sight, series);
    new TimelineMouse(this);
    new TimelineKeys(this);
    this.picture = drawAtWidth(this.canvas.parentElement, (width) => this.resize(width));
    this.say();
  }

  build(host) {
    const help = `keys-${Math.random().toString(36).slice(2)}`;
    this.canvas = make("canvas", {
      tabindex: 0,
      role: "application",
      "aria-roledescription": "timeline",
      "aria-label": `Timeline of ${shortened(this.label, 60)}: ${count(this.data.length)} spans in ${milliseconds(this.data.total)}`,
      "aria-describedby": help,
    });
    this.output = make("output", { class: "small", "aria-live": "polite" });
    const button = (text, title, act) => make("button", { type: "button", title, "aria-label": title, onclick: act }, text);
    this.tools = make("div", { class: "tools" },
      this.legend(),
      this.output,
      button("−", "Zoom out", () => this.zoom(2)),
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("Whole pass", "Show the whole pass", () => this.show(0, this.data.total)));
    host.replaceChildren(this.tools,
      make("div", { class: "timeline" }, this.canvas),
      make("div", { class: "timeline-help quiet small", id: help },
        make("p", {}, "Drag to measure, click a span for its layer, Shift and drag to move, Ctrl and wheel to zoom; after a click the wheel alone zooms."),
        make("p", {}, "Arrows go from span to span, + and − zoom, Shift and arrows move, Enter picks, M measures from here, Escape clears, 0 shows all.")));
  }

  legend() {
    const kinds = Object.keys(SPAN_WORDS).filter((kind) => this.data.kind.includes(kind));
    return make("span", { class: "keys" }, ...kinds.map((kind) =>
      make("span", { class: `key key-${SPAN_TONES[kind]} series-${this.series}` }, SPAN_WORDS[kind])));
  }

  resize(width) {
    this.sight.resize(width);
    this.painter.resize();
    this.painter.paint(this);
  }

  // Whatever changes what is in sight comes through here.
  show(from, to) {
    this.sight.set(from, to);
    this.repaint();
    this.say();
  }

  zoom(factor, center) {
    this.show(...this.sight.zoomed(factor, center));
  }

  move(by) {
    this.show(...this.sight.moved(by));
  }

  // A short move shows where one got to; those who asked for less motion get there at once.
  glide(from, to) {
    const begin = { from: this.sight.from, to: this.sight.to, at: performance.now() };
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.show(from, to);
    const step = (now) => {
      const part = Math.min(1, (now - begin.at) / 160);
      const eased = 1 - (1 - part) ** 3;
      this.show(begin.from + (from - begin.from) * eased, begin.to + (to - begin.to) * eased);
      if (part < 1) requestAnimationFrame(step);
    };
    return requestAnimationFrame(step);
  }

  reveal(span) {
    const long = this.data.duration[span];
    const { from, to, width } = this.sight;
    const wide = (long / (to - from)) * (width || 1000);
    const middle = this.data.start[span] + long / 2;
    if (wide > 12 && middle > from && middle < to) return;
    this.glide(middle - Math.max(long, this.data.total / 1e5) * 8, middle + Math.max(long, this.data.total / 1e5) * 8);
  }

  // Once for each frame, however many wheel events there were.
  repaint() {
    if (!this.sight.width || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.painter.paint(this);
    });
  }

  // Rows of the table that are selected: their spans are outlined, and one that is alone is brought into sight.
  mark(rows, reveal = false) {
    this.marked = rows.flatMap((row) => this.data.ofLayer.get(row) ?? []);
    const [first] = this.marked;
    if (reveal && rows.length === 1 && first !== undefined) this.reveal(first);
    this.repaint();
  }

  choose(span) {
    this.cursor = span;
    this.marked = [span];
    this.say();
    this.repaint();
    if (this.data.layer[span] >= 0) this.pick(this.data.layer[span]);
  }

  // The two times of the ruler in order, or null.
  get measured() {
    return this.ruler && [Math.min(...this.ruler), Math.max(...this.ruler)];
  }

  say(text) {
    if (text === undefined && this.ruler) {
      const [low, high] = this.measured;
      text = `${milliseconds(low)} to ${milliseconds(high)}: ${milliseconds(high - low)}`;
    }
    const { from, to } = this.sight;
    const whole = to - from >= this.data.total * 0.999999;
    this.output.textContent = text ?? (whole ? `${milliseconds(this.data.total)} in all` : `${milliseconds(from)} to ${milliseconds(to)} of ${milliseconds(this.data.total)}`);
  }

  describe(span) {
    const { data } = this;
    const lines = [shortened(data.name[span], 120) || "(no name)",
      `${SPAN_WORDS[data.kind[span]]}, ${data.lanes[data.lane[span]]}`,
      `${milliseconds(data.duration[span])} from ${milliseconds(data.start[span])}, ${share(data.duration[span] / data.total)} of the pass`];
    return lines.join("\n");
  }
}
