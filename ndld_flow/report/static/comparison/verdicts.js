// Verdicts of a comparison: intervals, the decision, and the table of metrics.

/** @import { Choice, Verdict, View } from "./data.js" */

import { make } from "../elements.js";
import { changeText, quantityText, ratioText, threeDigits } from "../quantities.js";
import { scrollBox, tooltip } from "../widgets.js";
import { named, verdictOf, verdictWord } from "./data.js";

// A ratio with its interval against the band of its threshold: the reason of a verdict as a picture.

const RATIO_TICKS = [0.001, 0.01, 0.1, 0.2, 0.25, 1 / 3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1];

// A logarithmic scale, so that twice and half are equally far from one; by the rules of interval_scale.py.
class RatioScale {
  /** @param {Pick<Verdict, "low" | "high" | "ratio" | "threshold">[]} verdicts */
  constructor(verdicts) {
    const ends = [1];
    for (const { low, high, ratio, threshold } of verdicts) {
      const band = 1 + 2 * (threshold ?? 0);
      ends.push(band, 1 / band, ...[low, high, ratio].filter((end) => end !== null && end > 0).map(Number));
    }
    const held = ends.map((end) => Math.min(Math.max(end, 1e-3), 1e3));
    const [least, most] = [Math.min(...held), Math.max(...held)];
    const margin = (most / least) ** 0.06;
    this.low = least / margin;
    this.high = most * margin;
  }

  /**
   * 0 to 100
   * @param {number} ratio
   */
  place(ratio) {
    if (this.high <= this.low) return 50;
    const held = Math.min(Math.max(ratio, this.low), this.high);
    return (100 * Math.log(held / this.low)) / Math.log(this.high / this.low);
  }

  /** @param {number} apart */
  ticks(apart) {
    const both = [...new Set([...RATIO_TICKS, ...RATIO_TICKS.map((tick) => 1 / tick)])];
    const kept = [1];
    for (const tick of both.sort((a, b) => Math.abs(Math.log(a)) - Math.abs(Math.log(b)))) {
      const inside = this.place(tick) > 3 && this.place(tick) < 96 && tick > this.low && tick < this.high;
      if (inside && kept.every((other) => Math.abs(this.place(tick) - this.place(other)) >= apart)) kept.push(tick);
    }
    return kept.sort((a, b) => a - b);
  }
}

/**
 * @param {Verdict} verdict
 * @param {RatioScale} ratios
 */
function intervalBar(verdict, ratios) {
  const { ratio, low, high } = verdict;
  const threshold = verdict.threshold ?? 0;
  if (ratio === null || !(ratio > 0)) return "";
  const at = (/** @type {number} */ value) => `${ratios.place(value).toFixed(2)}%`;
  const until = (/** @type {number} */ value) => `${(100 - ratios.place(value)).toFixed(2)}%`;
  /** @type {(tag: "u" | "b" | "i" | "em", left: number, right?: number) => HTMLElement} */
  const piece = (tag, left, right) => {
    const mark = make(tag);
    mark.style.left = at(left);
    if (right !== undefined) mark.style.right = until(right);
    return mark;
  };
  const ends = low === null ? "no interval" : `${ratioText(low)} to ${ratioText(high)}`;
  const spread = low !== null && low === high ? ratioText(ratio) : `${ratioText(ratio)}, ${ends}`;
  return make("div", {
    class: `interval ${verdict.verdict}`,
    role: "img",
    "aria-label": `${spread}, against a threshold of ±${threeDigits(threshold * 100)} %`,
    onpointermove: (/** @type {PointerEvent} */ event) => tooltip.show(event.clientX, event.clientY,
      `${spread}\nthreshold ±${threeDigits(threshold * 100)} %\n${verdict.verdict}`),
    onpointerleave: () => tooltip.hide(),
  }, piece("u", 1 / (1 + threshold), 1 + threshold), piece("b", 1), piece("i", low ?? ratio, high ?? ratio), piece("em", ratio));
}

/** @param {RatioScale} ratios */
const intervalHead = (ratios) =>
  make("th", { scope: "col", class: "plot" }, make("span", { class: "unseen" }, "Interval"), intervalAxis(ratios));

/** @param {RatioScale} ratios */
function intervalAxis(ratios) {
  const axis = make("div", { class: "interval-axis", "aria-hidden": "true" });
  for (const tick of ratios.ticks(13)) {
    const mark = make("span", {}, tick === 1 ? "same" : changeText(tick));
    mark.style.left = `${ratios.place(tick).toFixed(2)}%`;
    axis.append(mark);
  }
  return axis;
}

