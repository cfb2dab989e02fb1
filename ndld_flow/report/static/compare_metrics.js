// Metrics side by side, each against the base: the change, the verdict and its interval, all on one axis.

const valueOf = (metric, place) => make("span", { class: "value" }, quantityText(metric.values[place], metric.unit));

// The value that the verdict's ratio was taken from: of runs in pairs, the median of each side has another ratio.
const pairedValue = (view, metric, verdict, place) => {
  const value = verdict?.[place === view.base ? "base_value" : "candidate_value"];
  return make("span", { class: "value" }, quantityText(value ?? metric.values[place], metric.unit));
};

const agrees = (view, metric, verdict, place) => {
  const medians = metric.values[place] / metric.values[view.base] / verdict.ratio;
  return !Number.isFinite(medians) || Math.abs(medians - 1) <= Math.max(verdict.threshold / 10, 1e-4);
};

// Several reports share the base's value, so that the runs of a pair are named where the medians contradict its ratio.
const pairFigures = (view, metric, verdict, place) => verdict.base_value == null || agrees(view, metric, verdict, place) ? ""
  : make("div", { class: "quiet small" }, `in pairs ${quantityText(verdict.base_value, metric.unit)} → ${quantityText(verdict.candidate_value, metric.unit)}`);

const changeOf = (verdict) => verdictWord(verdict.verdict, changeText(verdict.ratio) || verdict.verdict);

// Two reports leave room for the interval beside the values.
function pairCells(view, metric, verdict, ratios) {
  return [
    ...view.profile.subjects.map((_, place) => make("td", { class: "n" }, pairedValue(view, metric, verdict, place))),
    make("td", { class: "n", title: verdict?.why }, verdict ? changeOf(verdict) : ""),
    make("td", {}, verdict ? make("span", { class: "quiet" }, verdict.verdict) : ""),
    make("td", { class: "plot" }, verdict ? intervalBar(verdict, ratios) : ""),
  ];
}

function severalCells(view, metric, number, ratios) {
  return view.profile.subjects.map((_, place) => {
    const verdict = place === view.base ? undefined : view.verdict(number, place);
    if (!verdict) return make("td", { class: "n" }, valueOf(metric, place));
    return make("td", { class: "n", title: verdict.why },
      make("div", { class: "several" }, valueOf(metric, place), changeOf(verdict), intervalBar(verdict, ratios), pairFigures(view, metric, verdict, place)));
  });
}

function metricRow(view, metric, ratios) {
  const number = view.profile.metrics.indexOf(metric);
  const verdicts = view.candidates.map((place) => view.verdict(number, place)).filter(Boolean);
  const differs = verdicts.some((one) => one.verdict !== "unchanged");
  const decides = number === view.deciding;
  const cells = view.candidates.length === 1
    ? pairCells(view, metric, verdicts[0], ratios) : severalCells(view, metric, number, ratios);
  return make("tr", { class: [decides && "decides", differs && "differs"].filter(Boolean).join(" ") || null },
    make("th", { scope: "row" }, make("bdi", {}, metric.metric), decides ? make("span", { class: "quiet small" }, " decides") : ""), ...cells);
}

function drawMetrics(host, about, view) {
  const { metrics, subjects, decided_by } = view.profile;
  about.replaceChildren("each against ", named(view.subject(view.base)));
  const ordered = [...metrics].sort((a, b) => (b.key === decided_by) - (a.key === decided_by));
  const verdicts = metrics.flatMap((_, number) => view.candidates.map((place) => view.verdict(number, place))).filter(Boolean);
  const ratios = new RatioScale(verdicts);
  const single = view.candidates.length === 1;
  const head = (place) => make("th", { scope: "col", class: "n" }, named(view.subject(place)), place === view.base ? make("span", { class: "quiet" }, " base") : "");
  host.replaceChildren(make("div", { class: "scroll" }, make("table", { class: "compared-metrics" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Metric"), ...subjects.map((_, place) => head(place)),
      ...(single ? [make("th", { scope: "col", class: "n" }, "Change"), make("th", { scope: "col" }, "Verdict"), make("th", { scope: "col", class: "plot" }, intervalAxis(ratios))] : []))),
    make("tbody", {}, ...ordered.map((metric) => metricRow(view, metric, ratios))))));
}
