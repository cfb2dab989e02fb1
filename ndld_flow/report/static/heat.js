// How hot a number is among its column's: 0 to 1, on a scale that a person chooses.

const HEAT_SCALES = {
  linear: (values) => {
    const most = values.reduce((a, b) => Math.max(a, b ?? 0), 0) || 1;
    return (value) => value / most;
  },
  log: (values) => {
    const known = values.filter((value) => value > 0);
    const most = known.reduce((a, b) => Math.max(a, b), 0);
    const least = Math.max(known.reduce((a, b) => Math.min(a, b), Infinity), most / 1e4);
    const span = Math.log(most / least) || 1;
    return (value) => (value > 0 ? Math.max(0, Math.log(value / least) / span) : 0);
  },
  rank: (values) => {
    const known = [...new Set(values.filter((value) => value !== null))].sort((a, b) => a - b);
    const places = new Map(known.map((value, place) => [value, place / Math.max(known.length - 1, 1)]));
    return (value) => places.get(value) ?? 0;
  },
  none: () => () => 0,
};

// One for each column, made when it is first painted.
class Heat {
  constructor(scale = "linear") {
    this.scale = scale;
    this.made = new Map();
  }

  use(scale) {
    this.scale = scale;
    this.made.clear();
  }

  of(key, values) {
    if (!this.made.has(key)) this.made.set(key, HEAT_SCALES[this.scale](values));
    return this.made.get(key);
  }
}
