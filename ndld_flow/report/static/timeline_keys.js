// The keyboard on a timeline: from span to span, zoom, move, choose, and measure from one span to another.

class TimelineKeys {
  // `timeline` is a Timeline; its `cursor` is the span where the keyboard is.
  constructor(timeline) {
    Object.assign(this, { timeline, data: timeline.data, sight: timeline.sight, measuring: undefined });
    timeline.canvas.addEventListener("keydown", (event) => this.key(event));
    timeline.canvas.addEventListener("focus", () => timeline.repaint());
    timeline.canvas.addEventListener("blur", () => {
      tooltip.hide();
      timeline.repaint();
    });
  }

  key(event) {
    const { timeline } = this;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const acts = {
      "+": () => timeline.zoom(0.5, this.here()), "=": () => timeline.zoom(0.5, this.here()), "-": () => timeline.zoom(2, this.here()),
      0: () => timeline.show(0, this.data.total),
      Home: () => this.step(-Infinity), End: () => this.step(Infinity),
      Enter: () => timeline.cursor >= 0 && timeline.choose(timeline.cursor), " ": () => timeline.cursor >= 0 && timeline.choose(timeline.cursor),
      m: () => this.measureHere(), Escape: () => this.clear(),
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

  step(by) {
    const { timeline, sight } = this;
    const row = sight.rows[sight.rowOf.get(timeline.cursor) ?? 0];
    const now = row.spans.indexOf(timeline.cursor);
    const next = Math.min(row.spans.length - 1, Math.max(0, now < 0 ? 0 : now + by));
    this.point(row.spans[next]);
  }

  changeRow(by) {
    const { timeline, sight, data } = this;
    const now = sight.rowOf.get(timeline.cursor) ?? -by;
    const row = sight.rows[Math.min(sight.rows.length - 1, Math.max(0, now + by))];
    const at = firstFrom(row.spans, data.start, timeline.cursor < 0 ? 0 : data.start[timeline.cursor]);
    this.point(row.spans[Math.min(at, row.spans.length - 1)]);
  }

  // The keyboard's place: outlined, told, and brought into sight.
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
    timeline.say(timeline.ruler ? undefined : timeline.describe(span).replaceAll("\n", ", "));
    const box = timeline.canvas.getBoundingClientRect();
    tooltip.show(box.left + Math.min(sight.width - 20, Math.max(sight.left, sight.x(start[span]))), box.top + sight.top(span) + SPAN_ROW / 2, timeline.describe(span));
    timeline.repaint();
  }

  // The first time from the start of this span, the second time to the end of that one.
  measureHere() {
    const { timeline, data } = this;
    if (timeline.cursor < 0) return;
    if (this.measuring === undefined) {
      this.measuring = data.start[timeline.cursor];
      timeline.ruler = [this.measuring, data.end(timeline.cursor)];
    } else {
      this.measuring = undefined;
    }
    timeline.say();
    timeline.repaint();
  }

  clear() {
    const { timeline } = this;
    timeline.ruler = null;
    this.measuring = undefined;
    tooltip.hide();
    timeline.say();
    timeline.repaint();
  }
}
