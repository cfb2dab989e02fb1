// The distribution of each profile's latencies as a density and a box, on one axis and one scale.

import { axisUnit, commonRange, drawAtWidth, scale, SERIES, ticks, tickText } from "./charts.js";
import { draw, make, shortened } from "./elements.js";
import { milliseconds, share } from "./quantities.js";
import { tooltip } from "./widgets.js";

/**
 * The latencies of one profile.
 * @typedef {object} LatencyProfile
 * @property {string} label
 * @property {Record<string, number>} latency
 * @property {number[]} quartiles_ms
 * @property {number[]} samples sorted; every n-th of many
 * @property {number} [series] its colour; default: its place
 */

/** @typedef {{low: number, high: number}} Range in ms */

const DISTRIBUTION_ROW = 78;
const DENSITY_BINS = 240;
const NARROWEST_KERNEL = 1.2; // bins, about the width of a line

/**
 * The width of the kernel in bins (Silverman, 1986, Density Estimation, section 3.4).
 * @param {LatencyProfile} profile
 * @param {number} perBin ms
 */
function kernelWidth({ latency, quartiles_ms: [q1, q3] }, perBin) {
  const spread = Math.min(...[latency.std_ms, (q3 - q1) / 1.34].filter((width) => width > 0), Infinity);
  const wide = (0.9 * spread * latency.sample_count ** -0.2) / perBin;
  return Number.isFinite(wide) ? Math.max(wide, NARROWEST_KERNEL) : NARROWEST_KERNEL;
}

/**
 * The share of the passes in each bin: equal areas are equal shares.
 * @param {LatencyProfile} profile
 * @param {Range} range
 */
function density(profile, range) {
  const bins = new Float64Array(DENSITY_BINS);
  const { samples } = profile;
  const wide = kernelWidth(profile, (range.high - range.low) / (DENSITY_BINS - 1));
  const place = scale(range.low, range.high, 0, DENSITY_BINS - 1);
  const reach = 4 * wide;
  for (const sample of samples) {
    const center = place(sample);
    for (let bin = Math.max(0, Math.ceil(center - reach)); bin <= Math.min(DENSITY_BINS - 1, Math.floor(center + reach)); bin++) {
      bins[bin] += Math.exp(-(((bin - center) / wide) ** 2) / 2);
    }
  }
  const mass = samples.length * wide * Math.sqrt(2 * Math.PI) || 1;
  return Array.from(bins, (value) => value / mass);
}

/**
 * @param {number[]} heights
 * @param {number} x0
 * @param {number} x1
 * @param {number} base
 * @param {number} height
 */
function silhouettePath(heights, x0, x1, base, height) {
  const at = scale(0, heights.length - 1, x0, x1);
  const points = heights.map((value, bin) => `${at(bin).toFixed(1)} ${(base - value * height).toFixed(1)}`);
  return `M${x0} ${base}L${points.join("L")}L${x1} ${base}Z`;
}

/**
 * @param {Record<string, number>} latency
 * @param {number} slowest ms
 * @param {number} beyond
 * @param {number} width
 */
function distributionNote(latency, slowest, beyond, width) {
  const middle = `median ${milliseconds(latency.median_ms)}`;
  if (!beyond) return middle;
  if (Number.isNaN(beyond)) return `${middle}; the slowest ${milliseconds(slowest)}`;
  return width < 560 ? `${middle}, ${beyond} beyond` : `${middle}; ${beyond} slower than the axis, up to ${milliseconds(slowest)}`;
}

/**
 * @param {LatencyProfile} profile
 * @param {number[]} heights
 * @param {(ms: number) => number} x
 * @param {Range} range
 * @param {number} width
 * @param {number} top
 */
function distributionRow(profile, heights, x, range, width, top) {
  const { latency, quartiles_ms, samples } = profile;
  // The page has every n-th of many samples, which cannot be counted: the slowest of all would count for n.
  const slowest = samples[samples.length - 1]; // max_ms is of a typical process run
  const isPart = samples.length < latency.sample_count && slowest > range.high;
  const beyond = isPart ? NaN : samples.filter((sample) => sample > range.high).length;
  const right = Math.min(x(latency.p95_ms), width);
  const middle = top + 62;
  const label = draw("text", { class: "strong", x: 0, y: top + 15 }, shortened(profile.label, 40));
  const row = draw("g", { class: `series series-${profile.series ?? 0}` },
    label,
    draw("path", { class: "area", d: silhouettePath(heights, x(range.low), x(range.high), top + 52, 30) }),
    draw("line", { class: "whisker", x1: x(latency.min_ms), x2: right, y1: middle, y2: middle }),
    draw("rect", { class: "box", x: x(quartiles_ms[0]), y: middle - 5, width: Math.max(2, x(quartiles_ms[1]) - x(quartiles_ms[0])), height: 10, rx: 1 }),
    draw("line", { class: "middle", x1: x(latency.median_ms), x2: x(latency.median_ms), y1: middle - 5, y2: middle + 5 }));
  row.append(draw("text", { x: width, y: top + 15, "text-anchor": "end" }, distributionNote(latency, slowest, beyond, width)));
  return row;
}

/**
 * @param {HTMLElement} host
 * @param {LatencyProfile[]} profiles
 * @param {number} width
 */
function drawDistribution(host, profiles, width) {
  const range = commonRange(profiles);
  const { unit, factor } = axisUnit(range.high);
  const height = DISTRIBUTION_ROW * profiles.length + 36;
  const x = scale(range.low, range.high, 0, width);
  const marks = ticks(range.low, range.high, width / 110);
  const step = marks.length > 1 ? marks[1] - marks[0] : 1;
  const cursor = draw("line", { class: "cursor", y1: 0, y2: height - 30, visibility: "hidden" });
  const svg = draw("svg", {
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `Latency: ${profiles.map((p) => `${shortened(p.label, 40)} median ${milliseconds(p.latency.median_ms)}`).join(", ")}`,
  });
  for (const mark of marks) {
    const at = x(mark);
    const anchor = at < 20 ? "start" : at > width - 30 ? "end" : "middle";
    svg.append(
      draw("line", { class: "grid", x1: at, x2: at, y1: 20, y2: height - 32 }),
      draw("text", { x: at, y: height - 14, "text-anchor": anchor }, `${tickText(mark, step, factor)} ${unit}`));
  }
  const densities = profiles.map((profile) => density(profile, range));
  const most = Math.max(...densities.flat()) || 1;
  svg.append(...profiles.map((profile, place) =>
    distributionRow({ series: place % SERIES, ...profile }, densities[place].map((value) => value / most), x, range, width, place * DISTRIBUTION_ROW)), cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = event.clientX - box.left;
    const value = range.low + (at / width) * (range.high - range.low);
    cursor.setAttribute("x1", String(at));
    cursor.setAttribute("x2", String(at));
    cursor.setAttribute("visibility", "visible");
    const lines = profiles.map(({ label, samples }) =>
      `${shortened(label, 40)}: ${share(samples.filter((sample) => sample <= value).length / samples.length)} of passes`);
    tooltip.show(event.clientX, event.clientY, [`within ${milliseconds(value)}`, ...lines].join("\n"));
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tooltip.hide();
  });
  host.replaceChildren(make("figure", { class: "picture" }, svg,
    make("figcaption", { class: "quiet small" }, "Equal areas are equal shares of the passes; the box holds the middle half of a typical process run, its line ends at p95.")));
}

/**
 * @param {HTMLElement} host
 * @param {LatencyProfile[]} profiles
 */
export function latencyDistribution(host, profiles) {
  drawAtWidth(host, (width) => drawDistribution(host, profiles, width));
}
