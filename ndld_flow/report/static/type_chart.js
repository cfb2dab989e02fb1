// Time by layer type: total or mean, in ms or as a share; several reports side by side in their colours.

import { axisUnit, ticks, tickText } from "./charts.js";
import { make, shortened } from "./elements.js";
import { count, milliseconds, share } from "./quantities.js";
import { makeSwitch } from "./widgets.js";

/** @typedef {{label: string, series: number, types: {type: string, count: number, ms: number}[], wholeMs: number}} TypeReport */

/** @typedef {{types: string[], values: {layers: number, value: number}[]}} TypeRow */

const TYPES_IN_CHART = 14;

export class TypeChart {
  /**
   * @param {HTMLElement} host
   * @param {TypeReport[]} reports
   * @param {{pick?: (type: string) => void}} [options] `pick` is called for a click
   */
  constructor(host, reports, { pick = () => {} } = {}) {
    this.reports = reports;
    this.pick = pick;
    this.amount = "total";
    this.unit = "ms";
    this.types = this.longest();
    this.table = make("table", { class: "bars type-chart" });
    host.replaceChildren(
      make("div", { class: "tools" },
        makeSwitch("Time", { total: "total", mean: "mean per layer" }, "total", (amount) => this.show({ amount })),
        makeSwitch("in", { ms: "ms", share: "%" }, "ms", (unit) => this.show({ unit }))),
      this.table);
    this.show({});
  }

  longest() {
    /** @type {Map<string, number>} */
    const sums = new Map();
    for (const { types } of this.reports) for (const { type, ms } of types) sums.set(type, (sums.get(type) ?? 0) + ms);
    return [...sums].sort((a, b) => b[1] - a[1]).map(([type]) => type);
  }

  /**
   * @param {TypeReport} report
   * @param {string[]} types
   */
  value(report, types) {
    const matching = report.types.filter(({ type }) => types.includes(type));
    const ms = matching.reduce((sum, group) => sum + group.ms, 0);
    const layers = matching.reduce((sum, group) => sum + group.count, 0);
    const whole = this.unit === "share" ? report.wholeMs || 1 : 1;
    return { layers, value: (this.amount === "mean" ? ms / Math.max(layers, 1) : ms) / whole };
  }

  /** @param {{amount?: string, unit?: string}} choice */
  show(choice) {
    Object.assign(this, choice);
    const names = this.types.slice(0, TYPES_IN_CHART).map((type) => [type]);
    if (this.types.length > TYPES_IN_CHART) names.push(this.types.slice(TYPES_IN_CHART));
    const rows = names.map((types) => ({ types, values: this.reports.map((report) => this.value(report, types)) }));
    if (this.amount === "mean") rows.sort((a, b) => b.values[0].value - a.values[0].value);
    const most = rows.reduce((top, { values }) => values.reduce((a, { value }) => Math.max(a, value), top), 0) || 1;
    this.table.replaceChildren(this.head(most), make("tbody", {}, ...rows.map((row) => this.row(row, most))));
  }

  /**
   * The grid lines of all bars are one background that repeats with the step of the axis.
   * @param {number} most
   */
  head(most) {
    const { unit, factor } = this.unit === "share" ? { unit: "%", factor: 100 } : axisUnit(most);
    const marks = ticks(0, most, 5);
    const step = marks.length > 1 ? marks[1] : most;
    this.table.style.setProperty("--reports", String(this.reports.length));
    this.table.style.setProperty("--grid", `${((step / most) * 100).toFixed(4)}%`);
    // The last label stands before its mark if it would leave the axis, and is left out if it would cover another.
    const shown = marks.filter((mark) => mark / most <= 0.85 || step / most > 0.3);
    const labels = shown.map((mark) => {
      const label = make("span", {}, `${tickText(mark, step, factor)}${mark === 0 ? "" : ` ${unit}`}`);
      label.style.left = `${((mark / most) * 100).toFixed(3)}%`;
      if (mark / most > 0.85) label.style.transform = "translateX(-100%)";
      return label;
    });
    return make("thead", {}, make("tr", {},
      make("th", { scope: "col" }, "Type"), make("th", { scope: "col", class: "n" }, "Layers"),
      make("th", { scope: "col", class: "n" }, this.unit === "share" ? "Share" : "Time"),
      make("td", { class: "track axis-row", "aria-hidden": "true" }, ...labels)));
  }

  /**
   * @param {TypeRow} row
   * @param {number} most
   */
  row({ types, values }, most) {
    const [type] = types;
    const rest = types.length > 1;
    const name = rest ? `${count(types.length)} more types` : shortened(type, 60) || "(no type)";
    /** @param {number} value */
    const text = (value) => (this.unit === "share" ? share(value) : milliseconds(value));
    const head = rest ? make("bdi", {}, name)
      : make("button", { type: "button", title: "Show only this type", onclick: () => this.pick(type) }, make("bdi", {}, name));
    const bars = values.map(({ value }, place) => {
      const bar = make("i", { class: `series-${this.reports[place].series ?? 0}` });
      bar.style.width = `${((value / most) * 100).toFixed(2)}%`;
      return bar;
    });
    return make("tr", { class: rest ? "rest" : null },
      make("th", { scope: "row", class: "clip" }, head),
      make("td", { class: "n quiet" }, values.map(({ layers }) => count(layers)).join(" · ")),
      make("td", { class: "n" }, values.map(({ value }) => text(value)).join(" · ")),
      make("td", { class: "track" }, ...bars));
  }
}
