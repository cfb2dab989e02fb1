// A timeline on a canvas, moved and read by mouse and keyboard.

/** @import { SpanKind, TimelineData } from "./data.js" */

import { drawAtWidth } from "../charts.js";
import { make, shortened } from "../elements.js";
import { count, counted, milliseconds, share } from "../quantities.js";
import { tooltip } from "../widgets.js";
import { firstFrom, SPAN_ROW, TimelineSight } from "./data.js";
import { SPAN_TONES, TimelinePainter } from "./paint.js";

// Mouse, wheel and touch on a timeline: drag to measure or to move, hover, click a span, zoom.

class TimelineMouse {
  /** @param {Timeline} timeline is moved */
  constructor(timeline) {
    this.timeline = timeline;
    this.canvas = timeline.canvas;
    this.data = timeline.data;
    this.sight = timeline.sight;
    /** @type {{x: number, y: number, last: number, moving: boolean, moved: boolean} | null} */
    this.drag = null;
    this.listen();
  }

  listen() {
    const { canvas } = this;
    /** @type {(event: MouseEvent) => [number, number]} */
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
      if (this.drag) this.dragTo(this.drag, x, y);
      else this.hover(event, x, y);
    });
    canvas.addEventListener("pointerup", () => {
      const { drag } = this;
      this.drag = null;
      if (drag && !drag.moved) this.click(drag.x, drag.y);
    });
    canvas.addEventListener("pointerleave", () => tooltip.hide());
    canvas.addEventListener("dblclick", (event) => {
      const span = this.sight.spanAt(...place(event));
      if (span < 0) return;
      const aside = this.data.duration[span] * 0.2;
      this.timeline.glide(this.data.start[span] - aside, this.data.end(span) + aside);
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event, place(event)[0]), { passive: false });
  }

  /**
   * @param {NonNullable<TimelineMouse["drag"]>} drag
   * @param {number} x
   * @param {number} y
   */
  dragTo(drag, x, y) {
    const { sight, timeline } = this;
    if (!drag.moved && Math.abs(x - drag.x) < 4) return;
    tooltip.hide();
    if (!drag.moved && !drag.moving) timeline.ruler = [sight.snapped(drag.x, drag.y), 0];
    drag.moved = true;
    if (drag.moving) timeline.move((drag.last - x) / (sight.width - sight.left));
    else if (timeline.ruler) timeline.ruler[1] = sight.snapped(x, y);
    drag.last = x;
    timeline.showStatus();
    timeline.repaint();
  }

  /**
   * @param {PointerEvent} event
   * @param {number} x
   * @param {number} y
   */
  hover(event, x, y) {
    const span = this.sight.spanAt(x, y);
    this.canvas.style.cursor = span >= 0 && this.data.layer[span] >= 0 ? "pointer" : "crosshair";
    if (span < 0) tooltip.hide();
    else tooltip.show(event.clientX, event.clientY, this.timeline.describe(span));
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  click(x, y) {
    const span = this.sight.spanAt(x, y);
    if (span >= 0) this.timeline.choose(span);
  }

  /**
   * Scrolling the page must not stop at a timeline: the wheel zooms with Ctrl, or after a click on the timeline.
   * @param {WheelEvent} event
   * @param {number} x
   */
  wheel(event, x) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    const by = (sideways && event.deltaX) || event.deltaY;
    if (sideways) this.timeline.move(by / 1000);
    else this.timeline.zoom(Math.exp(Math.max(-120, Math.min(120, by)) / 300), this.sight.time(Math.max(x, this.sight.left)));
  }
}

// The keyboard on a timeline: from span to span, zoom, move, choose, and measure from one span to another.

