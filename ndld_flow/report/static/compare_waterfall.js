// Where did the time go: from the base's layer sum over what each type of layer saved or cost to the candidate's.

const WATERFALL_ROW = 26;
const WATERFALL_TYPES = 10;

function waterfallSteps(pair) {
  const all = pair.deltasBy("type").filter((one) => one.delta !== 0);
  const shown = all.slice(0, WATERFALL_TYPES);
  const rest = all.slice(WATERFALL_TYPES);
  if (rest.length) shown.push({ text: `${rest.length} more types`, delta: rest.reduce((sum, one) => sum + one.delta, 0), rest: true });
  return shown;
}

// Totals begin at zero unless the changes would then be too small to see; a cut axis says so.
function waterfallRange(start, steps) {
  let [sum, low, high] = [start, start, start];
  for (const { delta } of steps) {
    sum += delta;
    low = Math.min(low, sum);
    high = Math.max(high, sum);
  }
  const cut = low > 0.75 * high;
  return { low: cut ? Math.max(0, low - (high - low) * 0.5 - high * 0.001) : 0, high: high || 1, cut };
}

function waterfallBar(from, to, at, top, properties) {
  const [x0, x1] = [Math.min(from, to), Math.max(from, to)];
  return draw("rect", { x: at(x0), y: top + 5, width: Math.max(1.5, at(x1) - at(x0)), height: WATERFALL_ROW - 10, rx: 1, ...properties });
}

function drawWaterfallAt(figure, view, pair, width) {
  const steps = waterfallSteps(pair);
  const start = pair.rows.sums[pair.base];
  const range = waterfallRange(start, steps);
  const [left, right] = [Math.min(190, width * 0.34), 96];
  const at = scale(range.low, range.high, left, width - right);
  const height = WATERFALL_ROW * (steps.length + 2) + 4;
  const [base, candidate] = [view.subject(view.base), view.subject(view.candidate)];
  const svg = draw("svg", {
    height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `From ${milliseconds(start)} of ${base.letter} to ${milliseconds(pair.rows.sums[pair.candidate])} of ${candidate.letter}: ${steps.map((one) => `${shortened(one.text, 40)} ${signedMs(one.delta)}`).join(", ")}`,
  });
  const line = (row, label, value, strong) => svg.append(
    draw("text", { class: strong ? "strong" : null, x: left - 12, y: WATERFALL_ROW * row + 18, "text-anchor": "end" }, shortened(label, Math.max(8, Math.floor(left / 7.2)))),
    draw("text", { class: strong ? "strong" : null, x: width, y: WATERFALL_ROW * row + 18, "text-anchor": "end" }, value));
  const total = (row, place, subject) => {
    const ms = pair.rows.sums[place];
    line(row, `${subject.letter} ${subject.label}`, milliseconds(ms), true);
    svg.append(draw("g", { class: `series series-${subject.series}` }, waterfallBar(range.low, ms, at, WATERFALL_ROW * row, { class: "total" })));
  };
  total(0, pair.base, base);
  let sum = start;
  steps.forEach((one, position) => {
    const row = position + 1;
    line(row, one.text || "(no type)", signedMs(one.delta));
    svg.append(draw("line", { class: "grid", x1: at(sum), x2: at(sum), y1: WATERFALL_ROW * row - 5, y2: WATERFALL_ROW * (row + 1) - 5 }),
      waterfallBar(sum, sum + one.delta, at, WATERFALL_ROW * row, {
        class: one.delta < 0 ? "faster" : "slower",
        onpointermove: one.rest ? null : (event) => tooltip.show(event.clientX, event.clientY, `${shortened(one.text, 80)}\n${milliseconds(one.before)} → ${milliseconds(one.after)}\n${signedMs(one.delta)}, ${changeText(one.before ? one.after / one.before : null)}`),
        onpointerleave: one.rest ? null : () => tooltip.hide(),
      }));
    sum += one.delta;
  });
  svg.append(draw("line", { class: "grid", x1: at(sum), x2: at(sum), y1: WATERFALL_ROW * (steps.length + 1) - 5, y2: WATERFALL_ROW * (steps.length + 1) + 5 }));
  total(steps.length + 1, pair.candidate, candidate);
  figure.replaceChildren(svg);
}

class Waterfall {
  constructor(host) {
    this.title = make("h4");
    this.figure = make("figure", { class: "picture waterfall" });
    host.replaceChildren(this.title, this.figure);
  }

  draw(view, pair) {
    Object.assign(this, { view, pair });
    const { cut, low } = waterfallRange(pair.rows.sums[pair.base], waterfallSteps(pair));
    this.title.replaceChildren("From ", named(view.subject(view.base)), " to ", named(view.subject(view.candidate)),
      make("span", { class: "quiet" }, cut ? `, by type; bars begin at ${milliseconds(low)}` : ", by type"));
    if (this.picture) this.picture.again();
    else this.picture = drawAtWidth(this.figure, (width) => drawWaterfallAt(this.figure, this.view, this.pair, width));
  }
}
