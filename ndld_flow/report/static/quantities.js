// Numbers as text, by the rules of base/quantities.py.

/** @param {number} value */
export function threeDigits(value) {
  const magnitude = Math.abs(value);
  if (magnitude >= 99.95) return Math.round(value).toLocaleString("en-US");
  if (magnitude >= 9.995) return value.toFixed(1);
  if (magnitude >= 0.9995 || magnitude === 0) return value.toFixed(2);
  return String(Number(value.toPrecision(3)));
}

/**
 * A duration given in ms.
 * @param {number} value
 */
export function milliseconds(value) {
  const magnitude = Math.abs(value);
  if (magnitude === 0) return "0";
  if (magnitude < 0.9995) return `${threeDigits(value * 1000)} µs`;
  return magnitude < 10000 ? `${threeDigits(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

/** @param {number} fraction */
export const share = (fraction) => `${(fraction * 100).toFixed(1)} %`;

/** @param {number} value */
export const count = (value) => value.toLocaleString("en-US");

/**
 * A count with its noun: `1 node`, `4,712 nodes`.
 * @param {number} value
 * @param {string} noun
 */
export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : /(s|x|ch)$/.test(noun) ? "es" : "s"}`;

/** @param {number} fraction */
export function signedShare(fraction) {
  const percent = Math.abs(fraction * 100).toFixed(1);
  return `${percent === "0.0" ? "±" : fraction < 0 ? "−" : "+"}${percent} %`;
}

/**
 * Bytes, in the largest binary unit below the value.
 * @param {number} value
 */
export function size(value) {
  let power = 0;
  while (Math.abs(value) >= 1024 && power < 4) {
    value /= 1024;
    power += 1;
  }
  return power === 0 ? `${count(Math.round(value))} B` : `${threeDigits(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/**
 * A count of operations: `1.20 G`, `340 M`.
 * @param {number} value
 */
export function amount(value) {
  for (const [factor, sign] of /** @type {[number, string][]} */ ([[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])) {
    if (Math.abs(value) >= factor) return `${threeDigits(value / factor)} ${sign}`;
  }
  return count(value);
}

/**
 * A duration given in s: `12 ms`, `8.2 s`, `1 min 12 s`, `2 h 05 min`, `3 days`.
 * @param {number} value
 */
export function seconds(value) {
  if (value < 0.95) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  /** @param {number} part */
  const two = (part) => String(part).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.round(whole / 86400)} days`;
}

/**
 * A number without a unit: nines are kept (0.9999998 is not 1), tiny and huge values are in scientific notation.
 * @param {number} value
 */
export function plainNumber(value) {
  const magnitude = Math.abs(value);
  if (Number.isInteger(value) && magnitude < 1e15) return count(value);
  if (value > 0.999 && value < 1) {
    const nines = Math.ceil(-Math.log10(1 - value));
    return nines < 9 ? value.toFixed(nines + 1) : "1";
  }
  if (magnitude < 1e-3 || magnitude >= 1e6) return value.toExponential(1).replace(".0e", "e").replace(/e([+-])(\d)$/, "e$10$2");
  return magnitude < 1000 ? String(Number(value.toPrecision(4))) : value.toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
}

/**
 * The value of a metric with its unit.
 * @param {number | null | undefined} value
 * @param {string} unit
 */
export function quantityText(value, unit) {
  if (value === null || value === undefined) return "–";
  /** @type {Record<string, (value: number) => string>} */
  const texts = { ms: milliseconds, bytes: size, s: seconds };
  const scaled = texts[unit];
  if (scaled) return scaled(value);
  if (unit === "1/s") return `${threeDigits(value)} /s`;
  return `${plainNumber(value)} ${unit}`.trim();
}

/** @param {number | null | undefined} ratio */
export function ratioText(ratio) {
  if (ratio === null || ratio === undefined) return "–";
  return `${ratio >= 0.9 && ratio <= 1.1 ? ratio.toFixed(3) : threeDigits(ratio)}×`;
}

/**
 * The change that a ratio means: `+12 %`.
 * @param {number | null | undefined} ratio
 */
export function changeText(ratio) {
  if (ratio === null || ratio === undefined) return "";
  const percent = (ratio - 1) * 100;
  if (Math.abs(percent) < 0.05) return "±0 %";
  const digits = Math.abs(percent) >= 9.95 ? count(Math.round(Math.abs(percent))) : Math.abs(percent).toFixed(1);
  return `${percent < 0 ? "−" : "+"}${digits} %`;
}