// The verdict, and for every profile and candidate its interval against the chosen base.

/** @param {Choice} choice */
function deciding(choice) {
  const { payload } = choice;
  return payload.profiles.flatMap((profile) => {
    const base = profile.subjects.indexOf(choice.base);
    const metric = profile.metrics.findIndex((candidate) => candidate.key === profile.decided_by);
    if (base < 0) return [];
    return profile.subjects.flatMap((subject, candidate) => {
      const verdict = verdictOf(profile, metric, base, candidate);
      return verdict ? [{ ...verdict, profile: profile.name, subject: payload.subjects[subject] }] : [];
    });
  });
}

/**
 * Whether a verdict has a reason or a remark that the headline does not have.
 * @param {Verdict} decision
 * @param {string} told
 */
function isFurther({ verdict, why }, told) {
  const remark = why.split("; ").slice(1).join("; ");
  return !told.includes(remark) || (!remark && verdict === "inconclusive");
}

/**
 * @param {HTMLElement} host
 * @param {Choice} choice
 */
export function drawTitle(host, choice) {
  const { subjects } = choice.payload;
  const first = host.dataset.first ??= host.textContent ?? "";
  const isFirst = subjects.length < 3 || choice.base === 0 && choice.candidate === 1;
  host.textContent = isFirst ? first : `${subjects[choice.candidate].label} against ${subjects[choice.base].label}`;
}

/**
 * @param {HTMLElement} host
 * @param {Choice} choice
 */
export function drawHeadline(host, choice) {
  const { payload } = choice;
  const capital = (/** @type {string} */ word) => word[0].toUpperCase() + word.slice(1);
  const why = payload.why.replaceAll("->", "→");
  host.replaceChildren(verdictWord(payload.verdict, capital(payload.verdict)), " ", make("span", { class: "result" }, make("bdi", {}, why)));
  // Another base is a view: what was slower than it is no regression.
  if (choice.base !== 0) host.append(make("span", { class: "quiet decided" }, "Decided against ", named(payload.subjects[0]), ". ", ...shownAgainst(choice)));
}

/**
 * `Shown against B half, which is the best: A main +40 %.`
 * @param {Choice} choice
 */
function shownAgainst(choice) {
  const decisions = deciding(choice);
  const best = decisions.length > 0 && decisions.every(({ verdict }) => verdict === "regressed");
  const others = decisions.flatMap(({ verdict, ratio, subject, profile }, place) => [place ? ", " : "", named(subject),
    choice.payload.profiles.length > 1 ? ` in ${profile}` : "", ` ${verdict === "regressed" || verdict === "improved" ? changeText(ratio) : verdict}`]);
  return ["Shown against ", named(choice.payload.subjects[choice.base]), best ? ", which is the best: " : ": ", ...others, "."];
}

/**
 * @param {HTMLElement} host
 * @param {Choice} choice
 */
export function drawDecision(host, choice) {
  const decisions = deciding(choice);
  const several = choice.payload.profiles.length > 1;
  const ratios = new RatioScale(decisions);
  const heads = [several && make("th", { scope: "col" }, "Profile"), make("th", { scope: "col" }, "Against ", named(choice.payload.subjects[choice.base])),
    make("th", { scope: "col" }, "Verdict"), make("th", { scope: "col", class: "n" }, "Ratio"), make("th", { scope: "col", class: "n" }, "Change"),
    intervalHead(ratios)];
  const rows = decisions.flatMap((decision) => [
    make("tr", {}, ...[
      several && make("th", { scope: "row", class: "clip" }, make("bdi", {}, decision.profile)),
      make("td", {}, named(decision.subject)), make("td", {}, verdictWord(decision.verdict)),
      make("td", { class: "n" }, make("b", {}, ratioText(decision.ratio))), make("td", { class: "n" }, changeText(decision.ratio)),
      make("td", { class: "plot" }, intervalBar(decision, ratios)),
    ].filter((cell) => cell !== false)),
    ...(decisions.length > 1 && isFurther(decision, choice.payload.why.replaceAll("->", "→")) ? [make("tr", { class: "why" }, make("td", { colspan: several ? 6 : 5 }, make("bdi", {}, decision.why)))] : []),
  ]);
  host.replaceChildren(scrollBox(make("table", { class: "decisions" },
    make("thead", {}, make("tr", {}, ...heads.filter((head) => head !== false))), make("tbody", {}, ...rows))));
}

