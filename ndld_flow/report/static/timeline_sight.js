// Which part of a pass is on the screen, and where: times to pixels and back, spans by row, without a canvas.

const SPAN_ROW = 24;
const RULER = 26;
const OVERVIEW = 12;
const MOST_ROWS = 48;

class TimelineSight {
  // `data` is a TimelineData. The whole of it is in sight first; there are no pixels before `resize`.
  constructor(data) {
    Object.assign(this, { data, from: 0, to: data.total });
    this.rows = data.rows().slice(0, MOST_ROWS);
    this.rowOf = new Map(this.rows.flatMap((row, place) => row.spans.map((span) => [span, place])));
    this.height = RULER + this.rows.length * SPAN_ROW + OVERVIEW;
  }

  resize(width) {
    this.left = width < 560 ? 58 : 92;
    this.width = width;
  }

  x(time) {
    return this.left + ((time - this.from) / (this.to - this.from)) * (this.width - this.left);
  }

  time(x) {
    return this.from + ((x - this.left) / (this.width - this.left)) * (this.to - this.from);
  }

  top(span) {
    return RULER + (this.rowOf.get(span) ?? 0) * SPAN_ROW;
  }

  set(from, to) {
    const least = this.data.total / 2e6;
    const span = Math.min(Math.max(to - from, least), this.data.total);
    this.from = Math.min(Math.max(0, (from + to - span) / 2), this.data.total - span);
    this.to = this.from + span;
  }

  // What would be in sight after a zoom around a time.
  zoomed(factor, center = (this.from + this.to) / 2) {
    const from = center - (center - this.from) * factor;
    return [from, from + (this.to - this.from) * factor];
  }

  // What would be in sight after a move by a part of the width.
  moved(by) {
    const span = this.to - this.from;
    const from = Math.min(Math.max(0, this.from + by * span), this.data.total - span);
    return [from, from + span];
  }

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
}
