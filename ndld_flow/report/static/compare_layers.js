// Layers of all reports on common rows: the table, and the choices of which rows it shows.

const LAYER_CHOICES = {
  precision: { label: "precision changed", keep: (pair) => (row) => pair.changed("precision", row) },
  tactic: { label: "tactic changed", keep: (pair) => (row) => pair.changed("tactic", row) },
  slower: { label: "slower", keep: (pair, limit) => (row) => pair.delta(row) > 0 && pair.ratio(row) > 1 + limit },
  faster: { label: "faster", keep: (pair, limit) => (row) => pair.delta(row) < 0 && pair.ratio(row) < 1 / (1 + limit) },
  unmatched: { label: "unmatched", keep: (pair) => (row) => pair.either(row) && !pair.both(row) },
};

class ComparedLayers {
  // `selected(rows)` hears which rows are selected.
  constructor(host, selected) {
    this.selected = selected;
    this.chosen = new Set();
    this.method = "";
    this.scale = "linear";
    this.buttons = Object.entries(LAYER_CHOICES).map(([key, { label }]) => make("button", {
      type: "button", "aria-pressed": "false", "data-choice": key, onclick: () => this.toggle(key),
    }, label));
    this.methods = make("select", { "aria-label": "Matched by", onchange: () => this.showMethod(this.methods.value) });
    this.choices = make("div", { class: "layer-choices", role: "group", "aria-label": "Show only" },
      make("span", { class: "quiet" }, "Only"), ...this.buttons, this.methods);
    this.about = make("p", { class: "quiet small" });
    this.inner = make("div", { "data-live": "compared-layers" });
    host.replaceChildren(this.choices, this.about, this.inner);
  }

  draw(view, pair) {
    const sameProfile = this.view?.profile === view.profile;
    Object.assign(this, { view, pair });
    // What counts as slower or faster is what counts for the whole.
    this.limit = view.verdict(view.deciding, view.candidate)?.threshold ?? 0.03;
    this.sayPair();
    this.offerMethods();
    this.heat = new Heat(this.scale);
    const columns = comparedColumns(view, pair, this.heat);
    if (!sameProfile) this.begin(columns);
    else this.follow(columns);
    this.keep();
    this.show();
  }

  begin(columns) {
    this.model = new TableModel(columns, this.pair.length);
    this.model.sorting = { key: "size", descending: true };
    this.text = "";
    this.top = 0;
  }

  // Another base: the same rows, selection, order and filter; columns that a person hid stay hidden.
  follow(columns) {
    const hidden = new Map(this.model.columns.map((column) => [column.key, column.hidden]));
    for (const column of columns) if ("hidden" in column) column.hidden = hidden.get(column.key);
    this.model.columns = columns;
    this.model.haystacks.clear();
    this.text = this.table.field.value;
    this.top = this.table.box.scrollTop;
  }

  show() {
    const { subjects, name } = this.view.profile;
    this.table = new TableView(this.inner, this.model, {
      label: "layers",
      file: `layers-${name.replaceAll(/[^\w.-]+/g, "_").slice(0, 60)}-${this.view.subject(this.pair.candidate).letter}-against-${this.view.subject(this.pair.base).letter}.csv`,
      describe: (model) => describeCompared(this.view, this.pair, model),
      selected: (rows) => this.selected(rows),
      tools: [makeSwitch("Heat", { linear: "linear", log: "log", rank: "rank", none: "off" }, this.scale, (scale) => this.warm(scale))],
    });
    this.table.filter(this.text);
    this.table.box.scrollTop = this.top;
    this.table.box.dataset.reports = subjects.length;
  }

  warm(scale) {
    this.scale = scale;
    this.heat.use(scale);
    this.table.paint();
  }

  sayPair() {
    this.about.replaceChildren("Delta, %, speed-up and changes: ", named(this.view.subject(this.pair.candidate)), " against ", named(this.view.subject(this.pair.base)),
      this.view.first ? "; the largest change comes first." : "; the largest change comes first. Verdicts were worked out against another base.");
  }

  offerMethods() {
    const present = this.pair.rows.methods.filter((method) => method !== "unmatched");
    this.methods.replaceChildren(make("option", { value: "" }, "matched in any way"),
      ...present.map((method) => make("option", { value: method }, `matched by ${method}`)));
    this.methods.value = this.method;
    const tactics = Array.from({ length: this.pair.length }, (_, row) => row).some((row) => this.pair.changed("tactic", row));
    this.buttons.find((one) => one.dataset.choice === "tactic").hidden = !tactics && !this.chosen.has("tactic");
  }

  // Slower and faster exclude each other; all other choices narrow what the rest leaves.
  toggle(key) {
    if (!this.chosen.delete(key)) this.chosen.add(key);
    if (this.chosen.has(key) && key === "slower") this.chosen.delete("faster");
    if (this.chosen.has(key) && key === "faster") this.chosen.delete("slower");
    this.apply();
  }

  showMethod(method) {
    this.chosen.delete("unmatched");
    this.method = method === "unmatched" ? "" : method;
    if (method === "unmatched") this.chosen.add("unmatched");
    this.methods.value = this.method;
    this.apply();
  }

  // The type or the precision that was picked elsewhere; picked again, it goes away.
  pick(key, text) {
    const word = exactWord(key, text);
    this.table.filter(this.table.field.value === word ? "" : word);
  }

  apply() {
    this.keep();
    this.table.filter(this.table.field.value);
  }

  keep() {
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(this.chosen.has(button.dataset.choice)));
    const tests = [...this.chosen].map((key) => LAYER_CHOICES[key].keep(this.pair, this.limit));
    const byMethod = this.method;
    this.model.keep = (row) => tests.every((test) => test(row)) && (!byMethod || this.pair.method(row) === byMethod);
  }
}
