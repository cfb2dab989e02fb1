// Colours of values: -1 to 1 through a table, and what is not finite in colours that no table has.

const SHADES = 512; // on either side of the middle
const COLOUR_STOPS = {
  red: [[-1, 255, 30, 30], [0, 0, 0, 0], [1, 30, 235, 60]],
  blue: [[-1, 6, 38, 94], [-0.55, 58, 130, 196], [0, 246, 246, 243], [0.55, 236, 140, 46], [1, 112, 46, 0]],
  grey: [[-1, 0, 0, 0], [1, 255, 255, 255]],
};
const COLOUR_NAMES = { red: "Red/green", blue: "Blue/orange", grey: "Grey" };
const ODD_COLOURS = { minus: [0, 229, 255], plus: [255, 230, 0], nan: [255, 0, 200] };

const packedColour = ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0; // as a canvas has it, on all machines there are

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

// Which shift and scale show values from low to high: zero stays in the middle where colours tell signs.
function fittingLook(colours, [low, high]) {
  const shift = colours === "grey" ? -(low / 2 + high / 2) : 0;
  const most = Math.max(Math.abs(low + shift), Math.abs(high + shift));
  return { shift, scale: most > 0 ? 1 / most : 1 };
}

// The colours from -1 to 1 as a bar.
function paintScale(canvas, colours) {
  canvas.width = 2 * SHADES + 1;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, 1);
  new Uint32Array(image.data.buffer).set(COLOUR_TABLES[colours]);
  context.putImageData(image, 0, 0);
}
