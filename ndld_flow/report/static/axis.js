// Round numbers for an axis, and a scale from values to pixels.

function roundStep(span, most) {
  const rough = span / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

function ticks(low, high, most) {
  const step = roundStep(high - low, most);
  const first = Math.ceil(low / step - 1e-9) + 0; // not -0
  const found = [];
  for (let place = first; place * step <= high * (1 + 1e-12); place++) found.push(place * step);
  return found;
}

const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);

// Latencies of all profiles on one axis. A few outliers must not flatten the rest: the axis ends
// six times the middle half's width above it, and never before a p90. What lies beyond is counted, not hidden.
function commonRange(profiles) {
  const low = Math.min(...profiles.map((profile) => profile.latency.min_ms));
  const top = Math.max(...profiles.map((profile) => profile.latency.max_ms));
  const usual = Math.max(...profiles.map(({ latency, quartiles_ms: [q1, q3] }) => Math.max(q3 + 6 * (q3 - q1), latency.p90_ms)));
  const margin = Math.max((usual - low) * 0.06, usual * 0.005, 1e-6);
  return { low: Math.max(0, low - margin), high: Math.min(top, usual) + margin };
}

// One unit for a whole axis, so that its numbers can be compared at a glance.
function axisUnit(high) {
  if (high < 1) return { unit: "µs", factor: 1000 };
  return high < 10000 ? { unit: "ms", factor: 1 } : { unit: "s", factor: 0.001 };
}

function tickText(value, step, factor) {
  const digits = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
  return (value * factor).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Colours of series in tokens.css; one more starts again.
const SERIES = 10;
