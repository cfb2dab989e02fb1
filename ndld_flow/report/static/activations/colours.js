// Pixels of a map: tables of colours, and both models split, mixed or subtracted.

/** @import { SideMap, TensorMaps } from "./data.js" */
/** @import { Look, Side } from "./state.js" */

import { LARGEST_CODE } from "./data.js";

/** @typedef {{reference: SideMap, candidate: SideMap, width: number}} Pair both sides of a tensor, and the width of their maps */

// Colours of values: -1 to 1 through a table; values that are not finite have colours that no table contains.

const SHADES = 512; // on either side of the middle
/** @type {Record<string, number[][]>} */
export const COLOUR_STOPS = {
  red: [[-1, 255, 30, 30], [0, 0, 0, 0], [1, 30, 235, 60]],
  blue: [[-1, 6, 38, 94], [-0.55, 58, 130, 196], [0, 246, 246, 243], [0.55, 236, 140, 46], [1, 112, 46, 0]],
  grey: [[-1, 0, 0, 0], [1, 255, 255, 255]],
};
/** @type {Record<string, string>} */
export const COLOUR_NAMES = { blue: "Blue/orange", red: "Red/green", grey: "Grey" };
export const ODD_COLOURS = { minus: [0, 229, 255], plus: [255, 230, 0], nan: [255, 0, 200] };

/** @param {number[]} colour */
const packedColour = ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0; // the byte order of a canvas on little-endian machines

/** @param {number[][]} stops */
function colourTable(stops) {
  const table = new Uint32Array(2 * SHADES + 1);
  for (let place = 0; place < table.length; place++) {
    const at = place / SHADES - 1;
    const above = Math.max(1, stops.findIndex(([edge]) => edge >= at));
    const [from, to] = [stops[above - 1], stops[above]];
    const part = (at - from[0]) / (to[0] - from[0]);
    table[place] = packedColour([1, 2, 3].map((channel) => Math.round(from[channel] + part * (to[channel] - from[channel]))));
  }
  return table;
}

const COLOUR_TABLES = Object.fromEntries(Object.entries(COLOUR_STOPS).map(([name, stops]) => [name, colourTable(stops)]));
const ODD_TABLE = Uint32Array.from([ODD_COLOURS.minus, ODD_COLOURS.plus, ODD_COLOURS.nan], packedColour); // codes 65533 to 65535

/**
 * The shift and scale that show values from low to high; zero stays in the middle where colours show signs.
 * @param {string} colours
 * @param {[number, number]} ends
 */
export function fittingLook(colours, [low, high]) {
  const shift = colours === "grey" ? -(low / 2 + high / 2) : 0;
  const most = Math.max(Math.abs(low + shift), Math.abs(high + shift));
  return { shift, scale: most > 0 ? 1 / most : 1 };
}

/**
 * The colours from -1 to 1 as a bar.
 * @param {HTMLCanvasElement} canvas
 * @param {string} colours
 */
export function paintScale(canvas, colours) {
  canvas.width = 2 * SHADES + 1;
  canvas.height = 1;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, 1);
  new Uint32Array(image.data.buffer).set(COLOUR_TABLES[colours]);
  context.putImageData(image, 0, 0);
}

// Pixels of one channel: of a side, or of both split, mixed or subtracted. With a look, (value + shift) * scale is a
// position from -1 to 1 in the colours.

/** @param {number} position */
function shadeOf(position) {
  const shade = Math.round(position * SHADES) + SHADES;
  return shade < 0 ? 0 : shade > 2 * SHADES ? 2 * SHADES : shade;
}

/**
 * @param {Uint32Array} pixels
 * @param {SideMap} side
 * @param {number} from position of the channel's first code
 * @param {Look} look
 */
function paintSide(pixels, side, from, look) {
  const table = COLOUR_TABLES[look.colours];
  const slope = side.step * look.scale;
  const start = (side.low + look.shift) * look.scale;
  for (let place = 0; place < pixels.length; place++) {
    const code = side.codes[from + place];
    pixels[place] = code > LARGEST_CODE ? ODD_TABLE[code - LARGEST_CODE - 1] : table[shadeOf(start + slope * code)];
  }
}

