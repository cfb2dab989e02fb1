// Metrics side by side, each against the base: the change, the verdict and its interval.

function metricCell(view, metric, place, ratios) {
  const value = make("div", { class: "value" }, quantityText(metric.values[place], metric.unit));
  const verdict = view.verdict(view.profile.metrics.indexOf(metric), place);
  if (place === view.base || !verdict) return make("td", { class: `n${place === view.base ? " base" : ""}` }, value);
  return make("td", { class: "n", title: verdict.why },
    value, verdictWord(verdict.verdict, changeText(verdict.ratio) || verdict.verdict), intervalBar(verdict, ratios));
}

function metricRow(view, metric) {
  const number = view.profile.metrics.indexOf(metric);
  const verdicts = view.candidates.map((place) => view.verdict(number, place)).filter(Boolean);
  const differs = verdicts.some((one) => one.verdict !== "unchanged");
  const decides = number === view.deciding;
  const ratios = new RatioScale(verdicts);
  return make("tr", { class: [decides && "decides", differs && "differs"].filter(Boolean).join(" ") || null },
    make("th", { scope: "row" }, make("bdi", {}, metric.metric), decides ? make("span", { class: "quiet small" }, " decides") : ""),
    ...view.profile.subjects.map((_, place) => metricCell(view, metric, place, ratios)));
}

function drawMetrics(host, about, view) {
  const { metrics, subjects } = view.profile;
  about.replaceChildren("each against ", named(view.subject(view.base)));
  const ordered = [...metrics].sort((a, b) => (b.key === view.profile.decided_by) - (a.key === view.profile.decided_by));
  host.replaceChildren(make("div", { class: "scroll" }, make("table", { class: "compared-metrics" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Metric"),
      ...subjects.map((_, place) => make("th", { scope: "col", class: "n" }, named(view.subject(place)), place === view.base ? make("span", { class: "quiet" }, " base") : "")))),
    make("tbody", {}, ...ordered.map((metric) => metricRow(view, metric))))));
}
