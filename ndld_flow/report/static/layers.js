// Layers of the profiled artifacts: one table at a time, chosen by a tab.

function layerColumns(layers, texts) {
  const { columns } = layers;
  const text = (key) => (row) => texts[columns[key][row]];
  const number = (key) => (row) => columns[key][row];
  const hottest = columns.median_ms.reduce((a, b) => Math.max(a, b), 1e-12);
  return [
    { key: "index", label: "#", width: "58px", numeric: true, position: true, right: true, value: number("index"), format: String },
    { key: "name", label: "Name", width: "minmax(170px, 2fr)", mono: true, value: text("name"), indent: number("depth") },
    { key: "type", label: "Type", width: "minmax(90px, 0.8fr)", value: text("type") },
    { key: "dims", label: "Dims", width: "128px", value: text("dims") },
    { key: "provider", label: "Provider", width: "84px", value: text("provider") },
    { key: "precision", label: "Precision", width: "84px", value: text("precision") },
    {
      key: "share", label: "%", csvLabel: "percent of layer sum", width: "70px", numeric: true, right: true,
      value: number("share"), format: share, csv: (row) => Number((columns.share[row] * 100).toPrecision(5)),
    },
    {
      key: "ms", label: "Median", csvLabel: "median ms", width: "96px", numeric: true, right: true,
      value: number("median_ms"), format: milliseconds, heat: (row) => Math.sqrt(columns.median_ms[row] / hottest),
    },
    {
      key: "onnx", label: "ONNX nodes", width: "minmax(140px, 1.2fr)", mono: true,
      value: (row) => columns.onnx_nodes[row].map((place) => texts[place]).join(", "),
      format: (value, row) => {
        const nodes = columns.onnx_nodes[row];
        return nodes.length > 1 ? `${nodes.length}: ${shortened(value, 120)}` : shortened(value, 120);
      },
    },
  ];
}

function describeLayers(table, layers, texts) {
  if (table.selected.size === 0) {
    return [make("p", {}, "Select layers to add them up: click, Shift or Ctrl and click, or the arrow keys and Space. ",
      make("kbd", {}, "1"), " to ", make("kbd", {}, "9"), " sort by a column.")];
  }
  return table.selected.size === 1 ? describeOne(table, layers, texts) : [describeSum(table, layers, texts)];
}

function describeOne(table, { columns }, texts) {
  const [row] = table.selected;
  const spread = `${milliseconds(columns.median_ms[row])} median, ${milliseconds(columns.min_ms[row])} to ${milliseconds(columns.max_ms[row])}, ${share(columns.share[row])} of the layer sum`;
  const list = make("dl");
  const lines = [
    ["Name", texts[columns.name[row]]],
    ["Time", spread],
    ["Inputs", texts[columns.inputs[row]]],
    ["Outputs", texts[columns.outputs[row]]],
    ["ONNX nodes", columns.onnx_nodes[row].map((place) => texts[place]).join(", ")],
  ];
  for (const [label, value] of lines) {
    if (value) list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, value)));
  }
  return [list];
}

function describeSum(table, { columns }, texts) {
  const rows = [...table.selected];
  const times = rows.map((row) => columns.median_ms[row]);
  const sum = times.reduce((a, b) => a + b, 0);
  const part = rows.reduce((a, row) => a + columns.share[row], 0);
  const types = new Map();
  for (const row of rows) types.set(texts[columns.type[row]], (types.get(texts[columns.type[row]]) ?? 0) + 1);
  const frequent = [...types].sort((a, b) => b[1] - a[1]).slice(0, 6);
  const least = times.reduce((a, b) => Math.min(a, b));
  const most = times.reduce((a, b) => Math.max(a, b));
  return make("dl", {},
    make("dt", {}, "Selected"), make("dd", {}, `${count(rows.length)} of ${count(table.length)} layers`),
    make("dt", {}, "Sum"), make("dd", {}, `${milliseconds(sum)}, ${share(part)} of the layer sum`),
    make("dt", {}, "Mean"), make("dd", {}, `${milliseconds(sum / rows.length)}, from ${milliseconds(least)} to ${milliseconds(most)}`),
    make("dt", {}, "Types"), make("dd", {}, frequent.map(([type, times]) => `${count(times)} ${shortened(type, 40)}`).join(", ")));
}

function layersTable(section, layers, texts) {
  const model = new TableModel(layerColumns(layers, texts), layers.columns.index.length);
  model.sortBy("ms");
  const view = new TableView(section.querySelector('[data-live="layers"]'), model, {
    label: "layers",
    file: `layers-${layers.step.replaceAll(/[^\w.-]+/g, "_").slice(0, 60)}.csv`,
    least: 980,
    describe: (table) => describeLayers(table, layers, texts),
  });
  for (const bar of section.querySelectorAll("[data-type]")) {
    bar.classList.add("pick");
    const head = bar.querySelector("th");
    const button = make("button", { type: "button", title: "Show only this type" }, ...head.childNodes);
    head.replaceChildren(button);
    bar.addEventListener("click", () => view.filter(typeFilter(view, bar.dataset.type)));
  }
  return view;
}

// A second click takes the filter away. A type with blanks is looked for by its first word.
function typeFilter(view, type) {
  const wanted = `type:${type.split(/\s/)[0].toLowerCase()}`;
  return view.field.value === wanted ? "" : wanted;
}

// A table is built when its tab is first opened: ten profiles of 5,000 layers cost no more than one.
function layerTabs(payload) {
  const sections = [...document.querySelectorAll("[data-layers]")];
  const built = new Set();
  const tabs = sections.map((section, place) => make("button", {
    type: "button",
    role: "tab",
    id: `tab-${place}`,
    "aria-controls": section.id,
  }, shortened(payload.layers[place].label, 40)));
  const open = (place) => {
    tabs.forEach((tab, other) => {
      tab.setAttribute("aria-selected", String(other === place));
      tab.tabIndex = other === place ? 0 : -1;
      sections[other].hidden = other !== place;
    });
    if (!built.has(place)) layersTable(sections[place], payload.layers[place], payload.texts);
    built.add(place);
  };
  tabs.forEach((tab, place) => {
    sections[place].setAttribute("role", "tabpanel");
    sections[place].setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => open(place));
    tab.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      const next = (place + by + tabs.length) % tabs.length;
      open(next);
      tabs[next].focus();
    });
  });
  const bar = document.querySelector("#layers .tabs");
  if (tabs.length > 1) bar.replaceChildren(...tabs);
  else bar.remove();
  open(0);
}
