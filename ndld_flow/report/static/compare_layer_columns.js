// The columns of the layer table: each report's time, and what changed from the base to the candidate.

const finite = (value, otherwise) => (Number.isFinite(value) ? value : otherwise);

// Shares are shown where two reports leave room for them; a file holds them always.
function timeColumns(view, pair) {
  return view.profile.subjects.flatMap((_, place) => {
    const { letter, label } = view.subject(place);
    const { [place]: times } = pair.rows.times;
    const sum = pair.rows.sums[place] || 1;
    const part = (row) => (times[row] === null ? null : times[row] / sum);
    const key = letter.toLowerCase();
    const long = `${letter} ${shortened(label, 30)}`;
    return [
      {
        key, label: badge(view.subject(place)), longLabel: `${long}, ms`, summaryLabel: long, csvLabel: `${letter} ${label} ms`,
        width: "80px", numeric: true, right: true, measure: "sum",
        value: (row) => times[row], format: (value) => (value === null ? "–" : milliseconds(value)), csv: (row) => times[row] ?? "",
      },
      {
        key: `${key}_share`, label: "%", longLabel: `${long}, %`, csvLabel: `${letter} ${label} percent of layer sum`,
        width: "68px", numeric: true, right: true, hidden: view.profile.subjects.length > 2,
        value: part, format: (value) => (value === null ? "–" : share(value)),
        csv: (row) => (times[row] === null ? "" : Number((part(row) * 100).toPrecision(5))),
      },
    ];
  });
}

function changeColumns(pair, heat) {
  const size = (row) => Math.abs(pair.delta(row));
  const sizes = Array.from({ length: pair.length }, (_, row) => size(row));
  const direction = (row) => (pair.delta(row) < 0 ? "faster" : "slower");
  const word = (row) => (pair.rows.has(pair.candidate, row) ? "new" : "gone");
  return [
    {
      key: "delta", label: "Delta", csvLabel: "delta ms", width: "86px", numeric: true, right: true, measure: "sum",
      value: (row) => pair.delta(row), format: signedMs,
      heat: (row) => heat.of("delta", sizes)(size(row)), tone: direction,
      csv: (row) => Number(pair.delta(row).toPrecision(5)),
    },
    {
      key: "size", label: "Size of delta", csvLabel: "absolute delta ms", width: "92px", numeric: true, right: true, hidden: true,
      value: size, format: milliseconds, csv: (row) => Number(size(row).toPrecision(5)),
    },
    {
      key: "percent", label: "%", csvLabel: "delta percent", width: "80px", numeric: true, right: true,
      value: (row) => (pair.either(row) ? finite(pair.ratio(row), 1e9) : null), format: (value, row) => (pair.both(row) ? changeText(pair.ratio(row)) : pair.either(row) ? word(row) : "–"),
      csv: (row) => (pair.both(row) ? Number(((pair.ratio(row) - 1) * 100).toPrecision(5)) : pair.either(row) ? word(row) : ""),
    },
    {
      key: "speedup", label: "Speed-up", width: "80px", numeric: true, right: true,
      value: (row) => (pair.both(row) ? finite(1 / pair.ratio(row), null) : null), format: (value) => (value === null ? "–" : `${threeDigits(value)}×`),
      csv: (row) => (pair.both(row) && pair.to(row) ? Number((1 / pair.ratio(row)).toPrecision(5)) : ""),
    },
  ];
}

const LAYER_VERDICTS = ["incomparable", "unchanged", "inconclusive", "improved", "regressed"];

function verdictColumns(pair) {
  const q = (row) => pair.verdict(row)?.q ?? null;
  const qText = (value) => (value === null ? "" : value < 0.001 ? "< 0.001" : value.toFixed(3));
  return [
    {
      key: "verdict", label: "Verdict", width: "122px", numeric: true,
      value: (row) => (pair.verdict(row) ? LAYER_VERDICTS.indexOf(pair.verdict(row).verdict) : null),
      csv: (row) => pair.verdict(row)?.verdict ?? "",
      format: (value) => (value === null ? "–" : LAYER_VERDICTS[value]),
      element: (value) => (value === null ? "–" : verdictWord(LAYER_VERDICTS[value])),
    },
    {
      key: "q", label: "q", width: "70px", numeric: true, right: true, hidden: !pair.rows.profile.layer_verdicts.q_value.some((one) => one !== null),
      value: q, format: (value) => (value === null ? "–" : qText(value)), csv: (row) => q(row) ?? "",
    },
  ];
}

function confidenceColumns(pair) {
  return [
    { key: "precision", label: "Precision", width: "140px", tally: true, value: (row) => pair.change("precision", row) },
    {
      key: "tactic", label: "Tactic", width: "minmax(96px, 0.7fr)", hidden: true, value: (row) => pair.change("tactic", row),
      format: (value, row) => (pair.changed("tactic", row) ? `changed: ${shortened(value, 140)}` : shortened(value, 160)),
    },
    {
      key: "matched", label: "Matched by", width: "138px", tally: true, value: (row) => (pair.either(row) ? pair.method(row) : ""),
      format: (value, row) => (pair.both(row) ? `${value}, ${pair.confidence(row).toFixed(2)}` : value),
    },
    {
      key: "confidence", label: "Confidence", width: "92px", numeric: true, right: true, hidden: true,
      value: (row) => (pair.both(row) ? pair.confidence(row) : null), format: (value) => (value === null ? "–" : value.toFixed(2)),
      csv: (row) => (pair.both(row) ? pair.confidence(row) : ""),
    },
  ];
}

function comparedColumns(view, pair, heat) {
  return [
    { key: "row", label: "#", width: "46px", numeric: true, position: true, right: true, value: (row) => row, format: (value) => String(value + 1), csv: (row) => row + 1 },
    { key: "name", label: "Name", width: "minmax(170px, 2.4fr)", mono: true, value: (row) => pair.said("name", row) },
    { key: "type", label: "Type", width: "minmax(88px, 0.8fr)", tally: true, value: (row) => pair.said("type", row) },
    { key: "dims", label: "Dims", width: "128px", hidden: true, value: (row) => pair.change("dims", row) },
    ...timeColumns(view, pair),
    ...changeColumns(pair, heat),
    ...confidenceColumns(pair),
    ...verdictColumns(pair),
  ];
}