/**
 * @param {Uint32Array} pixels
 * @param {Pair} pair
 * @param {number} from position of the channel's first code
 * @param {Look} look
 */
function paintSplit(pixels, { reference, candidate, width }, from, look) {
  paintSide(pixels, candidate, from, look);
  const left = new Uint32Array(pixels.length);
  paintSide(left, reference, from, look);
  const cut = Math.round(look.split * width);
  for (let row = 0; row < pixels.length; row += width) pixels.set(left.subarray(row, row + cut), row);
}

/**
 * @param {Uint32Array} pixels
 * @param {Pair} pair
 * @param {number} from position of the channel's first code
 * @param {Look} look
 */
function paintMix(pixels, { reference, candidate }, from, look) {
  paintSide(pixels, reference, from, look);
  const over = new Uint32Array(pixels.length);
  paintSide(over, candidate, from, look);
  const [under, above] = [new Uint8ClampedArray(pixels.buffer), new Uint8ClampedArray(over.buffer)];
  for (let place = 0; place < under.length; place++) under[place] += (above[place] - under[place]) * look.mix;
}

/**
 * A value that is not finite on one side only has its own colour; equal ones are no difference.
 * @param {Uint32Array} pixels
 * @param {Pair} pair
 * @param {number} from position of the channel's first code
 * @param {Look} look
 */
function paintDifference(pixels, { reference, candidate }, from, look) {
  const table = COLOUR_TABLES[look.colours];
  const factor = look.gain * look.scale;
  for (let place = 0; place < pixels.length; place++) {
    const [a, b] = [reference.codes[from + place], candidate.codes[from + place]];
    const odd = b > LARGEST_CODE ? b : a > LARGEST_CODE ? a : 0;
    if (odd && a !== b) pixels[place] = ODD_TABLE[odd - LARGEST_CODE - 1];
    else if (odd) pixels[place] = table[SHADES];
    else pixels[place] = table[shadeOf((candidate.low - reference.low + candidate.step * b - reference.step * a) * factor)];
  }
}

/** @type {Record<string, typeof paintSplit>} */
export const BLENDS = { split: paintSplit, mix: paintMix, difference: paintDifference };

/**
 * @param {ImageData} image of the maps' size
 * @param {TensorMaps} maps
 * @param {number} channel
 * @param {Look} look
 * @param {Side} side is shown by a mode without both
 */
function paintChannel(image, maps, channel, look, side) {
  const pixels = new Uint32Array(image.data.buffer);
  const from = channel * maps.size;
  const { reference, candidate, width } = maps;
  const blend = BLENDS[look.mode];
  if (blend && reference && candidate) blend(pixels, { reference, candidate, width }, from, look);
  else paintSide(pixels, maps[side] ?? maps.sides[0], from, look);
}

/**
 * The sides that a mode shows as pictures of their own.
 * @param {TensorMaps} maps
 * @param {string} mode
 * @returns {Side[]}
 */
export function shownSides(maps, mode) {
  if (!maps.reference || !maps.candidate) return [maps.candidate ? "candidate" : "reference"];
  return mode === "side" ? ["reference", "candidate"] : [mode === "reference" ? "reference" : "candidate"];
}

/**
 * Paints a canvas as large as the map; the page makes it larger.
 * @param {HTMLCanvasElement} canvas
 * @param {TensorMaps} maps
 * @param {number} channel
 * @param {Look} look
 * @param {Side} side
 */
export function paintCanvas(canvas, maps, channel, look, side) {
  if (canvas.width !== maps.width || canvas.height !== maps.height) {
    canvas.width = maps.width;
    canvas.height = maps.height;
  }
  // In memory, not on a GPU: pixels only ever come from here.
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
  const image = context.createImageData(maps.width, maps.height);
  paintChannel(image, maps, channel, look, side);
  context.putImageData(image, 0, 0);
}
