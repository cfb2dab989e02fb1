// What is told of one tensor: who makes and reads it, and what it holds.

const TENSOR_KINDS = ["computed", "input", "initializer", "constant"];

function significant(value) {
  if (value === null || value === undefined) return "–";
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(6)));
}

function histogram(held) {
  const counts = held.histogram;
  if (!counts || counts.length < 2) return null;
  const [low, high] = held.range;
  const most = Math.max(...counts);
  const wide = 10;
  const bars = counts.map((times, place) => {
    const from = low + ((high - low) * place) / counts.length;
    const to = low + ((high - low) * (place + 1)) / counts.length;
    const height = times ? Math.max(1, (60 * times) / most) : 0;
    return draw("rect", { x: place * wide + 0.5, y: 60 - height, width: wide - 1, height }, draw("title", {}, `${significant(from)} to ${significant(to)}: ${count(times)}`));
  });
  const text = `Histogram from ${significant(low)} to ${significant(high)}, the fullest of ${counts.length} bars holds ${count(most)} elements`;
  return make("figure", { class: "histogram" },
    draw("svg", { viewBox: `0 0 ${counts.length * wide} 61`, role: "img", "aria-label": text, preserveAspectRatio: "none" },
      ...bars, draw("line", { x1: 0, x2: counts.length * wide, y1: 60.5, y2: 60.5 })),
    make("figcaption", {}, make("span", {}, significant(low)), make("span", {}, significant(high))));
}

// `held` is one of the payload's: dtype, dims, size, statistics, first elements.
function heldRows(held) {
  const rows = [
    factRow("Elements", count(held.elements)),
    factRow("Bytes", held.bytes < 1024 ? count(held.bytes) : `${count(held.bytes)} (${size(held.bytes)})`),
  ];
  if (held.where) rows.push(factRow("Stored in", make("bdi", {}, held.where)));
  if (held.unread) rows.push(factRow("Statistics", `none: ${held.unread}`));
  if (!held.range || !held.elements) return rows;
  const [low, high, mean, deviation] = held.range;
  const [nans, infinities, zeros] = held.counts;
  if (held.elements > 1) {
    rows.push(factRow("Range", `${significant(low)} to ${significant(high)}`), factRow("Mean, deviation", `${significant(mean)}, ${significant(deviation)}`));
    rows.push(factRow("Zeros", zeros ? `${count(zeros)} (${share(zeros / held.elements)})` : "0"));
  }
  if (nans) rows.push(factRow("NaN", make("b", { class: "bad" }, count(nans))));
  if (infinities) rows.push(factRow("Infinite", make("b", { class: "bad" }, count(infinities))));
  return rows;
}

function heldParts(held, ...rows) {
  const parts = [factTable(...rows, ...heldRows(held))];
  const bars = histogram(held);
  if (bars) parts.push(bars);
  if (held.first.length) {
    const all = held.first.length === held.elements;
    parts.push(make("h3", {}, all ? "Values" : `The first ${count(held.first.length)} values`));
    parts.push(make("pre", { class: "values" }, held.first.join(" ") + (all ? "" : " …")));
  }
  return parts;
}

function tensorPanel(data, links, tensor) {
  const { tensors } = data;
  const held = data.held[tensors.held[tensor]];
  const producer = data.producer[tensor];
  const kind = TENSOR_KINDS[tensors.kind[tensor]];
  const parts = [
    make("p", { class: "kind" }, kind === "computed" ? "tensor" : kind),
    make("h1", {}, make("bdi", {}, tensors.name[tensor] || "(no name)")),
  ];
  const rows = [
    factRow("Dtype", make("bdi", {}, tensors.dtype[tensor] || "not known")),
    factRow("Shape", make("bdi", {}, tensors.dims[tensor] || "not known")),
  ];
  parts.push(...(held ? heldParts(held, ...rows) : [factTable(...rows)]));
  if (producer >= 0) parts.push(make("h2", {}, "Made by"), links.list([producer], (node) => links.node(node)));
  const readers = data.consumers[tensor];
  parts.push(make("h2", {}, `Read by ${count(readers.length)}`), links.list(readers, (node) => links.node(node)));
  const results = data.scopes.flatMap((scope, place) => scope.terminals.slice(scope.graph.inputs.length).includes(tensor) ? [place] : []);
  if (results.length) parts.push(make("h2", {}, "Output of"), links.list(results, (scope) => links.scopeLink(scope)));
  return parts;
}