class TimelineKeys {
  /** @param {Timeline} timeline its `cursor` is the span that has the keyboard's focus */
  constructor(timeline) {
    this.timeline = timeline;
    this.data = timeline.data;
    this.sight = timeline.sight;
    /** @type {number | undefined} the time in ms from which is measured */
    this.measuring = undefined;
    timeline.canvas.addEventListener("keydown", (event) => this.key(event));
    timeline.canvas.addEventListener("focus", () => timeline.repaint());
    timeline.canvas.addEventListener("blur", () => {
      tooltip.hide();
      timeline.repaint();
    });
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { timeline } = this;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    /** @type {Record<string, () => void>} */
    const acts = {
      "+": () => timeline.zoom(0.5, this.here()), "=": () => timeline.zoom(0.5, this.here()), "-": () => timeline.zoom(2, this.here()),
      0: () => timeline.show(0, this.data.total),
      w: () => timeline.zoom(0.5, this.here()), s: () => timeline.zoom(2, this.here()), a: () => timeline.move(-0.2), d: () => timeline.move(0.2),
      Home: () => this.step(-Infinity), End: () => this.step(Infinity),
      Enter: () => timeline.cursor >= 0 && timeline.choose(timeline.cursor), " ": () => timeline.cursor >= 0 && timeline.choose(timeline.cursor),
      m: () => this.measureHere(), "/": () => timeline.search.field.focus(), Escape: () => this.clear(),
    };
    if (sideways && event.shiftKey) timeline.move(sideways * 0.2);
    else if (sideways) this.step(sideways);
    else if (across) this.changeRow(across);
    else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  }

  here() {
    const { timeline, sight, data } = this;
    const inSight = timeline.cursor >= 0 && data.start[timeline.cursor] < sight.to && data.end(timeline.cursor) > sight.from;
    return inSight ? data.start[timeline.cursor] + data.duration[timeline.cursor] / 2 : (sight.from + sight.to) / 2;
  }

  /** @param {number} by */
  step(by) {
    const { timeline, sight } = this;
    const row = sight.rows[sight.rowOf.get(timeline.cursor) ?? 0];
    const now = row.spans.indexOf(timeline.cursor);
    const next = Math.min(row.spans.length - 1, Math.max(0, now < 0 ? 0 : now + by));
    this.point(row.spans[next]);
  }

  /** @param {number} by */
  changeRow(by) {
    const { timeline, sight, data } = this;
    const now = sight.rowOf.get(timeline.cursor) ?? -by;
    const row = sight.rows[Math.min(sight.rows.length - 1, Math.max(0, now + by))];
    const at = firstFrom(row.spans, data.start, timeline.cursor < 0 ? 0 : data.start[timeline.cursor]);
    this.point(row.spans[Math.min(at, row.spans.length - 1)]);
  }

  /**
   * Outline the span of the keyboard, describe it, and scroll it into view.
   * @param {number} span
   */
  point(span) {
    const { timeline, sight, data } = this;
    timeline.cursor = span;
    const { start } = data;
    if (start[span] < sight.from || data.end(span) > sight.to) {
      const wide = sight.to - sight.from;
      const from = Math.max(0, start[span] + data.duration[span] / 2 - wide / 2);
      timeline.show(from, from + wide);
    }
    if (this.measuring !== undefined) timeline.ruler = [this.measuring, data.end(span)];
    timeline.showStatus(timeline.ruler ? undefined : timeline.describe(span).replaceAll("\n", ", "));
    const box = timeline.canvas.getBoundingClientRect();
    tooltip.show(box.left + Math.min(sight.width - 20, Math.max(sight.left, sight.x(start[span]))), box.top + sight.top(span) + SPAN_ROW / 2, timeline.describe(span));
    timeline.repaint();
  }

  // The first call marks the start of a span, the second measures to the end of another.
  measureHere() {
    const { timeline, data } = this;
    if (timeline.cursor < 0) return;
    if (this.measuring === undefined) {
      this.measuring = data.start[timeline.cursor];
      timeline.ruler = [this.measuring, data.end(timeline.cursor)];
    } else {
      this.measuring = undefined;
    }
    timeline.showStatus();
    timeline.repaint();
  }

  clear() {
    const { timeline } = this;
    timeline.ruler = null;
    this.measuring = undefined;
    tooltip.hide();
    timeline.showStatus();
    timeline.repaint();
  }
}

// The search field of a timeline: all hits are outlined, Enter goes from one to the next.

