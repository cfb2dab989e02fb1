// One pass on a canvas: lanes, zoom, pan, a ruler to drag, and spans that lead to their layers and back.

const SPAN_ROW = 24;
const RULER = 26;
const OVERVIEW = 12;
const SPAN_TONES = { layer: "series", moving: "moving", overhead: "overhead", transfer: "transfer", pass: "before" };
const SPAN_WORDS = { layer: "layer", moving: "reformat, cast or copy", overhead: "overhead", transfer: "transfer", pass: "whole pass" };
const MOST_ROWS = 48;

class Timeline {
  // `data` is a TimelineData; `pick(row)` hears which layer was clicked; `series` gives the report its colour.
  constructor(host, data, { label, series = 0, pick = () => {} }) {
    Object.assign(this, { data, label, series, pick, from: 0, to: data.total, marked: [], cursor: -1, ruler: null });
    this.rows = data.rows().slice(0, MOST_ROWS);
    this.rowOf = new Map(this.rows.flatMap((row, place) => row.spans.map((span) => [span, place])));
    this.height = RULER + this.rows.length * SPAN_ROW + OVERVIEW;
    this.build(host);
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
    this.canvas.style.height = `${this.height}px`;
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
    this.listen();
  }

  legend() {
    const kinds = Object.keys(SPAN_WORDS).filter((kind) => this.data.kind.includes(kind));
    return make("span", { class: "keys" }, ...kinds.map((kind) =>
      make("span", { class: `key key-${SPAN_TONES[kind]} series-${this.series}` }, SPAN_WORDS[kind])));
  }

  // Geometry

