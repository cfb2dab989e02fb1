// Columns of the table of points, from SweepData.

// A column shows all of its name, and the arrow of its order.
const wideEnough = (label) => Math.max(88, Math.round(36 + 6.7 * label.length));

function dimensionColumn(one, hidden) {
  const label = shortened(one.short, 26);
  // Of its values too, where they are texts: up to so many letters.
  const longest = one.isText ? one.texts.reduce((most, text) => (text.length > most.length ? text : most), "").slice(0, 22) : "";
  const wide = `minmax(${Math.max(wideEnough(label), wideEnough(longest))}px, ${one.isText ? 1 : 0.8}fr)`;
  const spread = /\.latency\.(spread|cov)$/.test(one.label);
  const format = (_, row) => (spread && one.numbers[row] !== null ? share(one.numbers[row]) : shortened(one.text(row), 60));
  const shared = { key: one.key, label, longLabel: shortened(one.label, 60), csvLabel: one.unit ? `${one.label} ${one.unit}` : one.label, width: wide, hidden };
  if (one.kind === "axis" && one.isText) {
    return { ...shared, tally: true, value: (row) => one.text(row), format: (value) => shortened(value, 60) };
  }
  const csv = (row) => (one.kind === "axis" ? one.text(row) : one.numbers[row] ?? "");
  return {
    ...shared, numeric: true, right: true, position: one.direction === "minimize" || one.kind === "axis",
    measure: one.kind === "axis" ? undefined : "mean", value: (row) => one.numbers[row], format, csv,
    summaryLabel: shortened(one.short, 40),
  };
}

// What was measured again, beside what was measured at first.
function againColumns(data) {
  if (!data.again.some(Boolean)) return [];
  const columns = data.of("objective").map((one, place) => ({
    key: `again_${place}`, label: `${shortened(one.short, 20)} again`, longLabel: `${shortened(one.label, 50)} again`, csvLabel: `${one.label} again${one.unit ? ` ${one.unit}` : ""}`,
    width: `minmax(${wideEnough(`${shortened(one.short, 20)} again`)}px, 0.8fr)`, numeric: true, right: true, position: one.direction === "minimize", hidden: place > 0,
    value: (row) => data.again[row]?.objectives[place] ?? null,
    format: (value) => (value === null ? "" : quantityText(value, one.unit)), csv: (row) => data.again[row]?.objectives[place] ?? "",
  }));
  const interval = (row) => data.again[row]?.ratio ?? [null, null, null];
  const said = (row) => {
    const [ratio, low, high] = interval(row);
    return ratio === null ? "" : low === null ? ratioText(ratio) : `${ratioText(low)} to ${ratioText(high)}`;
  };
  columns.push({
    key: "interval", label: "To the best", longLabel: "Ratio to the best, 95 % interval", width: "minmax(142px, 0.7fr)", hidden: false, right: true,
    value: (row) => said(row),
  });
  return columns;
}

function constraintColumn(data) {
  const broken = (row) => data.constraints[row].filter(([, holds]) => !holds).map(([gate]) => data.texts[gate]);
  const value = (row) => {
    const { length } = data.constraints[row];
    return length === 0 ? "" : broken(row).length ? `broken: ${broken(row).join("; ")}` : "hold";
  };
  return { key: "constraints", label: "Constraints", width: "minmax(92px, 0.7fr)", value, tone: (row) => (broken(row).length ? "bad" : ""), hidden: !data.constraints.some((one) => one.length) };
}

const MARK_WORDS = { best: "best", tie: "tie", front: "front", "": "" };

function pointColumns(data) {
  const varies = (one) => (one.isText ? new Set(one.levels).size > 1 : one.low < one.high);
  const axes = data.of("axis").map((one) => dimensionColumn(one, data.length > 1 && !varies(one)));
  const goals = data.of("objective").map((one) => dimensionColumn(one, false));
  const metrics = data.of("metric").map((one) => dimensionColumn(one, !(one.telling || /\.latency\.spread$/.test(one.label))));
  const ranked = data.rank.some((rank) => rank !== null);
  const number = {
    key: "number", label: "#", width: "62px", numeric: true, position: true, right: true, hidden: false, value: (row) => data.number[row],
    element: (value, row) => (data.said("report", row) ? make("a", { href: data.said("report", row), title: "This point's own report" }, String(value)) : String(value)),
  };
  return [
    number,
    { key: "rank", label: "Rank", width: "68px", numeric: true, position: true, right: true, hidden: !ranked, value: (row) => data.rank[row], format: (value) => value ?? "–", csv: (row) => data.rank[row] ?? "" },
    { key: "mark", label: "Mark", width: "70px", hidden: !ranked, tally: true, value: (row) => MARK_WORDS[data.said("mark", row)], element: (value) => make("span", { class: `point-mark ${value}` }, value) },
    ...axes, ...goals, ...againColumns(data), constraintColumn(data),
    {
      key: "outcome", label: "Outcome", width: "100px", hidden: false, tally: true, value: (row) => data.said("outcome", row),
      element: (value) => make("span", { class: `outcome ${value}` }, value),
    },
    { key: "reason", label: "Reason", width: "minmax(150px, 1.6fr)", hidden: !data.reason.some((place) => data.texts[place]), value: (row) => data.said("reason", row), tone: () => "aside" },
    ...metrics,
  ];
}