class TimelineSearch {
  /** @param {Timeline} timeline shows the hits */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {number[]} */
    this.hits = [];
    this.hit = -1;
    this.field = make("input", {
      type: "search", placeholder: "Find spans", "aria-label": `Find spans of ${shortened(timeline.label, 60)}`, spellcheck: "false",
      oninput: () => this.find(this.field.value), onkeydown: (/** @type {KeyboardEvent} */ event) => this.keyInField(event),
    });
  }

  /** @param {string} text */
  find(text) {
    const { timeline } = this;
    const { data } = timeline;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const names = data.name.map((name) => name.toLowerCase());
    const isHit = (/** @type {number} */ span) => words.every((word) => names[span].includes(word));
    this.hits = words.length ? [...names.keys()].filter(isHit).sort((a, b) => data.start[a] - data.start[b]) : [];
    this.hit = -1;
    timeline.marked = this.hits;
    timeline.found = words.length ? `${count(this.hits.length)} found` : undefined;
    timeline.showStatus();
    timeline.repaint();
  }

  /** @param {number} by */
  nextHit(by) {
    const { timeline, hits } = this;
    const { data } = timeline;
    if (!hits.length) return;
    this.hit = this.hit < 0 && by < 0 ? hits.length - 1 : (this.hit + by + hits.length) % hits.length;
    const span = hits[this.hit];
    timeline.cursor = span;
    timeline.found = `${count(this.hit + 1)} of ${count(hits.length)}: ${shortened(data.name[span], 40)}, ${milliseconds(data.duration[span])}`;
    timeline.showStatus();
    timeline.reveal(span);
    timeline.repaint();
  }

  /** @param {KeyboardEvent} event */
  keyInField(event) {
    if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && this.field.value) this.find((this.field.value = ""));
    else if (event.key === "Escape" || event.key === "ArrowDown") this.timeline.canvas.focus();
    else return;
    event.preventDefault();
  }
}

// One pass on a canvas: lanes, zoom, pan, measuring, and spans that are linked with their layers.

/** @type {Record<SpanKind, string>} */
const SPAN_WORDS = { layer: "layer", moving: "reformat, quantize, cast or copy", overhead: "overhead", transfer: "transfer", pass: "whole pass" };

export class Timeline {
  /**
   * @param {HTMLElement} host
   * @param {TimelineData} data
   * @param {{label: string, series?: number, pick?: (row: number) => void}} options `pick` is called for a click on a
   *   layer, `series` is the colour of the report
   */
  constructor(host, data, { label, series = 0, pick = () => {} }) {
    this.data = data;
    this.label = label;
    this.series = series;
    this.pick = pick;
    /** @type {number[]} */
    this.marked = [];
    this.cursor = -1;
    /** @type {string | undefined} the result of the search */
    this.found = undefined;
    /** @type {[number, number] | null} */
    this.ruler = null;
    this.frame = 0;
    this.sight = new TimelineSight(data);
    const help = `keys-${Math.random().toString(36).slice(2)}`;
    this.canvas = make("canvas", {
      tabindex: 0,
      role: "application",
      "aria-roledescription": "timeline",
      "aria-label": `Timeline of ${shortened(label, 60)}: ${counted(data.length, "span")} in ${milliseconds(data.total)}`,
      "aria-describedby": help,
    });
    this.output = make("output", { class: "small", "aria-live": "polite" });
    this.search = new TimelineSearch(this);
    const room = make("div", { class: "timeline" }, this.canvas);
    host.replaceChildren(this.tools(), room,
      make("div", { class: "timeline-help quiet small", id: help },
        make("p", {}, "Drag to measure, click a span for its layer, Shift and drag to move, Ctrl and wheel to zoom; after a click the wheel alone zooms."),
        make("p", {}, "Arrows go from span to span, W and S zoom, A and D move, Enter selects, M measures from here, / finds by name, Escape clears, 0 shows all.")));
    this.painter = new TimelinePainter(this.canvas, data, this.sight, series);
    new TimelineMouse(this);
    new TimelineKeys(this);
    drawAtWidth(room, (width) => this.resize(width));
    this.showStatus();
  }

  tools() {
    /** @type {(text: string, title: string, act: () => void) => HTMLElement} */
    const button = (text, title, act) => make("button", { type: "button", title, "aria-label": title, onclick: act }, text);
    return make("div", { class: "tools" },
      this.legend(),
      this.output,
      this.search.field,
      button("−", "Zoom out", () => this.zoom(2)),
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("Whole pass", "Show the whole pass", () => this.show(0, this.data.total)));
  }