  resize(width) {
    this.left = width < 560 ? 58 : 92;
    this.width = width;
    const dots = globalThis.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * dots);
    this.canvas.height = Math.round(this.height * dots);
    this.dots = dots;
    this.colors = colorsAt(this.canvas.parentElement, ["ink", "quiet", "line", "paper", "raised", "accent", "selected", "moving", "overhead", "transfer", "before", `series-${this.series}`]);
    this.colors.series = this.colors[`series-${this.series}`];
    this.paint();
  }

  x(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * (this.width - this.left);
  }

  time(x) {
    return this.from + ((x - this.left) / (this.width - this.left)) * (this.to - this.from);
  }

  show(from, to) {
    const least = this.data.total / 2e6;
    const span = Math.min(Math.max(to - from, least), this.data.total);
    this.from = Math.min(Math.max(0, (from + to - span) / 2), this.data.total - span);
    this.to = this.from + span;
    this.repaint();
    this.say();
  }

  zoom(factor, center = (this.from + this.to) / 2) {
    const from = center - (center - this.from) * factor;
    this.show(from, from + (this.to - this.from) * factor);
  }

  move(by) {
    const span = this.to - this.from;
    const from = Math.min(Math.max(0, this.from + by * span), this.data.total - span);
    this.show(from, from + span);
  }

  // Once for each frame, however many wheel events there were.
  repaint() {
    if (!this.width || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  // Painting

  paint() {
    if (!this.width) return;
    const paper = this.canvas.getContext("2d");
    paper.setTransform(this.dots, 0, 0, this.dots, 0, 0);
    paper.clearRect(0, 0, this.width, this.height);
    paper.font = "12px system-ui, sans-serif";
    paper.textBaseline = "middle";
    this.paintRuler(paper);
    this.rows.forEach((row, place) => this.paintRow(paper, row, RULER + place * SPAN_ROW));
    this.paintLabels(paper);
    this.paintMarks(paper);
    if (this.ruler) this.paintMeasure(paper);
    this.paintOverview(paper);
  }

  paintRuler(paper) {
    const { unit, factor } = axisUnit(this.to - this.from < 1 ? this.to - this.from : this.to);
    const marks = ticks(this.from, this.to, (this.width - this.left) / 96);
    const step = marks.length > 1 ? marks[1] - marks[0] : 1;
    paper.textAlign = "left";
    for (const mark of marks) {
      const x = Math.round(this.x(mark)) + 0.5;
      paper.fillStyle = this.colors.line;
      paper.fillRect(x - 0.5, 16, 1, this.height - OVERVIEW - 16);
      paper.fillStyle = this.colors.quiet;
      const text = `${tickText(mark, step, factor)} ${unit}`;
      if (x + 4 + paper.measureText(text).width < this.width) paper.fillText(text, x + 4, 9);
    }
  }

  paintRow(paper, row, top) {
    const { start, kind, name } = this.data;
    let painted = -1;
    let tone = "";
    for (let place = firstFrom(row.spans, start, this.from - row.longest); place < row.spans.length; place++) {
      const span = row.spans[place];
      if (start[span] > this.to) break;
      const x0 = Math.max(this.left, this.x(start[span]));
      const x1 = Math.min(this.width, this.x(this.data.end(span)));
      if (x1 < this.left) continue;
      const wide = Math.max(1, x1 - x0 - (x1 - x0 > 4 ? 1 : 0));
      const pixel = Math.floor(x0);
      // Thousands of spans within one pixel are one stroke.
      if (wide <= 1 && pixel === painted && tone === kind[span]) continue;
      [painted, tone] = [pixel, kind[span]];
      paper.fillStyle = this.colors[SPAN_TONES[kind[span]]];
      paper.fillRect(wide <= 1 ? pixel : x0, top + 3, wide, SPAN_ROW - 6);
      if (wide > 44) this.paintName(paper, name[span], x0, wide, top);
    }
  }

  paintName(paper, name, x, wide, top) {
    const letters = Math.floor((wide - 10) / 6.4);
    paper.fillStyle = this.colors.paper;
    paper.textAlign = "left";
    paper.save();
    paper.beginPath();
    paper.rect(x, top, wide - 4, SPAN_ROW);
    paper.clip();
    paper.fillText(shortened(name, Math.max(letters, 4)), x + 5, top + SPAN_ROW / 2);
    paper.restore();
  }

  paintLabels(paper) {
    paper.fillStyle = this.colors.paper;
    paper.fillRect(0, RULER, this.left - 1, this.height - RULER - OVERVIEW);
    paper.textAlign = "left";
    const letters = this.left < 70 ? 8 : 13;
    this.rows.forEach((row, place) => {
      paper.fillStyle = row.depth ? this.colors.quiet : this.colors.ink;
      const text = row.depth && this.rows[place - 1]?.lane === row.lane ? `  depth ${row.depth}` : this.data.lanes[row.lane];
      paper.fillText(shortened(text, letters), 0, RULER + place * SPAN_ROW + SPAN_ROW / 2);
    });
  }

  outline(paper, span, color, thick) {
    const top = RULER + (this.rowOf.get(span) ?? 0) * SPAN_ROW;
    const x0 = Math.max(this.left, this.x(this.data.start[span]));
    const x1 = Math.min(this.width, this.x(this.data.end(span)));
    if (x1 < this.left || x0 > this.width) return;
    paper.strokeStyle = color;
    paper.lineWidth = thick;
    paper.strokeRect(x0 - 1, top + 1.5, Math.max(2, x1 - x0) + 1, SPAN_ROW - 3);
    // What is too thin to be seen gets a pointer above its lane.
    if (x1 - x0 > 6) return;
    paper.fillStyle = color;
    paper.beginPath();
    paper.moveTo(x0 - 4, top - 3);
    paper.lineTo(x0 + 5, top - 3);
    paper.lineTo(x0 + 0.5, top + 3);
    paper.fill();
  }

  paintMarks(paper) {
    for (const span of this.marked.slice(0, 2000)) this.outline(paper, span, this.colors.ink, 2);
    if (this.cursor >= 0 && document.activeElement === this.canvas) {
      paper.setLineDash([3, 2]);
      this.outline(paper, this.cursor, this.colors.accent, 2);
      paper.setLineDash([]);
    }
  }

  paintMeasure(paper) {
    const [low, high] = this.measured();
    const [x0, x1] = [Math.max(this.left, this.x(low)), Math.min(this.width, this.x(high))];
    if (x1 < this.left || x0 > this.width) return;
    paper.globalAlpha = 0.22;
    paper.fillStyle = this.colors.accent;
    paper.fillRect(x0, 16, Math.max(1, x1 - x0), this.height - OVERVIEW - 16);
    paper.globalAlpha = 1;
    paper.fillRect(x0, 16, 1, this.height - OVERVIEW - 16);
    paper.fillRect(x1 - 1, 16, 1, this.height - OVERVIEW - 16);
  }

  paintOverview(paper) {
    const top = this.height - OVERVIEW + 4;
    const wide = this.width - this.left;
    paper.fillStyle = this.colors.line;
    paper.fillRect(this.left, top, wide, 4);
    paper.fillStyle = this.colors.quiet;
    paper.fillRect(this.left + (this.from / this.data.total) * wide, top, Math.max(3, ((this.to - this.from) / this.data.total) * wide), 4);
  }

  // What it says

  measured() {
    return [Math.min(...this.ruler), Math.max(...this.ruler)];
  }

  say(text) {
    if (text === undefined && this.ruler) {
      const [low, high] = this.measured();
      text = `${milliseconds(low)} to ${milliseconds(high)}: ${milliseconds(high - low)}`;
    }
    const whole = this.to - this.from >= this.data.total * 0.999999;
    this.output.textContent = text ?? (whole ? `${milliseconds(this.data.total)} in all` : `${milliseconds(this.from)} to ${milliseconds(this.to)} of ${milliseconds(this.data.total)}`);
  }

  describe(span) {
    const { data } = this;
    const lines = [shortened(data.name[span], 120) || "(no name)",
      `${SPAN_WORDS[data.kind[span]]}, ${data.lanes[data.lane[span]]}`,
      `${milliseconds(data.duration[span])} from ${milliseconds(data.start[span])}, ${share(data.duration[span] / data.total)} of the pass`];
    return lines.join("\n");
  }

  // Rows of the table that are selected: their spans are outlined, and one that is alone is brought into sight.
  mark(rows, reveal = false) {
    this.marked = rows.flatMap((row) => this.data.ofLayer.get(row) ?? []);
    const [first] = this.marked;
    if (reveal && rows.length === 1 && first !== undefined) this.reveal(first);
    this.repaint();
  }

  reveal(span) {
    const long = this.data.duration[span];
    const wide = (long / (this.to - this.from)) * (this.width || 1000);
    const middle = this.data.start[span] + long / 2;
    if (wide > 12 && middle > this.from && middle < this.to) return;
    this.glide(middle - Math.max(long, this.data.total / 1e5) * 8, middle + Math.max(long, this.data.total / 1e5) * 8);
  }

  // A short move shows where one got to; those who asked for less motion get there at once.
  glide(from, to) {
    const begin = { from: this.from, to: this.to, at: performance.now() };
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.show(from, to);
    const step = (now) => {
      const part = Math.min(1, (now - begin.at) / 160);
      const eased = 1 - (1 - part) ** 3;
      this.show(begin.from + (from - begin.from) * eased, begin.to + (to - begin.to) * eased);
      if (part < 1) requestAnimationFrame(step);
    };
    return requestAnimationFrame(step);
  }

  // Listening

  spanAt(x, y) {
    const row = this.rows[Math.floor((y - RULER) / SPAN_ROW)];
    if (!row || x < this.left) return -1;
    const { start } = this.data;
    const reach = ((this.to - this.from) / (this.width - this.left)) * 3;
    const time = this.time(x);
    let best = -1;
    for (let place = firstFrom(row.spans, start, time - row.longest - reach); place < row.spans.length; place++) {
      const span = row.spans[place];
      if (start[span] > time + reach) break;
      if (start[span] <= time && this.data.end(span) >= time) best = span;
      else if (best < 0 && this.data.end(span) + reach >= time) best = span;
    }
    return best;
  }

  // The edge of a span that is near enough to be meant.
  snapped(x, y) {
    const span = this.spanAt(x, y);
    const edges = span < 0 ? [] : [this.data.start[span], this.data.end(span)];
    const near = edges.find((edge) => Math.abs(this.x(edge) - x) < 5);
    return Math.min(this.data.total, Math.max(0, near ?? this.time(x)));
  }

  listen() {
    const { canvas } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [x, y] = place(event);
      this.drag = { x, y, last: x, moving: event.shiftKey || event.pointerType === "touch", moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (this.drag) this.dragTo(x, y);
      else this.hover(event, x, y);
    });
    canvas.addEventListener("pointerup", () => {
      const { drag } = this;
      this.drag = null;
      if (drag && !drag.moved) this.click(drag.x, drag.y);
    });
    canvas.addEventListener("pointerleave", () => tooltip.hide());
    canvas.addEventListener("dblclick", (event) => {
      const span = this.spanAt(...place(event));
      if (span >= 0) this.glide(this.data.start[span] - this.data.duration[span] * 0.2, this.data.end(span) + this.data.duration[span] * 0.2);
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event, place(event)[0]), { passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.repaint());
    canvas.addEventListener("blur", () => {
      tooltip.hide();
      this.repaint();
    });
  }

  dragTo(x, y) {
    const { drag } = this;
    if (!drag.moved && Math.abs(x - drag.x) < 4) return;
    tooltip.hide();
    if (!drag.moved && !drag.moving) this.ruler = [this.snapped(drag.x, drag.y), 0];
    drag.moved = true;
    if (drag.moving) this.move((drag.last - x) / (this.width - this.left));
    else this.ruler[1] = this.snapped(x, y);
    drag.last = x;
    this.say();
    this.repaint();
  }

  hover(event, x, y) {
    const span = this.spanAt(x, y);
    this.canvas.style.cursor = span >= 0 && this.data.layer[span] >= 0 ? "pointer" : "crosshair";
    if (span < 0) tooltip.hide();
    else tooltip.show(event.clientX, event.clientY, this.describe(span));
  }

  click(x, y) {
    const span = this.spanAt(x, y);
    if (span >= 0) this.choose(span);
  }

  choose(span) {
    this.cursor = span;
    this.marked = [span];
    this.say();
    this.repaint();
    if (this.data.layer[span] >= 0) this.pick(this.data.layer[span]);
  }

  // A page that scrolls must not stop at a timeline: the wheel zooms with Ctrl, or once the timeline was chosen.
  wheel(event, x) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    const meant = event.ctrlKey || event.metaKey || document.activeElement === this.canvas;
    if (!meant) return;
    event.preventDefault();
    const by = (sideways && event.deltaX) || event.deltaY;
    if (sideways) this.move(by / 1000);
    else this.zoom(Math.exp(Math.max(-120, Math.min(120, by)) / 300), this.time(Math.max(x, this.left)));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const acts = {
      "+": () => this.zoom(0.5, this.here()), "=": () => this.zoom(0.5, this.here()), "-": () => this.zoom(2, this.here()),
      0: () => this.show(0, this.data.total),
      Home: () => this.step(-Infinity), End: () => this.step(Infinity),
      Enter: () => this.cursor >= 0 && this.choose(this.cursor), " ": () => this.cursor >= 0 && this.choose(this.cursor),
      m: () => this.measureHere(), Escape: () => this.clear(),
    };
    if (sideways && event.shiftKey) this.move(sideways * 0.2);
    else if (sideways) this.step(sideways);
    else if (across) this.changeRow(across);
    else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  }

  here() {
    const inSight = this.cursor >= 0 && this.data.start[this.cursor] < this.to && this.data.end(this.cursor) > this.from;
    return inSight ? this.data.start[this.cursor] + this.data.duration[this.cursor] / 2 : (this.from + this.to) / 2;
  }

  step(by) {
    const row = this.rows[this.rowOf.get(this.cursor) ?? 0];
    const now = row.spans.indexOf(this.cursor);
    const next = Math.min(row.spans.length - 1, Math.max(0, now < 0 ? 0 : now + by));
    this.point(row.spans[next]);
  }

  changeRow(by) {
    const now = this.rowOf.get(this.cursor) ?? -by;
    const row = this.rows[Math.min(this.rows.length - 1, Math.max(0, now + by))];
    const at = firstFrom(row.spans, this.data.start, this.cursor < 0 ? 0 : this.data.start[this.cursor]);
    this.point(row.spans[Math.min(at, row.spans.length - 1)]);
  }

  // The keyboard's place: outlined, told, and brought into sight.
  point(span) {
    this.cursor = span;
    const { start } = this.data;
    if (start[span] < this.from || this.data.end(span) > this.to) {
      const wide = this.to - this.from;
      const from = Math.max(0, start[span] + this.data.duration[span] / 2 - wide / 2);
      this.show(from, from + wide);
    }
    if (this.measuring !== undefined) this.ruler = [this.measuring, this.data.end(span)];
    this.say(this.ruler ? undefined : this.describe(span).replaceAll("\n", ", "));
    const box = this.canvas.getBoundingClientRect();
    tooltip.show(box.left + Math.min(this.width - 20, Math.max(this.left, this.x(start[span]))), box.top + RULER + (this.rowOf.get(span) + 0.5) * SPAN_ROW, this.describe(span));
    this.repaint();
  }

  // The first time from the start of this span, the second time to the end of that one.
  measureHere() {
    if (this.cursor < 0) return;
    if (this.measuring === undefined) {
      this.measuring = this.data.start[this.cursor];
      this.ruler = [this.measuring, this.data.end(this.cursor)];
    } else {
      this.measuring = undefined;
    }
    this.say();
    this.repaint();
  }

  clear() {
    this.ruler = null;
    this.measuring = undefined;
    tooltip.hide();
    this.say();
    this.repaint();
  }
}