// The table of metrics against the base: change, verdict and interval, all on one axis.

/**
 * @param {MetricData} metric
 * @param {number} place
 */
const valueOf = (metric, place) => make("span", { class: "value" }, quantityText(metric.values[place], metric.unit));

/**
 * The values behind a verdict, where those of the reports have another ratio: `in rounds 149 ms → 153 ms`.
 * @param {Verdict | undefined} verdict
 */
const measuredApart = (verdict) => verdict?.apart ? make("div", { class: "quiet small" }, verdict.apart) : "";

/** @param {Verdict} verdict */
const changeOf = (verdict) => verdictWord(verdict.verdict, changeText(verdict.ratio) || verdict.verdict);

/**
 * With two reports there is room for the interval next to the values.
 * @param {View} view
 * @param {MetricData} metric
 * @param {Verdict | undefined} verdict
 * @param {RatioScale} ratios
 */
function pairCells(view, metric, verdict, ratios) {
  return [
    ...view.profile.subjects.map((_, place) => make("td", { class: "n" }, valueOf(metric, place))),
    make("td", { class: "n", title: verdict?.why }, ...(verdict ? [changeOf(verdict), measuredApart(verdict)] : [])),
    make("td", {}, verdict ? make("span", { class: "quiet" }, verdict.verdict) : ""),
    make("td", { class: "plot" }, verdict ? intervalBar(verdict, ratios) : ""),
  ];
}

/**
 * @param {View} view
 * @param {MetricData} metric
 * @param {number} number
 * @param {RatioScale} ratios
 */
function severalCells(view, metric, number, ratios) {
  return view.profile.subjects.map((_, place) => {
    const verdict = place === view.base ? undefined : view.verdict(number, place);
    if (!verdict) return make("td", { class: "n" }, valueOf(metric, place));
    return make("td", { class: "n", title: verdict.why },
      make("div", { class: "several" }, valueOf(metric, place), changeOf(verdict), intervalBar(verdict, ratios), measuredApart(verdict)));
  });
}

/**
 * @param {View} view
 * @param {MetricData} metric
 * @param {RatioScale} ratios
 */
function metricRow(view, metric, ratios) {
  const number = view.profile.metrics.indexOf(metric);
  const verdicts = view.candidates.map((place) => view.verdict(number, place)).filter((verdict) => verdict !== undefined);
  const differs = verdicts.some((verdict) => verdict.verdict !== "unchanged");
  const decides = number === view.deciding;
  const cells = view.candidates.length === 1
    ? pairCells(view, metric, verdicts[0], ratios) : severalCells(view, metric, number, ratios);
  return make("tr", { class: [decides && "decides", differs && "differs"].filter(Boolean).join(" ") || null },
    make("th", { scope: "row" }, make("bdi", {}, metric.metric),
      make("span", { class: "quiet small" }, metric.in_rounds ? " in rounds" : "", decides ? " decides" : "")), ...cells);
}

/**
 * @param {HTMLElement} host
 * @param {HTMLElement} about
 * @param {View} view
 */
export function drawMetrics(host, about, view) {
  const { metrics, subjects, decided_by } = view.profile;
  about.replaceChildren("each against ", named(view.subject(view.base)));
  const ordered = [...metrics].sort((a, b) => Number(b.key === decided_by) - Number(a.key === decided_by));
  const verdicts = metrics.flatMap((_, number) => view.candidates.map((place) => view.verdict(number, place))).filter((verdict) => verdict !== undefined);
  const ratios = new RatioScale(verdicts);
  const single = view.candidates.length === 1;
  const head = (/** @type {number} */ place) => make("th", { scope: "col", class: "n" }, named(view.subject(place)), place === view.base ? make("span", { class: "quiet" }, " base") : "");
  host.replaceChildren(scrollBox(make("table", { class: "compared-metrics" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Metric"), ...subjects.map((_, place) => head(place)),
      ...(single ? [make("th", { scope: "col", class: "n" }, "Change"), make("th", { scope: "col" }, "Verdict"), intervalHead(ratios)] : []))),
    make("tbody", {}, ...ordered.map((metric) => metricRow(view, metric, ratios))))));
}
