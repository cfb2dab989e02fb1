// One series of measurements with its levels and steps, and the choice of the series.

import { drawAtWidth, scale, ticks } from "../charts.js";
import { draw, make, shortened } from "../elements.js";
import { counted, quantityText } from "../quantities.js";
import { Spots } from "../scatter_points.js";

const SIZE = { height: 330, left: 74, right: 18, top: 34, bottom: 40 };
const MANY = 1500;
const LEAST = 4; // points of a chart from which nothing can be concluded: fewer are a sentence

/**
 * The day, or of a span of a few days the time too: equal labels would show nothing.
 * @param {number} seconds since 1970
 * @param {number} span in seconds
 */
const label = (seconds, span) => {
  const text = new Date(seconds * 1000).toISOString();
  return span > 4 * 86400 ? text.slice(0, 10) : text.slice(5, 16).replace("T", " ");
};

/** @param {number} seconds since 1970 */
const moment = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;

/**
 * The range of values that shows the levels: a few outliers must not flatten the rest.
 * @param {number[]} values
 * @param {DrawnStep[]} steps
 * @param {number | null} limit
 */
function rangeOf(values, steps, limit) {
  const sorted = [...values].sort((a, b) => a - b);
  const at = (/** @type {number} */ part) => sorted[Math.round(part * (sorted.length - 1))];
  const [first, third] = [at(0.25), at(0.75)];
  const levels = [...steps.flatMap(({ before, after }) => [before, after]), ...(limit === null ? [] : [limit])];
  const room = 4 * (third - first);
  const low = Math.min(...levels, Math.max(sorted[0], first - room));
  const high = Math.max(...levels, Math.min(sorted[sorted.length - 1], third + room));
  const margin = (high - low) * 0.12 || Math.abs(high) * 0.05 || 1;
  return { low: low - margin, high: high + margin };
}

export class HistoryChart {
  /**
   * @param {HTMLElement} host
   * @param {HistoryData} data
   */
  constructor(host, data) {
    this.data = data;
    this.now = data.first;
    this.chosen = -1;
    this.choice = make("select", { id: "history-series", onchange: () => this.show(this.choice.selectedIndex) },
      ...data.series.map((series) => make("option", {}, this.name(series))));
    this.choice.selectedIndex = this.now;
    this.about = make("span", { class: "about quiet" });
    this.room = make("div");
    this.key = make("p", { class: "quiet small history-key" }, make("i"), "median of a level, with the band within which nothing is a change; each point is a measurement, ",
      make("i", { class: "ring" }), "no baseline; upright lines are changes, dashed if accepted. Arrow keys move through the points.");
    host.append(
      make("div", { class: "history-tools" }, make("label", { for: "history-series" }, "Metric"), this.choice, this.about),
      make("figure", { class: "picture" }, this.room),
      this.key);
    this.picture = drawAtWidth(this.room, (width) => this.draw(width));
  }

  /**
   * The metric; with its machine where there are several series of it.
   * @param {DrawnSeries} series
   */
  name({ metric, about }) {
    const isOnly = this.data.series.filter((each) => each.metric === metric).length === 1;
    return isOnly ? metric : shortened(`${metric} · ${about}`, 150);
  }

  /**
   * @param {number} series
   * @param {number} place the first point after the step to highlight
   */
  show(series, place = -1) {
    this.now = series;
    this.chosen = place;
    this.choice.selectedIndex = series;
    this.picture.want();
    this.picture.again();
  }

  /** @param {number} width */
  draw(width) {
    const series = this.data.series[this.now];
    // A limit far from all values would flatten them.
    const isNear = series.limit !== null && series.limit > Math.min(...series.value) / 1.5 && series.limit < Math.max(...series.value) * 1.5;
    const near = isNear ? series.limit : null;
    const far = series.limit === null || isNear ? "" : `gate's limit ${quantityText(series.limit, series.unit)}, beyond the chart`;
    this.about.textContent = [series.about, series.remark, far].filter(Boolean).join("; ");
    this.key.hidden = series.remark !== "" && series.value.length < LEAST;
    if (this.key.hidden) {
      this.room.replaceChildren(make("p", {}, series.value.map((value, place) =>
        `${quantityText(value, series.unit)} on ${moment(this.data.runs[series.run[place]].started_s)}`).join(", "), "."));
      return;
    }
    const { low, high } = rangeOf(series.value, series.steps, near);
    const x = scale(-0.5, Math.max(series.value.length - 0.5, 0.5), SIZE.left, width - SIZE.right);
    const y = scale(low, high, SIZE.height - SIZE.bottom, SIZE.top);
    const kept = (/** @type {number} */ value) => y(Math.min(Math.max(value, low), high));
    const svg = draw("svg", {
      height: SIZE.height, viewBox: `0 0 ${width} ${SIZE.height}`, role: "application", "aria-roledescription": "line chart",
      tabindex: 0, "aria-label": this.words(series),
    });
    svg.append(...this.grid(series, { x, y, low, high, width }), ...this.levels({ ...series, limit: near }, x, y, width), ...this.points(series, x, kept), ...this.steps(series, x));
    const spots = series.value.map((value, place) => ({ x: x(place), y: kept(value), row: place, text: this.text(series, place) }));
    new Spots(svg, spots, { start: Math.max(this.chosen, series.value.length - 1, 0), pick: () => {} });
    this.room.replaceChildren(svg);
  }

