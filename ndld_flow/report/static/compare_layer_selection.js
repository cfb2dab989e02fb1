// What is told about the rows that are selected: one in full, several added up.

function describeRow(view, pair, row) {
  const list = make("dl");
  const both = pair.both(row)
    ? `${milliseconds(pair.from(row))} → ${milliseconds(pair.to(row))}: ${signedMs(pair.delta(row))}, ${changeText(pair.ratio(row))}, speed-up ${threeDigits(1 / pair.ratio(row))}×`
    : pair.either(row) ? `${pair.rows.has(pair.base, row) ? "only in the base" : "only in the candidate"}: ${signedMs(pair.delta(row))}` : "in neither of the two";
  const lines = [["Change", both]];
  for (const place of view.profile.subjects.keys()) {
    if (!pair.rows.has(place, row)) continue;
    const said = ["name", "type", "dims", "precision", "tactic", "provider"].map((key) => pair.rows.said(key, place, row)).filter(Boolean);
    lines.push([badge(view.subject(place)), `${said.join(" · ")} · ${milliseconds(pair.rows.times[place][row])}`]);
    const nodes = pair.rows.onnxNodes(place, row);
    if (nodes.length && place === pair.base) lines.push(["ONNX nodes", nodes.join(", ")]);
  }
  if (pair.both(row)) lines.push(["Matched by", `${pair.method(row)}, confidence ${pair.confidence(row).toFixed(2)}`]);
  const verdict = pair.verdict(row);
  if (verdict) lines.push(["Verdict", `${verdict.verdict}${verdict.p === null ? "" : `, p ${threeDigits(verdict.p)}, q ${threeDigits(verdict.q)} over all rows`}: it advises and does not gate`]);
  for (const [label, text] of lines) list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, text)));
  return [list];
}

// Of two sums, so that a fused layer counts with those it stands for.
function describeRows(view, pair, model) {
  const rows = [...model.selected];
  const sum = (time) => rows.reduce((total, row) => total + (time(row) ?? 0), 0);
  const [before, after] = [sum((row) => pair.from(row)), sum((row) => pair.to(row))];
  const change = make("p", {}, make("b", {}, `${milliseconds(before)} → ${milliseconds(after)}`), `: ${signedMs(after - before)}`,
    before ? `, ${changeText(after / before)}` : "", after ? `, speed-up ${threeDigits(before / after)}×` : "");
  return [change, ...selectionSummary(model)];
}

function describeCompared(view, pair, model) {
  if (model.selected.size === 1) return describeRow(view, pair, [...model.selected][0]);
  if (model.selected.size > 1) return describeRows(view, pair, model);
  const advice = [make("p", {}, "Select rows to add them up: click, Shift or Ctrl and click, or the arrow keys and Space. ",
    make("kbd", {}, "1"), " to ", make("kbd", {}, "9"), " sort by a column, ", make("kbd", {}, "b"), " makes the next report the base.")];
  if (!view.first) advice.push(make("p", {}, "Verdicts of layers were worked out against ", named(view.subject(0)), ": make it the base to see them."));
  return advice;
}
