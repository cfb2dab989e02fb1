// A ratio with its interval against the band of its threshold: the picture that tells why a verdict is what it is.

const RATIO_TICKS = [0.001, 0.01, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1];

// Logarithmic, so that twice and half are equally far from one; the same rules as interval_scale.py.
class RatioScale {
  constructor(verdicts) {
    const ends = [1];
    for (const { low, high, ratio, threshold } of verdicts) {
      ends.push(1 + 2 * threshold, 1 / (1 + 2 * threshold), ...[low, high, ratio].filter((one) => one > 0));
    }
    const held = ends.map((one) => Math.min(Math.max(one, 1e-3), 1e3));
    const [least, most] = [Math.min(...held), Math.max(...held)];
    const margin = (most / least) ** 0.06;
    this.low = least / margin;
    this.high = most * margin;
  }

  // 0 to 100
  place(ratio) {
    if (this.high <= this.low) return 50;
    const held = Math.min(Math.max(ratio, this.low), this.high);
    return (100 * Math.log(held / this.low)) / Math.log(this.high / this.low);
  }

  ticks(apart) {
    const both = [...new Set([...RATIO_TICKS, ...RATIO_TICKS.map((tick) => 1 / tick)])];
    const kept = [1];
    for (const tick of both.sort((a, b) => Math.abs(Math.log(a)) - Math.abs(Math.log(b)))) {
      const inside = this.place(tick) > 3 && this.place(tick) < 96 && tick > this.low && tick < this.high;
      if (inside && kept.every((other) => Math.abs(this.place(tick) - this.place(other)) >= apart)) kept.push(tick);
    }
    return kept.sort((a, b) => a - b);
  }
}

function intervalBar(verdict, ratios) {
  const { ratio, low, high, threshold } = verdict;
  if (!(ratio > 0)) return "";
  const at = (value) => `${ratios.place(value).toFixed(2)}%`;
  const until = (value) => `${(100 - ratios.place(value)).toFixed(2)}%`;
  const piece = (tag, left, right) => {
    const one = make(tag);
    one.style.left = at(left);
    if (right !== undefined) one.style.right = until(right);
    return one;
  };
  const spread = low === high || low === null ? ratioText(ratio) : `${ratioText(ratio)}, ${ratioText(low)} to ${ratioText(high)}`;
  return make("div", {
    class: `interval ${verdict.verdict}`,
    role: "img",
    "aria-label": `${spread}, against a threshold of ±${threeDigits(threshold * 100)} %`,
    onpointermove: (event) => tooltip.show(event.clientX, event.clientY,
      `${spread}\nthreshold ±${threeDigits(threshold * 100)} %\n${verdict.verdict}`),
    onpointerleave: () => tooltip.hide(),
  }, piece("u", 1 / (1 + threshold), 1 + threshold), piece("b", 1), piece("i", low ?? ratio, high ?? ratio), piece("em", ratio));
}

function intervalAxis(ratios) {
  const axis = make("div", { class: "interval-axis", "aria-hidden": "true" });
  for (const tick of ratios.ticks(13)) {
    const mark = make("span", {}, tick === 1 ? "same" : changeText(tick));
    mark.style.left = `${ratios.place(tick).toFixed(2)}%`;
    axis.append(mark);
  }
  return axis;
}