  /** @param {DrawnSeries} series */
  words({ metric, value, unit, steps }) {
    const changes = steps.map(({ change, verdict }) => `${verdict} by ${change}`).join(", ");
    return `${metric}: ${counted(value.length, "measurement")}, the last ${quantityText(value[value.length - 1], unit)}. ${changes || "No change"}. Arrow keys move through points.`;
  }

  /**
   * @param {DrawnSeries} series
   * @param {number} place
   */
  text(series, place) {
    const { id, started_s, commit } = this.data.runs[series.run[place]];
    const step = series.steps.find((each) => each.place === place);
    return [
      `${quantityText(series.value[place], series.unit)}`,
      moment(started_s),
      id,
      commit && `commit ${commit}`,
      series.shown_by[place] > 1 && `shown by ${counted(series.shown_by[place], "run")}`,
      series.doubt[place] && `no baseline: ${series.doubt[place]}`,
      step && `${step.verdict} by ${step.change}\n${step.detail}`,
      step?.accepted && `accepted: ${step.accepted}`,
    ].filter(Boolean).join("\n");
  }

  /**
   * @param {DrawnSeries} series
   * @param {{x: (value: number) => number, y: (value: number) => number, low: number, high: number, width: number}} at
   */
  grid(series, { x, y, low, high, width }) {
    const total = series.value.length;
    const started = series.run.map((run) => this.data.runs[run].started_s);
    const span = started[total - 1] - started[0];
    const labels = Math.max(2, Math.min(total, Math.floor((width - SIZE.left) / 150)));
    const places = [...new Set(Array.from({ length: labels }, (_, number) => Math.round((number * (total - 1)) / Math.max(labels - 1, 1))))];
    const at = (/** @type {number} */ place) => label(started[place], span);
    const anchor = (/** @type {number} */ place) => (place === total - 1 && total > 1 ? "end" : place === 0 ? "start" : "middle");
    return [
      ...ticks(low, high, 5).flatMap((tick) => [
        draw("line", { class: "grid", x1: SIZE.left, x2: width - SIZE.right, y1: y(tick), y2: y(tick) }),
        draw("text", { x: SIZE.left - 8, y: y(tick) + 4, "text-anchor": "end" }, quantityText(Number(tick.toPrecision(12)), series.unit))]),
      ...places.filter((place, number) => number === 0 || at(place) !== at(places[number - 1]))
        .map((place) => draw("text", { x: x(place), y: SIZE.height - 16, "text-anchor": anchor(place) }, at(place))),
    ];
  }

  /**
   * @param {DrawnSeries} series
   * @param {(value: number) => number} x
   * @param {(value: number) => number} y
   */
  points(series, x, y) {
    /** @type {string[]} */
    const good = [];
    const doubtful = [];
    for (const [place, value] of series.value.entries()) {
      if (series.doubt[place]) doubtful.push(draw("circle", { class: "history-doubt", cx: x(place).toFixed(1), cy: y(value).toFixed(1), r: 3.2 }));
      else good.push(`M${x(place).toFixed(1)} ${y(value).toFixed(1)}h.01`);
    }
    return [draw("path", { class: series.value.length > MANY ? "history-point many" : "history-point", d: good.join("") }), ...doubtful];
  }

  /**
   * @param {DrawnSeries} series
   * @param {(value: number) => number} x
   * @param {(value: number) => number} y
   * @param {number} width
   */
  levels({ value, steps, level, least_change, limit, unit }, x, y, width) {
    const bounds = [0, ...steps.map(({ place }) => place), value.length];
    const medians = steps.length ? [steps[0].before, ...steps.map(({ after }) => after)] : level === null ? [] : [level];
    const edges = (/** @type {number} */ median) => [y(median * (1 + least_change)), y(median * (1 - least_change))].sort((a, b) => a - b);
    const bands = medians.map((median, number) => draw("rect", {
      class: "history-band", x: x(bounds[number] - 0.5), width: x(bounds[number + 1] - 0.5) - x(bounds[number] - 0.5),
      y: edges(median)[0], height: edges(median)[1] - edges(median)[0],
    }));
    const bound = limit === null ? [] : [
      draw("line", { class: "history-limit", x1: SIZE.left, x2: width - SIZE.right, y1: y(limit), y2: y(limit) }),
      draw("text", { class: "history-change", x: SIZE.left + 4, y: y(limit) - 5 }, `gate's limit ${quantityText(limit, unit)}`)];
    const path = medians.map((median, number) => `M${x(bounds[number] - 0.5).toFixed(1)} ${y(median).toFixed(1)}H${x(bounds[number + 1] - 0.5).toFixed(1)}`);
    return [...bands, draw("path", { class: "history-level", d: path.join("") }), ...bound];
  }

  /**
   * @param {DrawnSeries} series
   * @param {(value: number) => number} x
   */
  steps({ steps }, x) {
    let free = Infinity;
    return [...steps].reverse().flatMap(({ place, verdict, change, accepted }) => {
      const at = x(place - 0.5);
      const line = draw("line", {
        class: `history-step ${verdict}${accepted ? " is-accepted" : ""}${place === this.chosen ? " is-chosen" : ""}`,
        x1: at, x2: at, y1: SIZE.top - 6, y2: SIZE.height - SIZE.bottom,
      });
      if (at > free) return [line];
      free = at - 64;
      return [line, draw("text", { class: "history-change", x: at, y: SIZE.top - 12, "text-anchor": "middle" }, change)];
    });
  }
}
