// The state of the page, kept in its address, so that a link opens the same view again.

/** @import { ActivationsData } from "./data.js" */

import { clamp } from "../charts.js";
import { COLOUR_STOPS } from "./colours.js";

/** @typedef {"reference" | "candidate"} Side */

/**
 * @typedef {object} State
 * @property {number} tensor
 * @property {number} sample
 * @property {number} channel the channel's number in the tensor, -1 for all
 * @property {string} mode
 * @property {string} colours
 * @property {number | null} shift null for one that fits the values
 * @property {number | null} scale
 * @property {number} split
 * @property {number} mix
 * @property {number | null} gain
 * @property {boolean} hold
 * @property {string} order
 */

/**
 * The state with the numbers that are in use.
 * @typedef {Omit<State, "shift" | "scale" | "gain"> & {shift: number, scale: number, gain: number}} Look
 */

/** @type {Record<string, string>} */
export const MODES = {
  reference: "Reference", candidate: "Candidate", side: "Side by side", split: "Split", mix: "Mix", difference: "Difference",
};
/** @type {Omit<State, "tensor" | "sample" | "channel">} */
const LOOK_DEFAULTS = { mode: "side", colours: "blue", shift: null, scale: null, split: 0.5, mix: 0.5, gain: null, hold: false, order: "number" };
/** @type {Record<string, string>} */
export const ORDERS = { number: "number", difference: "difference", rms: "RMS", nonfinite: "not finite" };
export const GAIN = { least: 1, most: 1e6 };

/**
 * @param {string | null} text
 * @param {number} least
 * @param {number} most
 */
function readNumber(text, least, most) {
  const value = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(value) ? clamp(value, least, most) : null;
}

/**
 * Read the state from an address; parts that are unknown or invalid have their defaults.
 * @param {string} hash
 * @param {ActivationsData} data
 * @returns {State}
 */
export function readState(hash, data) {
  const asked = new URLSearchParams(hash.replace(/^#/, ""));
  /** @type {(name: "mode" | "colours" | "order", choices: object) => string} */
  const among = (name, choices) => {
    const choice = asked.get(name) ?? "";
    return Object.hasOwn(choices, choice) ? choice : LOOK_DEFAULTS[name];
  };
  const named = data.named(asked.get("tensor"));
  const tensor = named < 0 ? data.opening : named;
  const samples = data.samplesOf(tensor);
  const sample = Number(asked.get("sample"));
  const channel = asked.get("channel");
  return {
    tensor,
    sample: samples.includes(sample) ? sample : samples[0] ?? 0,
    channel: channel !== null && /^\d+$/.test(channel) ? Number(channel) : -1, // the channel's number in the tensor
    mode: among("mode", MODES),
    colours: among("colours", COLOUR_STOPS),
    shift: readNumber(asked.get("shift"), -1e300, 1e300),
    scale: readNumber(asked.get("scale"), 1e-300, 1e300),
    split: readNumber(asked.get("split"), 0, 1) ?? LOOK_DEFAULTS.split,
    mix: readNumber(asked.get("mix"), 0, 1) ?? LOOK_DEFAULTS.mix,
    gain: readNumber(asked.get("gain"), GAIN.least, GAIN.most),
    hold: asked.get("hold") === "1",
    order: among("order", ORDERS),
  };
}

/**
 * @param {State} state
 * @param {ActivationsData} data
 */
export function writeState(state, data) {
  const address = new URLSearchParams({ tensor: data.tensors[state.tensor].name });
  if (state.sample !== (data.samplesOf(state.tensor)[0] ?? 0)) address.set("sample", String(state.sample));
  if (state.channel >= 0) address.set("channel", String(state.channel));
  for (const name of /** @type {(keyof typeof LOOK_DEFAULTS)[]} */ (Object.keys(LOOK_DEFAULTS))) {
    const value = state[name];
    if (value === LOOK_DEFAULTS[name] || value === null) continue;
    address.set(name, typeof value === "number" ? String(Number(value.toPrecision(6))) : value === true ? "1" : String(value));
  }
  return `#${address}`;
}
