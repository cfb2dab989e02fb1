// Latencies of timing passes: their distributions side by side, and every pass of each.

import { axisUnit, commonRange, drawAtWidth, scale, SERIES, ticks, tickText } from "../static/charts.js";
import { draw, make, required, shortened } from "../static/elements.js";
import { latencyDistribution } from "../static/latency_distribution.js";
import { count, counted, milliseconds, signedShare } from "../static/quantities.js";
import { makeSwitch, tooltip } from "../static/widgets.js";

/** @typedef {ProfilePayload & {series: number, detail: LatencySamples, samples: number[], shown: boolean}} PlottedProfile */

// The samples of a timing pass, each with its process run, its start and whether it is an outlier.

/**
 * Tukey's far fence of a process run: three interquartile ranges above the third quartile.
 * @param {number[]} samples
 */
function farFence(samples) {
  const ordered = [...samples].sort((a, b) => a - b);
  /** @param {number} part */
  const at = (part) => ordered[Math.min(ordered.length - 1, Math.floor(part * ordered.length))];
  return at(0.75) + 3 * (at(0.75) - at(0.25));
}

/** @param {number[]} values */
const middleOf = (values) => [...values].sort((a, b) => a - b)[(values.length - 1) >> 1];

/**
 * A moving median of a run, at most 60 points: its drift without its outliers.
 * @param {number[]} samples
 */
function movingMedian(samples) {
  const reach = Math.max(6, Math.round(samples.length / 10));
  const step = Math.max(1, Math.floor(samples.length / 60));
  const middles = [];
  for (let pass = 0; pass < samples.length; pass += step) {
    middles.push({ pass, value: middleOf(samples.slice(Math.max(0, pass - reach), pass + reach + 1)) });
  }
  return middles;
}

/**
 * The relative change from the first to the last tenth of a run; null for a run that is too short.
 * @param {number[]} samples
 */
function driftOf(samples) {
  const tenth = Math.floor(samples.length / 10);
  return tenth < 3 ? null : middleOf(samples.slice(-tenth)) / middleOf(samples.slice(0, tenth)) - 1;
}

class LatencySamples {
  /** @param {ProfilePayload} profile */
  constructor(profile) {
    this.runs = profile.runs;
    this.values = profile.runs.flat();
    this.runOf = profile.runs.flatMap((run, place) => run.map(() => place));
    let passes = 0;
    /** The first pass of each run. */
    this.first = profile.runs.map((run) => (passes += run.length) - run.length);
    const fences = profile.runs.map(farFence);
    this.standsOut = this.values.map((value, place) => value > fences[this.runOf[place]]);
    this.outliers = this.standsOut.filter(Boolean).length;
    this.times = this.timesOf(profile);
  }

  /**
   * The start of each pass in ms since the first run; null where it was not recorded.
   * @param {ProfilePayload} profile
   */
  timesOf({ runs, gaps_ns: gaps, started_s: started }) {
    if (!gaps?.length || gaps.some((own, run) => own.length !== runs[run].length)) return null;
    return runs.flatMap((run, place) => {
      let now = started[place] * 1000;
      return run.map((took, pass) => {
        const start = now + gaps[place][pass] / 1e6;
        now = start + took;
        return start;
      });
    });
  }

  // The median of the runs' drifts.
  get drift() {
    const drifts = this.runs.map(driftOf).filter((drift) => drift !== null);
    return drifts.length ? middleOf(drifts) : null;
  }
}

// A plot of every pass by order or by time, with outliers as crosses and drift as a line. A ring marks the median pass.

const PASSES_HEIGHT = 250;
const PASSES_TOP = 22;
const PASSES_FLOOR = PASSES_HEIGHT - 30;

class PassesPlot {
  /**
   * @param {HTMLElement} host
   * @param {ProfilePayload[]} profiles
   */
  constructor(host, profiles) {
    this.profiles = profiles.map((profile, place) => {
      const detail = new LatencySamples(profile);
      return { ...profile, series: place % SERIES, detail, samples: detail.values, shown: true };
    });
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
    /** @type {{profile: PlottedProfile, pass: number} | null} */
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
    const words = this.profiles.map(({ label, detail }) => {
      const { drift, outliers, values } = detail;
      const drifts = drift === null ? "" : `, ${signedShare(drift)} from the first to the last tenth of a run`;
      return `${shortened(label, 40)}: ${counted(outliers, "outlier")} of ${counted(values.length, "pass")}${drifts}.`;
    });
    this.notes.textContent = `${words.join(" ")} Crosses are outliers of their run, triangles are beyond the axis, lines are moving medians.`;
  }

  /**
   * @param {PlottedProfile} profile
   * @param {number} pass
   */
  at(profile, pass) {
    return this.along === "time" ? profile.detail.times?.[pass] ?? pass : pass;
  }

