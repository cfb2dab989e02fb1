// Axes, scales and colours of charts, and drawing them when they come near the screen.

import { make } from "./elements.js";

/**
 * The smallest of 1, 2, 5 and 10 times a power of ten that divides a span into at most so many steps.
 * @param {number} span
 * @param {number} most
 */
function roundStep(span, most) {
  const rough = span / Math.max(most, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough) ?? 10 * power;
}

/**
 * Round numbers for an axis.
 * @param {number} low
 * @param {number} high
 * @param {number} most
 */
export function ticks(low, high, most) {
  const step = roundStep(high - low, most);
  const first = Math.ceil(low / step - 1e-9) + 0; // not -0
  /** @type {number[]} */
  const values = [];
  for (let place = first; place * step <= high * (1 + 1e-12); place++) values.push(place * step);
  return values;
}

/**
 * A linear scale from values to pixels.
 * @param {number} low
 * @param {number} high
 * @param {number} from
 * @param {number} to
 * @returns {(value: number) => number}
 */
export const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);

/**
 * @param {number} value
 * @param {number} least
 * @param {number} most
 */
export const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

/**
 * The range of one axis for the latencies of all profiles. A few outliers must not flatten the rest: the axis ends six
 * interquartile ranges above the third quartile, and not below any p90. Samples beyond it are counted, not hidden.
 * @param {{latency: Record<string, number>, quartiles_ms: number[], samples: number[]}[]} profiles `samples` are sorted
 */
export function commonRange(profiles) {
  const low = Math.min(...profiles.map(({ samples }) => samples[0]));
  const top = Math.max(...profiles.map(({ samples }) => samples[samples.length - 1]));
  const usual = Math.max(...profiles.map(({ latency, quartiles_ms: [q1, q3] }) => Math.max(q3 + 6 * (q3 - q1), latency.p90_ms)));
  const margin = Math.max((usual - low) * 0.06, usual * 0.005, 1e-6);
  return { low: Math.max(0, low - margin), high: Math.min(top, usual) + margin };
}

/**
 * One unit for a whole axis of milliseconds, so that its numbers are easy to compare.
 * @param {number} high
 */
export function axisUnit(high) {
  if (high < 1) return { unit: "µs", factor: 1000 };
  return high < 10000 ? { unit: "ms", factor: 1 } : { unit: "s", factor: 0.001 };
}

/**
 * @param {number} value
 * @param {number} step
 * @param {number} factor
 */
export function tickText(value, step, factor) {
  const digits = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
  return (value * factor).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// The number of series colours in tokens.css; further series start again.
export const SERIES = 10;

// Pictures are drawn when they come near the screen or when the browser is idle, and all of them before printing.

/** @type {Set<Picture>} */
const pictures = new Set();

// Calls `drawing(width)` when the host is near the screen, and again when its width or the theme changes.
class Picture {
  /**
   * @param {HTMLElement} host
   * @param {(width: number) => void} drawing
   */
  constructor(host, drawing) {
    this.host = host;
    this.drawing = drawing;
    this.width = 0;
    this.wanted = false;
    new ResizeObserver(() => this.wanted && this.draw()).observe(host);
    const sight = new IntersectionObserver((seen) => {
      if (!seen.some((entry) => entry.isIntersecting)) return;
      sight.disconnect();
      this.want();
    }, { rootMargin: "400px" });
    sight.observe(host);
    pictures.add(this);
    pictureQueue();
  }

  want() {
    this.wanted = true;
    this.draw();
  }

  draw() {
    const width = Math.round(this.host.clientWidth);
    if (width === 0 || width === this.width) return;
    this.width = width;
    this.drawing(width);
  }

  again() {
    if (!this.wanted) return;
    this.width = 0;
    this.draw();
  }
}

let pictureTurn = 0;

function pictureQueue() {
  const later = globalThis.requestIdleCallback ?? ((act) => setTimeout(act, 200));
  if (!pictureTurn) pictureTurn = later(drawOneWaiting, { timeout: 5000 });
}

// Draw one at a time, so that scrolling stays smooth. Hidden pictures wait until they are shown.
function drawOneWaiting() {
  pictureTurn = 0;
  const waiting = [...pictures].find((picture) => !picture.wanted && picture.host.clientWidth);
  if (!waiting) return;
  waiting.want();
  pictureQueue();
}

/**
 * @param {HTMLElement} host
 * @param {(width: number) => void} drawing
 */
export const drawAtWidth = (host, drawing) => new Picture(host, drawing);

export function drawAllPictures() {
  for (const picture of pictures) picture.want();
}

// A canvas holds pixels: another theme needs another drawing.
export function redrawPictures() {
  for (const picture of pictures) picture.again();
}

new MutationObserver(redrawPictures).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawPictures);

/**
 * The values of colour tokens at an element, for a canvas.
 * @param {HTMLElement} host
 * @param {string[]} names
 */
export function colorsAt(host, names) {
  const probe = make("span", { hidden: true });
  host.append(probe);
  /** @type {Record<string, string>} */
  const colours = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return colours;
}