  legend() {
    const kinds = /** @type {SpanKind[]} */ (Object.keys(SPAN_WORDS)).filter((kind) => this.data.kind.includes(kind));
    return make("span", { class: "keys" }, ...kinds.map((kind) =>
      make("span", { class: `key key-${SPAN_TONES[kind]} series-${this.series}` }, SPAN_WORDS[kind])));
  }

  /** @param {number} width */
  resize(width) {
    this.sight.resize(width);
    this.painter.resize();
    this.painter.paint(this);
  }

  /**
   * Every change of the visible part goes through here.
   * @param {number} from
   * @param {number} to
   */
  show(from, to) {
    this.sight.set(from, to);
    this.repaint();
    this.showStatus();
  }

  /**
   * @param {number} factor
   * @param {number} [center]
   */
  zoom(factor, center) {
    this.show(...this.sight.zoomed(factor, center));
  }

  /** @param {number} by */
  move(by) {
    this.show(...this.sight.moved(by));
  }

  /**
   * Animate the change, unless the reader prefers reduced motion.
   * @param {number} from
   * @param {number} to
   */
  glide(from, to) {
    const begin = { from: this.sight.from, to: this.sight.to, at: performance.now() };
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return this.show(from, to);
    /** @param {number} now */
    const step = (now) => {
      const part = Math.min(1, (now - begin.at) / 160);
      const eased = 1 - (1 - part) ** 3;
      this.show(begin.from + (from - begin.from) * eased, begin.to + (to - begin.to) * eased);
      if (part < 1) requestAnimationFrame(step);
    };
    return requestAnimationFrame(step);
  }

  /** @param {number} span */
  reveal(span) {
    const long = this.data.duration[span];
    const { from, to, width } = this.sight;
    const wide = (long / (to - from)) * (width || 1000);
    const middle = this.data.start[span] + long / 2;
    if (wide > 12 && middle > from && middle < to) return;
    this.glide(middle - Math.max(long, this.data.total / 1e5) * 8, middle + Math.max(long, this.data.total / 1e5) * 8);
  }

  // Repaint once for each frame.
  repaint() {
    if (!this.sight.width || this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.painter.paint(this);
    });
  }

  /**
   * Outline the spans of the rows that are selected in the table, and scroll a single one into view.
   * @param {number[]} rows
   * @param {boolean} [reveal]
   */
  mark(rows, reveal = false) {
    this.marked = rows.flatMap((row) => this.data.ofLayer.get(row) ?? []);
    const [first] = this.marked;
    if (reveal && rows.length === 1 && first !== undefined) this.reveal(first);
    this.repaint();
  }

  /** @param {number} span */
  choose(span) {
    this.cursor = span;
    this.marked = [span];
    this.showStatus();
    this.repaint();
    if (this.data.layer[span] >= 0) this.pick(this.data.layer[span]);
  }

  /**
   * The two times of the ruler in order, or null.
   * @returns {[number, number] | null}
   */
  get measured() {
    return this.ruler && [Math.min(...this.ruler), Math.max(...this.ruler)];
  }

  /** @param {string} [text] */
  showStatus(text) {
    if (text === undefined && this.measured) {
      const [low, high] = this.measured;
      text = `${milliseconds(low)} to ${milliseconds(high)}: ${milliseconds(high - low)}`;
    }
    const { from, to } = this.sight;
    const whole = to - from >= this.data.total * 0.999999;
    this.output.textContent = text ?? this.found ?? (whole ? `${milliseconds(this.data.total)} in all` : `${milliseconds(from)} to ${milliseconds(to)} of ${milliseconds(this.data.total)}`);
  }

  /** @param {number} span */
  describe(span) {
    const { data } = this;
    const lines = [shortened(data.name[span], 120) || "(no name)",
      `${SPAN_WORDS[data.kind[span]]}, ${data.lanes[data.lane[span]]}`,
      `${milliseconds(data.duration[span])} from ${milliseconds(data.start[span])}, ${share(data.duration[span] / data.total)} of the pass`];
    return lines.join("\n");
  }
}
