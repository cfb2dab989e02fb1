// Pixels of one channel: of a side, or of both split, mixed or subtracted.
//
// A look is {mode, colours, shift, scale, split, mix, gain}: (value + shift) * scale is a place from -1 to 1 in the colours.

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

function paintSplit(pixels, maps, from, look) {
  paintSide(pixels, maps.candidate, from, look);
  const left = new Uint32Array(pixels.length);
  paintSide(left, maps.reference, from, look);
  const cut = Math.round(look.split * maps.width);
  for (let row = 0; row < pixels.length; row += maps.width) pixels.set(left.subarray(row, row + cut), row);
}

function paintMix(pixels, maps, from, look) {
  paintSide(pixels, maps.reference, from, look);
  const over = new Uint32Array(pixels.length);
  paintSide(over, maps.candidate, from, look);
  const [under, above] = [new Uint8ClampedArray(pixels.buffer), new Uint8ClampedArray(over.buffer)];
  for (let place = 0; place < under.length; place++) under[place] += (above[place] - under[place]) * look.mix;
}

// What only one of them has is in its own colour; what both have alike is no difference.
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

const BLENDS = { split: paintSplit, mix: paintMix, difference: paintDifference };

// Into an ImageData of the maps' size. `side` is what a mode without both shows, and each half of side by side.
function paintChannel(image, maps, channel, look, side) {
  const pixels = new Uint32Array(image.data.buffer);
  const from = channel * maps.size;
  const both = maps.reference && maps.candidate;
  if (both && BLENDS[look.mode]) BLENDS[look.mode](pixels, maps, from, look);
  else paintSide(pixels, maps[side] ?? maps.sides[0], from, look);
}

// Which pictures a mode needs of each channel.
function shownSides(maps, mode) {
  if (!maps.reference || !maps.candidate) return [maps.candidate ? "candidate" : "reference"];
  return mode === "side" ? ["reference", "candidate"] : [mode === "reference" ? "reference" : "candidate"];
}

// Paints a canvas as large as the map; the page makes it larger.
function paintCanvas(canvas, maps, channel, look, side) {
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
