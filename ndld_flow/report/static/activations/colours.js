// Pixels of a map: tables of colours, and both models split, mixed or subtracted.

/** @import { TensorMaps } from "./data.js" */

import { LARGEST_CODE } from "./data.js";

// Colours of values: -1 to 1 through a table; values that are not finite have colours that no table contains.

const SHADES = 512; // on either side of the middle
export const COLOUR_STOPS = {
  red: [[-1, 255, 30, 30], [0, 0, 0, 0], [1, 30, 235, 60]],
  blue: [[-1, 6, 38, 94], [-0.55, 58, 130, 196], [0, 246, 246, 243], [0.55, 236, 140, 46], [1, 112, 46, 0]],
  grey: [[-1, 0, 0, 0], [1, 255, 255, 255]],
};
export const COLOUR_NAMES = { red: "Red/green", blue: "Blue/orange", grey: "Grey" };
export const ODD_COLOURS = { minus: [0, 229, 255], plus: [255, 230, 0], nan: [255, 0, 200] };

/** @param {number[]} colour */
const packedColour = ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0; // the byte order of a canvas on little-endian machines

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

// The shift and scale that show values from low to high; zero stays in the middle where colours show signs.
export function fittingLook(colours, [low, high]) {
  const shift = colours === "grey" ? -(low / 2 + high / 2) : 0;
  const most = Math.max(Math.abs(low + shift), Math.abs(high + shift));
  return { shift, scale: most > 0 ? 1 / most : 1 };
}

// The colours from -1 to 1 as a bar.
export function paintScale(canvas, colours) {
  canvas.width = 2 * SHADES + 1;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, 1);
  new Uint32Array(image.data.buffer).set(COLOUR_TABLES[colours]);
  context.putImageData(image, 0, 0);
}

// Pixels of one channel: of a side, or of both split, mixed or subtracted.
//
// A look is {mode, colours, shift, scale, split, mix, gain}: (value + shift) * scale is a position from -1 to 1 in the
// colours.

function shadeOf(position) {
  const shade = Math.round(position * SHADES) + SHADES;
  return shade < 0 ? 0 : shade > 2 * SHADES ? 2 * SHADES : shade;
}

function paintSide(pixels, side, from, look) {
  const table = COLOUR_TABLES[look.colours];
  const slope = side.step * look.scale;
  const start = (side.low + look.shift) * look.scale;
  for (let place = 0; place < pixels.length; place++) {
    const code = side.codes[from + place];
    pixels[place] = code > LARGEST_CODE ? ODD_TABLE[code - LARGEST_CODE - 1] : table[shadeOf(start + slope * code)];
  }
}

/** @param {TensorMaps} maps */
function paintSplit(pixels, maps, from, look) {
  paintSide(pixels, maps.candidate, from, look);
  const left = new Uint32Array(pixels.length);
  paintSide(left, maps.reference, from, look);
  const cut = Math.round(look.split * maps.width);
  for (let row = 0; row < pixels.length; row += maps.width) pixels.set(left.subarray(row, row + cut), row);
}

/** @param {TensorMaps} maps */
function paintMix(pixels, maps, from, look) {
  paintSide(pixels, maps.reference, from, look);
  const over = new Uint32Array(pixels.length);
  paintSide(over, maps.candidate, from, look);
  const [under, above] = [new Uint8ClampedArray(pixels.buffer), new Uint8ClampedArray(over.buffer)];
  for (let place = 0; place < under.length; place++) under[place] += (above[place] - under[place]) * look.mix;
}

// A value that is not finite on one side only has its own colour; equal ones are no difference.
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

export const BLENDS = { split: paintSplit, mix: paintMix, difference: paintDifference };

/**
 * Paint into an ImageData of the maps' size. `side` is the side that a mode without both shows.
 * @param {TensorMaps} maps
 */
function paintChannel(image, maps, channel, look, side) {
  const pixels = new Uint32Array(image.data.buffer);
  const from = channel * maps.size;
  const both = maps.reference && maps.candidate;
  if (both && BLENDS[look.mode]) BLENDS[look.mode](pixels, maps, from, look);
  else paintSide(pixels, maps[side] ?? maps.sides[0], from, look);
}

/**
 * The sides that a mode shows as pictures of their own.
 * @param {TensorMaps} maps
 */
export function shownSides(maps, mode) {
  if (!maps.reference || !maps.candidate) return [maps.candidate ? "candidate" : "reference"];
  return mode === "side" ? ["reference", "candidate"] : [mode === "reference" ? "reference" : "candidate"];
}

/**
 * Paints a canvas as large as the map; the page makes it larger.
 * @param {TensorMaps} maps
 */
export function paintCanvas(canvas, maps, channel, look, side) {
  if (canvas.width !== maps.width || canvas.height !== maps.height) {
    canvas.width = maps.width;
    canvas.height = maps.height;
  }
  // In memory, not on a GPU: pixels only ever come from here.
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const image = context.createImageData(maps.width, maps.height);
  paintChannel(image, maps, channel, look, side);
  context.putImageData(image, 0, 0);
}
