// Latencies of timing passes: their distributions side by side, and every pass of each.

import { axisUnit, commonRange, drawAtWidth, scale, SERIES, ticks, tickText } from "../static/charts.js";
import { draw, make, required, shortened } from "../static/elements.js";
import { latencyDistribution } from "../static/latency_distribution.js";
import { count, counted, milliseconds, signedShare } from "../static/quantities.js";
import { makeSwitch, tooltip } from "../static/widgets.js";

/** @typedef {LatencyCharts & {series: number, detail: DrawnSamples, shown: boolean}} PlottedProfile */

// The passes of a profile that are drawn, each with its process run, its start and whether it is an outlier.
class DrawnSamples {
  /** @param {DrawnPasses[]} runs */
  constructor(runs) {
    this.values = runs.flatMap(({ ms }) => ms);
    this.runOf = runs.flatMap(({ ms }, run) => ms.map(() => run));
    let passes = 0;
    /** The first pass of each run. */
    this.first = runs.map(({ count: all }) => (passes += all) - all);
    this.passes = passes;
    /** The position of each sample among all passes. */
    this.number = runs.flatMap(({ number }, run) => number.map((pass) => this.first[run] + pass));
    /** The first sample of each run. */
    this.start = [...this.runOf.keys()].filter((place) => this.runOf[place] !== this.runOf[place - 1]);
    this.standsOut = runs.flatMap(({ ms, fence_ms }) => ms.map((value) => value > fence_ms));
    this.times = this.timesOf(runs);
  }

  /**
   * The first sample that is drawn of a pass or of those after it.
   * @param {number} pass
   */
  placeOf(pass) {
    const place = this.number.findIndex((number) => number >= pass);
    return place < 0 ? this.number.length - 1 : place;
  }

  /**
   * The start of each sample in ms since the first run; null where it was not recorded.
   * @param {DrawnPasses[]} runs
   */
  timesOf(runs) {
    if (runs.some(({ gaps_ns, ms }) => gaps_ns.length !== ms.length)) return null;
    return runs.flatMap(({ started_s, gaps_ns, ms }) => {
      let now = started_s * 1000;
      return ms.map((took, place) => {
        const start = now + gaps_ns[place] / 1e6;
        now = start + took;
        return start;
      });
    });
  }
}

// A plot of every pass by order or by time, with outliers as crosses and drift as a line. A ring marks the median pass.

const PASSES_HEIGHT = 250;
const PASSES_TOP = 22;
const PASSES_FLOOR = PASSES_HEIGHT - 30;

class PassesPlot {
  /**
   * @param {HTMLElement} host
   * @param {LatencyCharts[]} profiles
   */
  constructor(host, profiles) {
    /** @type {PlottedProfile[]} */
    this.profiles = profiles.map((profile, place) => ({ ...profile, series: place % SERIES, detail: new DrawnSamples(profile.runs), shown: true }));
    this.legend = make("div", { class: "legend" });
    this.host = make("div");
    this.notes = make("p", { class: "quiet small" });
    const timed = this.profiles.every(({ detail }) => detail.times);
    this.along = "pass";
    this.width = 0;
    this.range = commonRange(profiles);
    /** @type {(position: number) => number} */
    this.x = Number;
    /** @type {(ms: number) => number} */
    this.y = Number;
    this.svg = draw("svg");
    this.mark = draw("circle", { class: "ring", r: 6, visibility: "hidden" });
    this.markGroup = draw("g", { class: "series" }, this.mark);
    /** @type {{profile: PlottedProfile, place: number} | null} */
    this.current = null;
    this.choice = timed ? [makeSwitch("along", { pass: "passes", time: "time" }, "pass", (along) => {
      this.along = along;
      this.draw(this.width);
    })] : [];
    host.replaceChildren(make("h3", { class: "minor" }, "Passes"), this.legend, make("figure", { class: "picture" }, this.host), this.notes);
    this.buildLegend();
    this.writeNotes();
    drawAtWidth(this.host, (width) => this.draw(width));
  }

  buildLegend() {
    for (const profile of this.profiles) {
      const button = make("button", { type: "button", class: `series series-${profile.series}`, "aria-pressed": "true" },
        make("span", {}, shortened(profile.label, 40)));
      button.addEventListener("click", () => {
        profile.shown = !profile.shown;
        button.setAttribute("aria-pressed", String(profile.shown));
        this.draw(this.width);
      });
      this.legend.append(button);
    }
    this.legend.append(...this.choice);
  }

