// All layers of a comparison as a table; it is made when somebody opens it or comes to it from the chart.

function depthColumns(data) {
  const known = (value) => (value === NOT_FINITE ? Infinity : value);
  const errors = data.curves.flatMap((curve, place) => ["error", "distance"].filter((of) => data[of].some((values) => values.some((value) => value !== null))).map((of) => ({
    key: `${of}${place}`, label: of === "error" ? `${shortened(curve, 14)}: error` : "1 − cosine", longLabel: `${shortened(curve, 40)}: ${ERROR_SCALES[of].title}`,
    csvLabel: `${curve} ${of === "error" ? "relative_error" : "1-cosine"}`, width: "minmax(112px, 0.7fr)", numeric: true, right: true, hidden: of === "distance" && place > 0,
    value: (row) => known(data[of][place][row]), format: (_, row) => (data[of][place][row] === null ? "" : data.errorWords(place, row, of)),
    tone: (row) => (data[of][place][row] === NOT_FINITE || (of === "error" && data.bound && data.error[place][row] > data.bound.error) ? "bad" : ""),
    csv: (row) => (data[of][place][row] === NOT_FINITE ? "not finite" : data[of][place][row] ?? ""),
  })));
  const range = (key, label, format, tone = () => "") => ({
    key, label, width: "minmax(92px, 0.6fr)", numeric: true, right: true, hidden: key === "subnormal_share" || key === "rms",
    value: (row) => data.ranges[key][row], format: (value) => (value === null ? "" : format(value)), csv: (row) => data.ranges[key][row] ?? "", tone,
  });
  const part = (value) => (value === 0 ? "0" : value < 0.001 ? "< 0.1 %" : share(value));
  const ranges = data.ranges ? [
    range("largest_abs", "Largest", plainNumber, (row) => (data.rangeKind(row) === "over" ? "bad" : "")), range("smallest_abs", "Smallest", plainNumber), range("rms", "RMS", plainNumber),
    ...(data.limits ? [range("beyond_share", "Beyond", part, (row) => (data.ranges.beyond_share[row] > 0 ? "bad" : "")), range("vanishing_share", "Vanish", part), range("subnormal_share", "Subnormal", part)] : []),
  ] : [];
  const marks = (row) => [row === data.first ? "starts here" : "", data.kept.has(row) ? "kept" : ""].filter(Boolean).join(", ");
  return [
    { key: "index", label: "#", width: "64px", numeric: true, right: true, position: true, value: (row) => data.position[row], format: count },
    { key: "node", label: "Node", width: "minmax(170px, 1.6fr)", mono: true, value: (row) => data.node[row] },
    { key: "type", label: "Type", width: "minmax(120px, 0.8fr)", tally: true, value: (row) => data.op_type[row] },
    { key: "tensor", label: "Tensor", width: "minmax(150px, 1fr)", mono: true, hidden: true, value: (row) => data.tensor[row] },
    { key: "dims", label: "Dims", width: "minmax(120px, 0.7fr)", hidden: true, value: (row) => data.dims[row] },
    ...errors, ...ranges,
    { key: "mark", label: "Mark", width: "minmax(96px, 0.5fr)", value: marks, element: (value) => make("span", { class: "point-mark tie" }, value) },
  ];
}

function describeDepth(model, data) {
  if (model.selected.size !== 1) {
    return [make("p", {}, model.selected.size ? `${count(model.selected.size)} layers selected: they are marked in the chart.` : "Select a layer to read all of it; a click on the chart selects one.")];
  }
  const [row] = model.selected;
  const list = make("dl");
  const add = (label, value) => value && list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, value)));
  add("Layer", `#${data.position[row]} ${data.called(row)}`);
  add("Tensor", `${data.tensor[row]} ${data.dims[row]}`.trim());
  data.curves.forEach((curve, place) => add(curve, data.scales().map((key) => `${ERROR_SCALES[key].title} ${data.errorWords(place, row, key)}`).join(", ")));
  add("Reference", data.rangeWords(row));
  return [list];
}

class DepthPart {
  constructor(host, packed, texts, { label, file }) {
    this.data = new DepthData(packed, texts);
    Object.assign(this, { label, file, room: make("div") });
    const chart = make("div");
    this.folder = make("details", { class: "plain depth-table" }, make("summary", {}, `All ${count(this.data.length)} layers as a table`), this.room);
    host.replaceChildren(chart, this.folder);
    this.chart = new DepthChart(chart, this.data, { label, pick: (row) => this.choose([row]) });
    this.folder.addEventListener("toggle", () => this.folder.open && this.build());
  }

  build() {
    this.table ??= new TableView(this.room, new TableModel(depthColumns(this.data), this.data.length), {
      label: "layers by divergence", file: this.file, describe: (model) => describeDepth(model, this.data), selected: (rows) => this.chart.mark(rows),
    });
  }

  choose(rows) {
    this.folder.open = true;
    this.build();
    this.table.choose(rows);
    this.table.tools.scrollIntoView({ block: "nearest" });
  }

  // The layer of a node, from elsewhere on the page.
  rowOf(node) {
    return this.data.node.indexOf(node);
  }
}

function depthParts(payload) {
  const parts = new Map();
  for (const host of document.querySelectorAll('[data-live="depth"]')) {
    const place = Number(host.dataset.depth);
    parts.set(place, new DepthPart(host, payload.depths[place], payload.texts, { label: host.dataset.label, file: host.dataset.file }));
  }
  return parts;
}
