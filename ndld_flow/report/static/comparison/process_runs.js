// The value of each process run in order of execution.

/** @import { View } from "./data.js" */

import { drawAtWidth, scale, ticks } from "../charts.js";
import { draw, make } from "../elements.js";
import { latencyDistribution } from "../latency_distribution.js";
import { count, quantityText } from "../quantities.js";
import { tooltip } from "../widgets.js";

/** @typedef {{place: number, run: number, value: number, started: number}} RunPoint */

const RUNS_HEIGHT = 168;

/**
 * Where all reports were measured in turns, each round is one position; otherwise each report has positions of its own.
 * @param {View} view
 * @param {MetricData} metric
 */
function runPoints(view, metric) {
  const sessions = new Set(view.profile.reports.map((report) => report.session));
  const inTurns = sessions.size === 1 && !sessions.has("");
  /** @type {RunPoint[]} */
  const points = view.profile.subjects.flatMap((_, place) => (metric.runs[place] ?? []).flatMap((value, run) =>
    (value === null ? [] : [{ place, run, value, started: view.report(place).started_s[run] ?? run }])));
  if (inTurns) points.sort((a, b) => a.started - b.started || a.place - b.place);
  return { points, inTurns };
}

/**
 * Letters, so that reports can be distinguished without colours.
 * @param {View} view
 * @param {RunPoint} point
 * @param {string} value
 * @param {number} x
 * @param {number} y
 */
function runPoint(view, point, value, x, y) {
  const subject = view.subject(point.place);
  const text = `${subject.letter} ${subject.label}, run ${point.run + 1}\n${value}`;
  return draw("g", {
    class: `series series-${subject.series} run`,
    onpointermove: (/** @type {PointerEvent} */ event) => tooltip.show(event.clientX, event.clientY, text),
    onpointerleave: () => tooltip.hide(),
  }, draw("circle", { cx: x, cy: y, r: 8 }), draw("text", { x, y: y + 4, "text-anchor": "middle" }, subject.letter));
}

/**
 * @param {HTMLElement} figure
 * @param {View} view
 * @param {MetricData} metric
 * @param {RunPoint[]} points
 * @param {number} width
 */
function drawRunsAt(figure, view, metric, points, width) {
  const values = points.map((point) => point.value);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const room = Math.max((most - least) * 0.12, most * 0.004, 1e-9);
  const [low, high] = [Math.max(least - room, 0), most + room];
  const y = scale(low, high, RUNS_HEIGHT - 20, 14);
  const left = 72;
  const x = scale(-0.5, points.length - 0.5, left, width);
  const svg = draw("svg", {
    height: RUNS_HEIGHT, viewBox: `0 0 ${width} ${RUNS_HEIGHT}`, role: "img",
    "aria-label": `${metric.metric} of ${points.length} process runs`,
  });
  for (const mark of ticks(low, high, 4)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width, y1: y(mark), y2: y(mark) }),
      draw("text", { x: left - 8, y: y(mark) + 4, "text-anchor": "end" }, quantityText(mark, metric.unit)));
  }
  for (const place of view.profile.subjects.keys()) {
    const own = points.map((point, order) => ({ ...point, order })).filter((point) => point.place === place);
    const path = own.map((point) => `${x(point.order).toFixed(1)} ${y(point.value).toFixed(1)}`);
    if (own.length > 1) svg.append(draw("path", { class: `series series-${view.subject(place).series} thread`, d: `M${path.join("L")}` }));
  }
  points.forEach((point, order) => svg.append(runPoint(view, point, quantityText(point.value, metric.unit), x(order), y(point.value))));
  figure.replaceChildren(svg);
}

/**
 * @param {HTMLElement} host
 * @param {View} view
 */
export function drawRuns(host, view) {
  const metric = view.profile.metrics[view.deciding];
  const { points, inTurns } = metric ? runPoints(view, metric) : { points: [], inTurns: false };
  // A single run of each is in the table above.
  if (points.length <= view.profile.subjects.length || points.length > 400) {
    host.replaceChildren();
    return;
  }
  const figure = make("figure", { class: "picture" });
  const how = inTurns ? "measured in turns, from left to right" : "not measured in turns: one report after the other";
  host.replaceChildren(make("h3", { class: "minor" }, `Process runs by ${metric.metric}, ${how}`), figure);
  drawAtWidth(figure, (width) => drawRunsAt(figure, view, metric, points, width));
}

/**
 * @param {HTMLElement} host
 * @param {View} view
 */
export function drawSpread(host, view) {
  const measured = view.profile.reports.map((report, place) => ({ report, subject: view.subject(place) }))
    .filter(({ report }) => report.samples.length > 1);
  if (measured.length === 0) {
    host.replaceChildren();
    return;
  }
  const inner = make("div");
  const most = Math.max(...measured.map(({ report }) => report.sample_count));
  host.replaceChildren(make("h3", { class: "minor" }, `Passes of the timing pass, up to ${count(most)} of each`), inner);
  latencyDistribution(inner, measured.map(({ report, subject }) => ({
    label: `${subject.letter}  ${subject.label}`, series: subject.series, latency: report.latency,
    quartiles_ms: report.quartiles_ms, samples: report.samples,
  })));
}