  writeNotes() {
    const words = this.profiles.map(({ label, detail, drift, outliers }) => {
      const { passes, values } = detail;
      const drifts = drift === null ? "" : `, ${signedShare(drift)} from the first to the last tenth of a run`;
      const part = values.length < passes ? ` ${count(values.length)} are drawn, the slowest among them; the profile's file has all.` : "";
      return `${shortened(label, 40)}: ${counted(outliers, "outlier")} of ${counted(passes, "pass")}${drifts}.${part}`;
    });
    this.notes.textContent = `${words.join(" ")} Crosses are outliers of their run, triangles are beyond the axis, lines are moving medians.`;
  }

  /**
   * @param {PlottedProfile} profile
   * @param {number} place of a sample
   */
  at({ detail }, place) {
    return this.along === "time" ? detail.times?.[place] ?? detail.number[place] : detail.number[place];
  }

  /** @param {number} width */
  draw(width) {
    if (!width) return;
    this.width = width;
    const shown = this.profiles.filter((profile) => profile.shown);
    this.range = commonRange(shown.length ? shown : this.profiles);
    const left = 64;
    const last = this.profiles.reduce((most, profile) => Math.max(most, this.at(profile, profile.detail.values.length - 1)), 1);
    this.x = scale(0, last, left + 4, width - 6);
    this.y = scale(this.range.low, this.range.high, PASSES_FLOOR - 4, PASSES_TOP);
    this.svg = draw("svg", {
      height: PASSES_HEIGHT,
      viewBox: `0 0 ${width} ${PASSES_HEIGHT}`,
      role: "img",
      tabindex: 0,
      "aria-label": "Latency by pass. Left and right move through the passes, up and down change the profile.",
    });
    this.axes(left, width, last);
    for (const profile of shown) this.svg.append(this.series(profile, left, width));
    if (this.along === "pass") this.runLabels(shown);
    this.mark.setAttribute("visibility", "hidden");
    this.svg.append(this.markGroup);
    this.listen(shown);
    this.host.replaceChildren(this.svg);
  }

  /**
   * @param {number} left
   * @param {number} width
   * @param {number} last
   */
  axes(left, width, last) {
    const { unit, factor } = axisUnit(this.range.high);
    const marks = ticks(this.range.low, this.range.high, 5);
    const step = marks.length > 1 ? marks[1] - marks[0] : 1;
    for (const mark of marks) {
      this.svg.append(
        draw("line", { class: "grid", x1: left, x2: width, y1: this.y(mark), y2: this.y(mark) }),
        draw("text", { x: left - 8, y: this.y(mark) + 4, "text-anchor": "end" }, `${tickText(mark, step, factor)} ${unit}`));
    }
    /** @type {(x: number, text: string) => SVGElement} */
    const label = (x, text) => draw("text", { x, y: PASSES_HEIGHT - 8, "text-anchor": x > width - 20 ? "end" : "middle" }, text);
    if (this.along === "time") {
      const time = axisUnit(last);
      const times = ticks(0, last, width / 120);
      this.svg.append(...times.map((mark) => label(this.x(mark), `${tickText(mark, times[1] ?? last, time.factor)} ${time.unit}`)));
      return;
    }
    for (const mark of ticks(0, last + 1, width / 120).filter(Number.isInteger)) {
      this.svg.append(label(this.x(Math.max(mark - 1, 0)), mark === 0 ? "pass 1" : count(mark)));
    }
  }

  /**
   * Thousands of dots are one path: a very short line with round caps is a dot.
   * A line without any length would be a dash on paper.
   * @param {PlottedProfile} profile
   * @param {number} left
   * @param {number} width
   */
  series(profile, left, width) {
    const { latency, detail } = profile;
    /** @type {[string[], string[], string[]]} */
    const [inside, out, beyond] = [[], [], []];
    detail.values.forEach((sample, place) => {
      const x = this.x(this.at(profile, place)).toFixed(1);
      const y = this.y(sample).toFixed(1);
      if (sample > this.range.high) beyond.push(`M${x} 6l4 7h-8z`);
      else if (detail.standsOut[place]) out.push(`M${x} ${y}m-3-3l6 6m0-6l-6 6`);
      else inside.push(`M${x} ${y}h.01`);
    });
    const median = detail.placeOf(latency.median_pass);
    const ring = { cx: this.x(this.at(profile, median)), cy: this.y(detail.values[median]) };
    return draw("g", { class: `series series-${profile.series}` },
      draw("path", { class: "dots", d: inside.join("") }),
      draw("path", { class: "outliers", d: out.join("") }),
      draw("path", { class: "beyond", d: beyond.join("") }),
      draw("line", { class: "median-line", x1: left, x2: width, y1: this.y(latency.median_ms), y2: this.y(latency.median_ms) }),
      draw("path", { class: "drift", d: this.driftPath(profile) }),
      draw("circle", { class: "ring", ...ring, r: 5 }),
      ...this.borders(profile));
  }