  /** @param {number} width */
  draw(width) {
    if (!width) return;
    this.width = width;
    const shown = this.profiles.filter((profile) => profile.shown);
    this.range = commonRange(shown.length ? shown : this.profiles);
    const left = 64;
    const last = this.profiles.reduce((most, profile) => Math.max(most, this.at(profile, profile.samples.length - 1)), 1);
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
    const { samples, latency, detail } = profile;
    /** @type {[string[], string[], string[]]} */
    const [inside, out, beyond] = [[], [], []];
    samples.forEach((sample, pass) => {
      const x = this.x(this.at(profile, pass)).toFixed(1);
      const y = this.y(sample).toFixed(1);
      if (sample > this.range.high) beyond.push(`M${x} 6l4 7h-8z`);
      else if (detail.standsOut[pass]) out.push(`M${x} ${y}m-3-3l6 6m0-6l-6 6`);
      else inside.push(`M${x} ${y}h.01`);
    });
    const ring = { cx: this.x(this.at(profile, latency.median_pass)), cy: this.y(samples[latency.median_pass]) };
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
    const { detail } = profile;
    return detail.runs.map((run, place) => movingMedian(run).map(({ pass, value }, point) =>
      `${point ? "L" : "M"}${this.x(this.at(profile, detail.first[place] + pass)).toFixed(1)} ${this.y(value).toFixed(1)}`).join("")).join("");
  }

  /**
   * Borders between process runs; along time, a bar below each run shows its extent.
   * @param {PlottedProfile} profile
   */
  borders(profile) {
    const { detail } = profile;
    if (this.along === "time") {
      return detail.runs.map((run, place) => draw("line", {
        class: "turn", y1: PASSES_FLOOR, y2: PASSES_FLOOR,
        x1: this.x(this.at(profile, detail.first[place])), x2: this.x(this.at(profile, detail.first[place] + run.length - 1)),
      }));
    }
    return detail.first.slice(1).map((first) =>
      draw("line", { class: "border", x1: this.x(first - 0.5), x2: this.x(first - 0.5), y1: PASSES_TOP - 6, y2: PASSES_FLOOR }));
  }

  /** @param {PlottedProfile[]} shown */
  runLabels(shown) {
    const [longest] = [...shown].sort((a, b) => b.detail.runs.length - a.detail.runs.length);
    if (!longest || longest.detail.runs.length < 2) return;
    longest.detail.runs.forEach((run, place) => {
      const from = this.x(longest.detail.first[place]);
      if (this.x(longest.detail.first[place] + run.length) - from < 46) return;
      this.svg.append(draw("text", { x: from + 4, y: PASSES_FLOOR - 2 }, `run ${place + 1}`));
    });
  }

  /** @param {PlottedProfile[]} shown */
  listen(shown) {
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      const near = this.nearest(shown, event.clientX - box.left, event.clientY - box.top);
      if (near) this.point(near.profile, near.pass);
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
      for (const [pass, sample] of profile.samples.entries()) {
        const far = Math.hypot(this.x(this.at(profile, pass)) - x, this.height(sample) - y);
        if (far < least) [best, least] = [{ profile, pass }, far];
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
   * @param {number} pass
   */
  point(profile, pass) {
    this.current = { profile, pass };
    const { detail } = profile;
    const sample = profile.samples[pass];
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [this.x(this.at(profile, pass)), this.height(sample)];
    this.markGroup.setAttribute("class", `series series-${profile.series}`);
    this.mark.setAttribute("cx", String(x));
    this.mark.setAttribute("cy", String(y));
    this.mark.setAttribute("visibility", "visible");
    const about = pass === profile.latency.median_pass
      ? "the median pass" : `${signedShare(sample / profile.latency.median_ms - 1)} of the median`;
    const run = detail.runs.length > 1 ? `run ${detail.runOf[pass] + 1}, pass ${pass - detail.first[detail.runOf[pass]] + 1}` : `pass ${pass + 1}`;
    tooltip.show(box.left + x, box.top + y, `${shortened(profile.label, 40)}, ${run}\n${milliseconds(sample)}, ${about}${detail.standsOut[pass] ? "\nan outlier of its run" : ""}`);
  }

  /**
   * @param {KeyboardEvent} event
   * @param {PlottedProfile[]} shown
   */
  key(event, shown) {
    if (shown.length === 0) return;
    const now = this.current && shown.includes(this.current.profile) ? this.current : { profile: shown[0], pass: shown[0].latency.median_pass };
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!sideways && !across) return;
    const profile = across ? shown[(shown.indexOf(now.profile) + across + shown.length) % shown.length] : now.profile;
    const last = profile.samples.length - 1;
    this.point(profile, Math.min(last, Math.max(0, now.pass + (this.current ? sideways ?? 0 : 0))));
    event.preventDefault();
  }
}

/** @param {ReportPayload} payload */
export function show({ profiles }) {
  if (!profiles.length) return;
  latencyDistribution(required("distribution"), profiles);
  new PassesPlot(required("passes"), profiles);
}
