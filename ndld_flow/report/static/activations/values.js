// Texts and badges for tensors and values.

import { clamp } from "../charts.js";
import { make } from "../elements.js";
import { count, counted, share } from "../quantities.js";

/**
 * The numbers that a format can hold; integers have no smallest magnitudes.
 * @typedef {{name: string, largest: number, low?: number, normal?: number, smallest?: number}} Format
 */

/**
 * A captured tensor, and the format that its range is compared with.
 * @typedef {TensorData & {format: Format}} Tensor
 */

/** @type {Record<string, {largest: number, normal: number, smallest: number}>} */
const FORMATS = {
  fp16: { largest: 65504, normal: 2 ** -14, smallest: 2 ** -24 },
  bf16: { largest: 3.38953139e38, normal: 2 ** -126, smallest: 2 ** -133 },
  fp32: { largest: 3.40282347e38, normal: 2 ** -126, smallest: 2 ** -149 },
  fp8e4m3: { largest: 448, normal: 2 ** -6, smallest: 2 ** -9 },
  fp8e5m2: { largest: 57344, normal: 2 ** -14, smallest: 2 ** -16 },
};
/** @type {Record<string, Format>} */
const INTEGERS = {
  int8: { name: "int8", low: -128, largest: 127 },
  uint8: { name: "uint8", low: 0, largest: 255 },
};

/**
 * The number format that ranges are compared with; an unknown format has no limits.
 * @param {string} name
 * @returns {Format}
 */
export const namedFormat = (name) => ({ name, ...(Object.hasOwn(FORMATS, name) ? FORMATS[name] : { largest: Infinity, normal: 0, smallest: 0 }) });

/**
 * The limits of a tensor's values: 8-bit integers have limits of their own.
 * @param {Tensor} tensor
 * @returns {Format}
 */
export const formatOf = (tensor) => (Object.hasOwn(INTEGERS, tensor.dtype) ? INTEGERS[tensor.dtype] : tensor.format);

/**
 * @param {number} value
 * @param {number} [digits]
 */
export function valueText(value, digits = 6) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "+∞" : "−∞";
  const magnitude = Math.abs(value);
  if (value !== 0 && (magnitude < 1e-4 || magnitude >= 1e7)) return value.toExponential(digits - 1).replace(/\.?0+e/, "e").replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

/** @param {number} value */
export const decibels = (value) => (Number.isNaN(value) ? "–" : value >= 300 ? "equal" : value <= -300 ? "−∞ dB" : `${value.toFixed(1).replace("-", "−")} dB`);

/** @param {number} fraction */
export const smallShare = (fraction) => (fraction >= 0.0005 ? share(fraction) : "< 0.1 %");

/**
 * @param {Tensor} tensor
 * @param {string} name
 */
export const metricOf = (tensor, name) => Number(tensor.divergence?.metrics[name] ?? NaN);

/**
 * The badges of a tensor: a word, its meaning, and a class.
 * @param {Tensor} tensor
 */
export function tensorBadges(tensor) {
  const { range, saturated } = tensor;
  const { name } = tensor.format;
  /** @type {[string, string, string][]} */
  const badges = [];
  if (range.nan_count) badges.push([`${count(range.nan_count)} NaN`, `NaN: ${count(range.nan_count)} of ${counted(range.elements, "value")}`, "bad"]);
  if (range.inf_count) badges.push([`${count(range.inf_count)} inf`, `infinite: ${count(range.inf_count)} of ${counted(range.elements, "value")}`, "bad"]);
  if (range.beyond_share) badges.push([`${smallShare(range.beyond_share)} beyond`, `too large for ${name}`, "bad"]);
  if (saturated) badges.push([`${smallShare(saturated / Math.max(1, range.elements))} saturated`, "at the largest or smallest value of the type, or of the activation's bounds", "warn"]);
  if (range.vanishing_share) badges.push([`${smallShare(range.vanishing_share)} to 0`, `not 0, but rounded to it in ${name}`, "warn"]);
  return badges;
}

/** @param {Tensor} tensor */
export const makeBadges = (tensor) => tensorBadges(tensor).map(([word, meaning, tone]) => make("span", { class: `badge ${tone}`, title: meaning }, word));

// The range of magnitudes on a log scale that all tensors share, with the limits of the format.
export const SIZE_AXIS = { low: -10, high: 8 };

/** @param {number} value */
function sizePlace(value) {
  const at = (Math.log10(value) - SIZE_AXIS.low) / (SIZE_AXIS.high - SIZE_AXIS.low);
  return 100 * clamp(at, 0, 1);
}

/** @param {TensorRange} range */
export const largestOf = (range) => Math.max(Math.abs(range.minimum), Math.abs(range.maximum));

/** @param {TensorRange} range */
export function rangeText(range) {
  return `${valueText(range.minimum, 4)} to ${valueText(range.maximum, 4)}, RMS ${valueText(range.rms, 4)}`;
}

/** @param {Tensor} tensor */
export function rangeBar(tensor) {
  const { range, reference_range: reference } = tensor;
  const format = formatOf(tensor);
  const normal = format.normal || 1e-300;
  const bar = make("span", { class: "sizes", role: "img", "aria-label": `${rangeText(range)}; ${format.name} represents values up to ${valueText(format.largest, 5)}`, title: `Magnitudes of values, 1e${SIZE_AXIS.low} to 1e${SIZE_AXIS.high}: ${rangeText(range)}${reference ? `; the reference ${rangeText(reference)}` : ""}. Shaded: the range that ${format.name} represents in full precision` },
    make("u", { style: `left:${sizePlace(normal)}%;right:${100 - sizePlace(format.largest)}%` }));
  /** @type {(tag: "s" | "i", extent: TensorRange, name?: string) => void} */
  const mark = (tag, extent, name = "") => {
    const most = extent.inf_count ? Infinity : largestOf(extent);
    if (most > 0) bar.append(make(tag, { class: `${name}${most > format.largest ? " beyond" : ""}`, style: `left:${sizePlace(extent.smallest_abs || 1e-300)}%;right:${100 - sizePlace(most)}%` }));
  };
  if (reference) mark("s", reference);
  mark("i", range);
  if (range.rms > 0) bar.append(make("b", { style: `left:${sizePlace(range.rms)}%` }));
  return bar;
}