  /** @param {PlottedProfile} profile */
  driftPath(profile) {
    const { detail, runs } = profile;
    return runs.flatMap(({ drift }, run) => drift.map(([pass, value], point) =>
      `${point ? "L" : "M"}${this.x(this.at(profile, detail.placeOf(detail.first[run] + pass))).toFixed(1)} ${this.y(value).toFixed(1)}`)).join("");
  }

  /**
   * Borders between process runs; along time, a bar below each run shows its extent.
   * @param {PlottedProfile} profile
   */
  borders(profile) {
    const { detail } = profile;
    if (this.along === "time") {
      return detail.start.map((start, run) => draw("line", {
        class: "turn", y1: PASSES_FLOOR, y2: PASSES_FLOOR,
        x1: this.x(this.at(profile, start)), x2: this.x(this.at(profile, (detail.start[run + 1] ?? detail.values.length) - 1)),
      }));
    }
    return detail.first.slice(1).map((first) =>
      draw("line", { class: "border", x1: this.x(first - 0.5), x2: this.x(first - 0.5), y1: PASSES_TOP - 6, y2: PASSES_FLOOR }));
  }

  /** @param {PlottedProfile[]} shown */
  runLabels(shown) {
    const [longest] = [...shown].sort((a, b) => b.runs.length - a.runs.length);
    if (!longest || longest.runs.length < 2) return;
    longest.runs.forEach(({ count: all }, place) => {
      const from = this.x(longest.detail.first[place]);
      if (this.x(longest.detail.first[place] + all) - from < 46) return;
      this.svg.append(draw("text", { x: from + 4, y: PASSES_FLOOR - 2 }, `run ${place + 1}`));
    });
  }

  /** @param {PlottedProfile[]} shown */
  listen(shown) {
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      const near = this.nearest(shown, event.clientX - box.left, event.clientY - box.top);
      if (near) this.point(near.profile, near.place);
    });
    const leave = () => {
      this.mark.setAttribute("visibility", "hidden");
      tooltip.hide();
    };
    this.svg.addEventListener("pointerleave", leave);
    this.svg.addEventListener("blur", leave);
    this.svg.addEventListener("keydown", (event) => this.key(event, shown));
  }

  /**
   * @param {PlottedProfile[]} shown
   * @param {number} x
   * @param {number} y
   */
  nearest(shown, x, y) {
    let best = null;
    let least = 40;
    for (const profile of shown) {
      for (const [place, sample] of profile.detail.values.entries()) {
        const far = Math.hypot(this.x(this.at(profile, place)) - x, this.height(sample) - y);
        if (far < least) [best, least] = [{ profile, place }, far];
      }
    }
    return best;
  }

  /** @param {number} sample */
  height(sample) {
    return sample <= this.range.high ? this.y(sample) : 10;
  }

  /**
   * @param {PlottedProfile} profile
   * @param {number} place
   */
  point(profile, place) {
    this.current = { profile, place };
    const { detail } = profile;
    const [sample, pass, run] = [detail.values[place], detail.number[place], detail.runOf[place]];
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [this.x(this.at(profile, place)), this.height(sample)];
    this.markGroup.setAttribute("class", `series series-${profile.series}`);
    this.mark.setAttribute("cx", String(x));
    this.mark.setAttribute("cy", String(y));
    this.mark.setAttribute("visibility", "visible");
    const about = pass === profile.latency.median_pass
      ? "the median pass" : `${signedShare(sample / profile.latency.median_ms - 1)} of the median`;
    const words = profile.runs.length > 1 ? `run ${run + 1}, pass ${pass - detail.first[run] + 1}` : `pass ${pass + 1}`;
    tooltip.show(box.left + x, box.top + y, `${shortened(profile.label, 40)}, ${words}\n${milliseconds(sample)}, ${about}${detail.standsOut[place] ? "\nan outlier of its run" : ""}`);
  }

  /**
   * @param {KeyboardEvent} event
   * @param {PlottedProfile[]} shown
   */
  key(event, shown) {
    if (shown.length === 0) return;
    const now = this.current && shown.includes(this.current.profile) ? this.current : { profile: shown[0], place: shown[0].detail.placeOf(shown[0].latency.median_pass) };
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!sideways && !across) return;
    const profile = across ? shown[(shown.indexOf(now.profile) + across + shown.length) % shown.length] : now.profile;
    const last = profile.detail.values.length - 1;
    this.point(profile, Math.min(last, Math.max(0, now.place + (this.current ? sideways ?? 0 : 0))));
    event.preventDefault();
  }
}

/** @param {ReportData} data */
export function show({ panels: { latency } }) {
  if (!latency?.length) return;
  latencyDistribution(required("distribution"), latency);
  new PassesPlot(required("passes"), latency);
}
