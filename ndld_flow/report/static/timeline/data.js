// Spans of a timeline, and the part of it that is in sight.


/** @typedef {"layer" | "moving" | "overhead" | "transfer" | "pass"} SpanKind */

/**
 * One row of the canvas; `longest` is in ms.
 * @typedef {{lane: number, depth: number, spans: number[], longest: number}} SpanRow
 */
// The spans of one pass, each with its start, duration, lane and layer.

const MOVING_ROLES = new Set(["reformat", "cast", "quantize", "copy"]);

export class TimelineData {
  /**
   * @param {TimelineSpans} spans
   * @param {{name: string[], role: string[]}} layers
   */
  constructor(spans, layers) {
    this.length = spans.lane.length;
    this.basis = spans.basis;
    this.lanes = spans.lanes;
    this.lane = spans.lane;
    this.depth = spans.depth;
    this.duration = spans.duration_ns.map((value) => Math.max(0, value / 1e6));
    this.start = this.starts(spans);
    this.layer = spans.layer.map((layer) => layer ?? -1);
    this.total = this.start.reduce((most, start, span) => Math.max(most, start + this.duration[span]), 0) || 1;
    /** @type {SpanKind[]} */
    this.kind = spans.kind.map((kind, span) => (kind === "layer" && MOVING_ROLES.has(layers.role[this.layer[span]] ?? "") ? "moving" : kind));
    this.name = spans.name.map((name, span) => name || layers.name[this.layer[span]] || "");
    /** @type {Map<number, number[]>} the spans of each layer */
    this.ofLayer = Map.groupBy(this.layer.keys(), (span) => this.layer[span]);
    this.ofLayer.delete(-1);
  }

  /**
   * The start of the first span on the lane `enqueue`, or of the first layer that takes time; null if there is none.
   * @param {"enqueue" | "kernel"} mark
   */
  firstOf(mark) {
    let first = Infinity;
    for (let span = 0; span < this.length; span++) {
      const isKernel = (this.kind[span] === "layer" || this.kind[span] === "moving") && this.duration[span] > 0;
      if (mark === "enqueue" ? this.lanes[this.lane[span]] === "enqueue" : isKernel) first = Math.min(first, this.start[span]);
    }
    return first < Infinity ? first : null;
  }

  /**
   * Move all spans to a later time.
   * @param {number} ms
   */
  delay(ms) {
    this.start = this.start.map((start) => start + ms);
    this.total += ms;
  }

  /** @param {TimelineSpans} spans */
  starts({ gap_ns, duration_ns }) {
    let end = 0;
    return gap_ns.map((gap, span) => {
      const start = end + gap;
      end = start + duration_ns[span];
      return start / 1e6;
    });
  }

  /** @param {number} span */
  end(span) {
    return this.start[span] + this.duration[span];
  }

  // One row of the canvas for each depth of each lane, spans in order of start.
  rows() {
    /** @type {Map<string, SpanRow>} */
    const byLane = new Map();
    for (let span = 0; span < this.length; span++) {
      const key = `${this.lane[span]} ${this.depth[span]}`;
      const row = byLane.get(key) ?? { lane: this.lane[span], depth: this.depth[span], spans: [], longest: 0 };
      byLane.set(key, row);
      row.spans.push(span);
      row.longest = Math.max(row.longest, this.duration[span]);
    }
    const rows = [...byLane.values()].sort((a, b) => a.lane - b.lane || a.depth - b.depth);
    for (const row of rows) row.spans.sort((a, b) => this.start[a] - this.start[b]);
    return rows;
  }
}

/**
 * The first position in `spans` of a span that starts at `time` or later.
 * @param {number[]} spans
 * @param {number[]} start
 * @param {number} time
 */
export function firstFrom(spans, start, time) {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[spans[middle]] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * The pass for chrome://tracing and Perfetto: complete events in µs, one thread for each lane.
 * Format: Trace Event Format, "Complete Events" and "Metadata Events".
 * @param {TimelineData} data
 * @param {string} label
 */
export function chromeTrace(data, label) {
  const threads = data.lanes.map((name, lane) => ({ ph: "M", name: "thread_name", pid: 1, tid: lane + 1, args: { name } }));
  const events = data.start.map((start, span) => ({
    ph: "X",
    name: data.name[span],
    cat: data.kind[span],
    pid: 1,
    tid: data.lane[span] + 1,
    ts: Number((start * 1000).toFixed(3)),
    dur: Number((data.duration[span] * 1000).toFixed(3)),
  }));
  const process = { ph: "M", name: "process_name", pid: 1, args: { name: label } };
  return JSON.stringify({ displayTimeUnit: "ms", traceEvents: [process, ...threads, ...events] });
}

// The visible part of a pass: times to pixels and back, spans by row, without a canvas.

export const SPAN_ROW = 24;
export const RULER = 26;
export const OVERVIEW = 12;
const MOST_ROWS = 48;

export class TimelineSight {
  /**
   * All of it is visible at first; there are no pixels before `resize`.
   * @param {TimelineData} data
   */
  constructor(data) {
    this.data = data;
    this.from = 0;
    this.to = data.total;
    this.rows = data.rows().slice(0, MOST_ROWS);
    /** @type {Map<number, number>} */
    this.rowOf = new Map();
    this.rows.forEach((row, place) => row.spans.forEach((span) => this.rowOf.set(span, place)));
    this.height = RULER + this.rows.length * SPAN_ROW + OVERVIEW;
    this.left = 0;
    this.width = 0;
  }

  /** @param {number} width */
  resize(width) {
    this.left = width < 560 ? 58 : 92;
    this.width = width;
  }

  /** @param {number} time */
  x(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * (this.width - this.left);
  }

  /** @param {number} x */
  time(x) {
    return this.from + ((x - this.left) / (this.width - this.left)) * (this.to - this.from);
  }

  /** @param {number} span */
  top(span) {
    return RULER + (this.rowOf.get(span) ?? 0) * SPAN_ROW;
  }

  /**
   * @param {number} from
   * @param {number} to
   */
  set(from, to) {
    const least = this.data.total / 2e6;
    const span = Math.min(Math.max(to - from, least), this.data.total);
    this.from = Math.min(Math.max(0, (from + to - span) / 2), this.data.total - span);
    this.to = this.from + span;
  }

  /**
   * The part that is visible after a zoom around a time.
   * @param {number} factor
   * @param {number} [center]
   * @returns {[number, number]}
   */
  zoomed(factor, center = (this.from + this.to) / 2) {
    const from = center - (center - this.from) * factor;
    return [from, from + (this.to - this.from) * factor];
  }

  /**
   * The part that is visible after a move by a fraction of the width.
   * @param {number} by
   * @returns {[number, number]}
   */
  moved(by) {
    const span = this.to - this.from;
    const from = Math.min(Math.max(0, this.from + by * span), this.data.total - span);
    return [from, from + span];
  }

  /**
   * @param {number} x
   * @param {number} y
   */
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

  /**
   * The edge of a span that the pointer is close to.
   * @param {number} x
   * @param {number} y
   */
  snapped(x, y) {
    const span = this.spanAt(x, y);
    const edges = span < 0 ? [] : [this.data.start[span], this.data.end(span)];
    const near = edges.find((edge) => Math.abs(this.x(edge) - x) < 5);
    return Math.min(this.data.total, Math.max(0, near ?? this.time(x)));
  }
}
