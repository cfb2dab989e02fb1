// The table of points: sorted, filtered, brushed, selected; one in full, two compared.

class PointsTable extends TableView {
  // `shown(rows)` hears which rows are left, whenever that may have changed.
  constructor(host, data, { keep, changed }) {
    const model = new TableModel(pointColumns(data), data.length);
    model.keep = keep;
    super(host, model, {
      label: "points", file: `${data.name.replace(/[^\w.-]+/g, "-") || "sweep"}-points.csv`, describe: () => describePoints(model, data), selected: () => changed(),
    });
    this.changed = changed;
    if (data.rank.some((rank) => rank !== null)) this.sort("rank");
    model.active = -1;
    this.box.scrollTop = 0;
    this.refresh();
  }

  refresh() {
    super.refresh();
    if (this.model.shown === this.toldShown) return;
    this.toldShown = this.model.shown;
    this.inSight = null;
    this.changed?.();
  }

  // Brushes on the axes have changed.
  again() {
    this.model.arrange();
    this.box.scrollTop = 0;
    this.refresh();
  }

  isShown(row) {
    this.inSight ??= new Set(this.model.shown);
    return this.inSight.has(row);
  }

  // From a picture: this one, or this one too.
  pick(row, more) {
    if (!more) this.choose([row]);
    else this.choose(this.model.selected.has(row) ? [...this.model.selected].filter((one) => one !== row) : [...this.model.selected, row]);
  }
}

function describePoints(model, data) {
  const rows = [...model.selected];
  if (rows.length === 0) {
    return [make("p", {}, "Select a point for all of it, two for the command that compares them: click, Ctrl-click or Shift-click; by keyboard arrows and Space. Columns has every metric.")];
  }
  if (rows.length === 1) return describePoint(rows[0], data);
  return rows.length === 2 ? describeTwo(rows, data) : selectionSummary(model);
}

const reference = (data, row) => shellWord(`${data.id}#${data.number[row]}`);

function pointHead(row, data) {
  const report = data.said("report", row);
  return make("h4", { class: "point-head" }, make("span", { class: "strong" }, `Point ${data.number[row]} `),
    make("span", { class: `outcome ${data.said("outcome", row)}` }, data.said("outcome", row)),
    data.rank[row] ? ` rank ${data.rank[row]} of ${data.rank.filter(Boolean).length} ` : " ", report ? make("a", { href: report }, "its own report") : "");
}

function stepsList(row, data) {
  const steps = data.steps[row];
  const list = make("table", { class: "dense" });
  for (let place = 0; place < steps.length; place += 3) {
    const [name, outcome, reason] = steps.slice(place, place + 3).map((text) => data.texts[text]);
    list.append(make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, name)), make("td", {}, make("span", { class: `outcome ${outcome}` }, outcome)), make("td", { class: "quiet" }, make("bdi", {}, reason))));
  }
  return list;
}

function describePoint(row, data) {
  const list = make("dl");
  const add = (label, text) => list.append(make("dt", {}, make("bdi", {}, label)), make("dd", {}, make("bdi", {}, text)));
  if (data.said("reason", row)) add(data.said("failed_step", row) || "reason", data.said("reason", row));
  for (const [gate, holds, measured] of data.constraints[row]) add(data.texts[gate], `${holds ? "passed" : "failed"}: ${data.texts[measured]}`);
  for (const one of data.dimensions.filter(({ kind }) => kind !== "metric")) add(one.label, one.text(row));
  const again = data.again[row];
  if (again) data.of("objective").forEach((one, place) => add(`${one.label} again`, quantityText(again.objectives[place], one.unit)));
  const metrics = make("dl");
  for (const one of data.of("metric").filter((metric) => metric.numbers[row] !== null)) {
    metrics.append(make("dt", {}, make("bdi", {}, one.label)), make("dd", {}, one.text(row)));
  }
  return [pointHead(row, data), make("div", { class: "summary point-detail" },
    make("div", {}, list, data.steps[row].length ? make("div", { class: "scroll" }, stepsList(row, data)) : ""),
    make("div", {}, make("h4", {}, "For the recipe"), copyBox(data.said("lines", row)),
      make("details", { class: "plain" }, make("summary", {}, `All metrics`), metrics)))];
}

// The command, and where the two differ.
function describeTwo([first, second], data) {
  const told = data.dimensions.filter((one) => (one.kind !== "metric" || one.telling) && one.text(first) !== one.text(second));
  const change = (one) => (one.kind !== "axis" && one.numbers[first] > 0 && one.numbers[second] !== null ? changeText(one.numbers[second] / one.numbers[first]) : "");
  const table = make("table", { class: "dense" },
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "What differs"), ...[first, second].map((row) => make("th", { scope: "col", class: "n" }, `Point ${data.number[row]}`)), make("th", { class: "n", scope: "col" }, "Change"))),
    make("tbody", {}, ...told.map((one) => make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, one.label)),
      ...[first, second].map((row) => make("td", { class: "n" }, make("bdi", {}, shortened(one.text(row), 40)))), make("td", { class: "n" }, change(one))))));
  return [make("h4", {}, `Compare point ${data.number[first]}, the base, with point ${data.number[second]}`),
    copyBox(`ndld-flow compare ${reference(data, first)} ${reference(data, second)}`), make("div", { class: "scroll" }, table)];
}
