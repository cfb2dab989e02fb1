// A table of any length: only the rows in sight exist. Mouse, keyboard and CSV work on the model.
//
// A column here also has: width (grid track), format(value, row), right, mono, heat(row) -> 0 to 1,
// tone(row) -> a class that says which way the heat goes, csv(row).

const ROW_HEIGHT = 30;
const ROWS_BEYOND = 8;
let tableCount = 0;

class TableView {
  constructor(host, model, { label, file, least, describe }) {
    this.model = model;
    this.label = label;
    this.file = file;
    this.describe = describe;
    this.id = `table-${tableCount++}`;
    this.build(least);
    host.replaceChildren(this.tools, this.box, this.detail);
    this.refresh();
  }

  build(least) {
    const { columns } = this.model;
    this.field = make("input", {
      type: "search",
      placeholder: `Filter ${this.label}`,
      "aria-label": `Filter ${this.label}`,
      title: "All words must occur; type:conv looks into one column",
      spellcheck: "false",
      oninput: () => this.filter(this.field.value),
      onkeydown: (event) => this.keyInField(event),
    });
    this.count = make("output", { "aria-live": "polite" });
    this.csv = make("button", { type: "button", onclick: () => this.save() });
    this.tools = make("div", { class: "tools" }, this.field, this.count, this.csv);
    this.heads = columns.map((column) => this.head(column));
    this.header = make("div", { class: "grid-head", role: "row", "aria-rowindex": 1 }, ...this.heads);
    this.body = make("div", { class: "grid-body", role: "rowgroup" });
    this.box = make("div", {
      class: "grid-box",
      role: "grid",
      tabindex: 0,
      "aria-label": this.label,
      "aria-multiselectable": "true",
      "aria-colcount": columns.length,
      onkeydown: (event) => this.key(event),
      onmousedown: (event) => event.shiftKey && event.preventDefault(),
      onclick: (event) => this.click(event),
    }, this.header, this.body);
    this.box.addEventListener("scroll", () => this.paint(), { passive: true });
    this.box.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    this.box.style.setProperty("--least", `${least}px`);
    this.detail = make("div", { class: "detail", "aria-live": "polite" });
    new ResizeObserver(() => this.paint()).observe(this.box);
  }

  head(column) {
    const button = make("button", { type: "button", tabindex: -1 }, column.label);
    button.addEventListener("click", () => this.sort(column.key));
    return make("div", { role: "columnheader", class: column.right ? "right" : "" }, button);
  }

  // Actions

  filter(text) {
    if (this.field.value !== text) this.field.value = text;
    this.model.filter(text);
    this.box.scrollTop = 0;
    this.refresh();
  }

  sort(key) {
    this.model.sortBy(key);
    this.refresh();
    this.reveal();
  }

  save() {
    const { columns } = this.model;
    const head = columns.map((column) => column.csvLabel ?? column.label);
    const rows = this.model.exported().map((row) =>
      columns.map((column) => (column.csv ?? column.value)(row)));
    download(this.file, "text/csv;charset=utf-8", csvText([head, ...rows]));
  }

  click(event) {
    const line = event.target.closest(".grid-row");
    if (!line) return;
    const position = Number(line.dataset.position);
    if (event.shiftKey) this.model.selectTo(position);
    else if (event.ctrlKey || event.metaKey) this.model.toggle(position);
    else this.model.selectOnly(position);
    this.refresh();
  }

  keyInField(event) {
    if (event.key === "Escape" && this.field.value) this.filter("");
    else if (event.key === "Escape") this.field.blur();
    else if (event.key === "Enter" || event.key === "ArrowDown") this.box.focus();
    else return;
    event.preventDefault();
  }

  key(event) {
    if (event.target !== this.box) return;
    const last = this.model.shown.length - 1;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 2);
    const { active } = this.model;
    const targets = {
      ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: last,
    };
    if (event.key in targets && last >= 0) this.move(targets[event.key], last, event.shiftKey);
    else if (event.key === " " && this.model.active >= 0) this.model.toggle(this.model.active);
    else if (event.key === "Escape") this.model.clear();
    else if (event.key === "a" && (event.ctrlKey || event.metaKey)) this.model.selectShown();
    else if (/^[1-9]$/.test(event.key) && this.model.columns[event.key - 1]) this.model.sortBy(this.model.columns[event.key - 1].key);
    else return;
    event.preventDefault();
    this.refresh();
    this.reveal();
  }

  move(target, last, extend) {
    const to = Math.min(last, Math.max(0, target));
    if (extend) this.model.selectTo(to);
    else this.model.selectOnly(to);
  }

  // Painting

  refresh() {
    const { model } = this;
    const rows = model.shown.length;
    this.box.style.setProperty("--rows", Math.max(model.length, 1));
    this.box.setAttribute("aria-rowcount", rows + 1);
    this.body.style.height = `${rows * ROW_HEIGHT}px`;
    this.count.textContent = rows === model.length
      ? `${count(rows)} rows` : `${count(rows)} of ${count(model.length)} rows`;
    const chosen = model.exported().length;
    this.csv.textContent = model.selected.size && chosen ? `CSV of ${count(chosen)} selected` : `CSV of ${count(rows)} rows`;
    model.columns.forEach((column, place) => {
      const sorted = model.sorting.key === column.key;
      if (sorted) this.heads[place].setAttribute("aria-sort", model.sorting.descending ? "descending" : "ascending");
      else this.heads[place].removeAttribute("aria-sort");
    });
    this.detail.replaceChildren(...this.describe(model));
    this.paint();
  }

  paint() {
    const { shown } = this.model;
    if (shown.length === 0) {
      this.body.replaceChildren(make("div", { class: "grid-empty" }, "No row matches."));
      return;
    }
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - ROWS_BEYOND);
    const inSight = Math.ceil(this.box.clientHeight / ROW_HEIGHT) + 2 * ROWS_BEYOND;
    const lines = [];
    for (let position = first; position < Math.min(shown.length, first + inSight); position++) {
      lines.push(this.line(position));
    }
    this.body.replaceChildren(...lines);
    const active = this.model.active;
    if (active >= 0) this.box.setAttribute("aria-activedescendant", `${this.id}-${active}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  line(position) {
    const row = this.model.shown[position];
    const line = make("div", {
      id: `${this.id}-${position}`,
      class: `grid-row${position % 2 ? " odd" : ""}${position === this.model.active ? " active" : ""}`,
      role: "row",
      "aria-rowindex": position + 2,
      "aria-selected": this.model.selected.has(row) ? "true" : "false",
      "data-position": position,
    }, ...this.model.columns.map((column) => this.cell(column, row)));
    line.style.top = `${position * ROW_HEIGHT}px`;
    return line;
  }

  cell(column, row) {
    const value = column.value(row);
    const text = column.format ? column.format(value, row) : shortened(String(value), 160);
    const classes = [...["right", "mono", "heat"].filter((name) => column[name]), column.tone?.(row)].filter(Boolean).join(" ");
    const cell = make("div", { role: "gridcell", class: classes || null, title: text.length > 16 ? text : null }, column.element ? column.element(value, row) : text);
    if (column.indent) cell.style.paddingLeft = `${10 + 14 * column.indent(row)}px`;
    if (column.heat) cell.style.setProperty("--hot", column.heat(row).toFixed(3));
    return cell;
  }

  reveal() {
    const top = this.model.active * ROW_HEIGHT;
    if (top < 0) return;
    const room = this.box.clientHeight - this.header.offsetHeight - ROW_HEIGHT;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top > this.box.scrollTop + room) this.box.scrollTop = top - room;
  }
}
