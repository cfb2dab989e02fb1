// Errors of two models at each step of sequences: a line for each output, its bound, and the decisions that flipped.

import { drawAtWidth, scale, SERIES, ticks } from "../static/charts.js";
import { draw, live, make } from "../static/elements.js";
import { count, counted, plainNumber } from "../static/quantities.js";
import { Spots } from "../static/scatter_points.js";

const CHART = { height: 280, left: 66, right: 18, top: 22, bottom: 34 };
const DECADES = 6; // smaller errors are drawn at the lower edge

/** @typedef {{place: number, step: number, error: number}} ErrorPoint */

class StepChartView {
  /**
   * @param {HTMLElement} host
   * @param {StepChart} data
   */
  constructor(host, data) {
    this.data = data;
    /** @type {ErrorPoint[]} */
    this.points = data.lines.flatMap(({ errors }, place) => errors.flatMap((error, number) => (error === null ? [] : [{ place, step: number * data.share, error }])));
    const bounds = data.lines.flatMap(({ bound }) => (bound === null ? [] : [bound]));
    this.high = Math.max(...this.points.map(({ error }) => error), ...bounds, 1e-30) * 1.6;
    const least = Math.min(...this.points.map(({ error }) => error).filter((error) => error > 0), this.high);
    this.low = Math.max(least / 1.6, this.high / 10 ** DECADES);
    this.room = make("div");
    host.append(this.keys(), make("figure", { class: "picture" }, this.room));
    drawAtWidth(this.room, (width) => this.draw(width));
  }

  keys() {
    return make("p", { class: "keys" }, ...this.data.lines.map(({ output }, place) =>
      make("span", { class: `key key-series series-${place % SERIES}` }, make("bdi", {}, output))));
  }

  /** @param {number} step counted from 0 */
  stepName(step) {
    const { ends, labels } = this.data;
    if (!ends.length) return `step ${count(step + 1)}`;
    const place = ends.filter((end) => end <= step).length;
    return `${labels[place]}, step ${count(step + 1 - (place ? ends[place - 1] : 0))}`;
  }

  /** @param {number} width */
  draw(width) {
    const { data } = this;
    const bottom = CHART.height - CHART.bottom;
    const x = scale(0, Math.max(data.steps - 1, 1), CHART.left + 8, width - CHART.right - 8);
    const along = scale(Math.log10(this.low), Math.log10(this.high), bottom, CHART.top);
    /** @type {(error: number) => number} */
    const y = (error) => along(Math.log10(Math.max(error, this.low)));
    const svg = draw("svg", {
      height: CHART.height, viewBox: `0 0 ${width} ${CHART.height}`, role: "application", "aria-roledescription": "line chart", tabindex: 0,
      "aria-label": `Error of ${counted(data.lines.length, "output")} at ${counted(data.steps, "step")}, on a logarithmic axis. Arrow keys move through the steps.`,
    }, ...this.grid(x, y, width), ...data.lines.flatMap((line, place) => this.line(line, place, x, y)));
    const spots = this.points.map(({ place, step, error }, row) => ({ x: x(step), y: y(error), row, text: this.words(place, step, error) }));
    new Spots(svg, spots, { pick: () => {} });
    this.room.replaceChildren(svg);
  }

  /**
   * @param {number} place
   * @param {number} step
   * @param {number} error
   */
  words(place, step, error) {
    const { output, metric } = this.data.lines[place];
    const last = Math.min(step + this.data.share, this.data.steps) - 1;
    const name = last > step ? `${this.stepName(step)} to ${this.stepName(last)}` : this.stepName(step);
    return `${output}\n${name}\n${metric} ${plainNumber(error)}`;
  }

  /**
   * @param {(step: number) => number} x
   * @param {(error: number) => number} y
   * @param {number} width
   */
  grid(x, y, width) {
    const bottom = CHART.height - CHART.bottom;
    const decades = ticks(Math.ceil(Math.log10(this.low)), Math.max(Math.log10(this.high), Math.ceil(Math.log10(this.low)) + 0.1), 6)
      .filter(Number.isInteger).map((power) => 10 ** power);
    const steps = ticks(1, Math.max(this.data.steps, 2), Math.max(2, Math.floor((width - CHART.left) / 90))).filter((tick) => Number.isInteger(tick) && tick > 0);
    return [
      ...decades.flatMap((tick) => [
        draw("line", { class: "grid", x1: CHART.left, x2: width - CHART.right, y1: y(tick), y2: y(tick) }),
        draw("text", { x: CHART.left - 8, y: y(tick) + 4, "text-anchor": "end" }, plainNumber(tick))]),
      ...steps.map((tick) => draw("text", { x: x(tick - 1), y: bottom + 17, "text-anchor": "middle" }, count(tick))),
      draw("text", { x: 0, y: bottom + 17 }, "step"),
      ...this.data.ends.map((end) => draw("line", { class: "grid", x1: x(end - 0.5), x2: x(end - 0.5), y1: CHART.top, y2: bottom })),
    ];
  }

  /**
   * @param {StepLine} line
   * @param {number} place
   * @param {(step: number) => number} x
   * @param {(error: number) => number} y
   */
  line({ bound, first, flipped }, place, x, y) {
    const own = this.points.filter((point) => point.place === place);
    let before = -Infinity; // a line is interrupted where a step has no error
    const path = own.map(({ step, error }) => {
      const joined = step - before <= this.data.share;
      before = step;
      return `${joined ? "L" : "M"}${x(step).toFixed(1)} ${y(error).toFixed(1)}`;
    }).join("");
    const flips = flipped.map((step) => `M${x(step).toFixed(1)} ${CHART.top - 4}v-8`).join("");
    const limit = bound === null ? [] : [draw("line", { class: "bound", x1: CHART.left, x2: x(this.data.steps - 1) + 8, y1: y(bound), y2: y(bound) })];
    const start = first === null ? [] : [draw("line", { class: "first-line", x1: x(first), x2: x(first), y1: CHART.top, y2: CHART.height - CHART.bottom })];
    return [
      ...limit, ...start,
      draw("g", { class: `series series-${place % SERIES}` }, draw("path", { class: "drift", d: path }), draw("path", { class: "drift", d: flips })),
    ];
  }
}

/** @param {ReportData} data */
export function show({ panels }) {
  panels.sequences?.forEach((data, place) => {
    const host = live(`sequence-${place}`);
    if (host && data.lines.length) new StepChartView(host, data);
  });
}
