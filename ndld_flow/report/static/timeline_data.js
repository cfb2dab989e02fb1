// One pass as spans: when each began, how long it took, in which lane, and which layer it was.

const SPAN_KINDS = ["layer", "overhead", "transfer", "pass"];
const MOVING_ROLES = new Set(["reformat", "cast", "quantize", "copy"]);

class TimelineData {
  constructor(packed, layers, texts) {
    this.length = packed.lane.length;
    this.basis = packed.basis;
    this.lanes = packed.lanes.map((place) => texts[place]);
    this.lane = packed.lane;
    this.depth = packed.depth;
    this.duration = packed.duration_ns.map((value) => Math.max(0, value / 1e6));
    this.start = this.starts(packed);
    this.layer = this.layersOf(packed.layer);
    this.total = this.start.reduce((most, start, span) => Math.max(most, start + this.duration[span]), 0) || 1;
    this.kind = packed.kind.map((kind, span) => this.kindOf(kind, layers.role[this.layer[span]]));
    this.name = packed.name.map((place, span) => texts[place] || layers.name[this.layer[span]] || "");
    this.ofLayer = new Map();
    this.layer.forEach((row, span) => {
      if (row < 0) return;
      if (this.ofLayer.has(row)) this.ofLayer.get(row).push(span);
      else this.ofLayer.set(row, [span]);
    });
  }

  starts({ gap_ns, duration_ns }) {
    let end = 0;
    return gap_ns.map((gap, span) => {
      const start = end + gap;
      end = start + duration_ns[span];
      return start / 1e6;
    });
  }

  // Kept as the way from the layer expected next: 0 where one layer follows another. -1 is none.
  layersOf(steps) {
    let expected = 0;
    return steps.map((step) => {
      if (step === null) return -1;
      const row = expected + step;
      expected = row + 1;
      return row;
    });
  }

  kindOf(kind, role) {
    return SPAN_KINDS[kind] === "layer" && MOVING_ROLES.has(role) ? "moving" : SPAN_KINDS[kind];
  }

  end(span) {
    return this.start[span] + this.duration[span];
  }

  // One row on the screen for each depth of each lane, spans in order of start.
  rows() {
    const found = new Map();
    for (let span = 0; span < this.length; span++) {
      const key = `${this.lane[span]} ${this.depth[span]}`;
      if (!found.has(key)) found.set(key, { lane: this.lane[span], depth: this.depth[span], spans: [], longest: 0 });
      const row = found.get(key);
      row.spans.push(span);
      row.longest = Math.max(row.longest, this.duration[span]);
    }
    const rows = [...found.values()].sort((a, b) => a.lane - b.lane || a.depth - b.depth);
    for (const row of rows) row.spans.sort((a, b) => this.start[a] - this.start[b]);
    return rows;
  }
}

// First position in `spans` that starts at `time` or later.
function firstFrom(spans, start, time) {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (start[spans[middle]] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// The same pass for chrome://tracing and Perfetto: complete events in µs, one thread for each lane.
// Format: Trace Event Format, "Complete Events" and "Metadata Events".
function chromeTrace(data, label) {
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
