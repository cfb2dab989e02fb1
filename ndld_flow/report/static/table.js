// A table of any length: its model, its view, and the heat of its numbers.

import { csvText, download } from "./downloads.js";
import { around, make, shortened } from "./elements.js";
import { count, counted } from "./quantities.js";

/**
 * A column of a table. A row is its number, 0 to length - 1.
 * @typedef {object} Column
 * @property {string} key
 * @property {string | Node} label an element needs `longLabel` and `csvLabel` besides
 * @property {(row: number) => any} value a number or a text
 * @property {string} width a track of a CSS grid
 * @property {boolean} [numeric]
 * @property {boolean} [position] sorted from the least first, though it is numeric
 * @property {boolean} [hidden] there is a choice of columns, and this one is off until a person chooses it
 * @property {boolean} [right]
 * @property {boolean} [mono]
 * @property {boolean} [tally] a discrete column that a summary of selected rows counts
 * @property {string} [measure] a numeric column of such a summary; "sum" where adding up makes sense
 * @property {string} [longLabel]
 * @property {string} [csvLabel]
 * @property {string} [summaryLabel]
 * @property {(value: any, row: number) => string} [format] the row is -1 in a summary
 * @property {(value: any, row: number) => string | Node} [element]
 * @property {(row: number) => number} [heat] 0 to 1
 * @property {(row: number) => string} [tone] a class: a direction of the heat, or that a value is bad
 * @property {(row: number) => string | null} [about] the tooltip
 * @property {(row: number) => number} [indent]
 * @property {(row: number) => any} [csv]
 * @property {number} [letters] that fit into the column as it is drawn
 */

// Which rows of a table are shown, in which order, and which are selected. Independent of the page.

const FILTER_WORD = /(?:([a-z_]+)([:=]))?(?:"((?:[^"]|"")*)"|(\S+))/g;

/**
 * A word of the filter that matches exactly one value in one column.
 * @param {string} key
 * @param {string} value
 */
export function exactWord(key, value) {
  const text = value.toLowerCase();
  return /^[^\s"]+$/.test(text) ? `${key}=${text}` : `${key}="${text.replaceAll('"', '""')}"`;
}

export class TableModel {
  /**
   * @param {Column[]} columns
   * @param {number} length
   */
  constructor(columns, length) {
    this.columns = columns;
    this.length = length;
    this.shown = Array.from({ length }, (_, row) => row);
    /** @type {Set<number>} */
    this.selected = new Set();
    this.sorting = { key: "", descending: false };
    /** @type {{key: string, word: string, exact?: boolean}[]} */
    this.words = [];
    /** @type {(row: number) => boolean} a filter in addition to the words */
    this.keep = () => true;
    this.active = -1; // position in `shown`
    this.anchor = -1; // where a range starts
    /** @type {Map<string, string[]>} */
    this.haystacks = new Map();
  }

  /** @param {string} key */
  column(key) {
    return this.columns.find((column) => column.key === key);
  }

  /**
   * Amounts start with the largest, texts with A, positions with the first; sorting again reverses the order.
   * @param {string} key
   */
  sortBy(key) {
    const column = this.column(key);
    if (!column) return;
    const again = this.sorting.key === key;
    this.sorting = { key, descending: again ? !this.sorting.descending : Boolean(column.numeric && !column.position) };
    this.arrange();
  }

  /**
   * All words must occur, in upper or lower case; `type:conv` searches one column, `type=conv` matches its whole value.
   * Quotes group words: `type="a b"`; a quote inside is doubled.
   * @param {string} text
   */
  filter(text) {
    this.words = [...text.toLowerCase().matchAll(FILTER_WORD)].map(([whole, key, sign, quoted, plain]) => {
      const known = key !== undefined && this.columns.some((column) => column.key === key);
      if (!known) return { key: "", word: quoted === undefined ? whole : quoted.replaceAll('""', '"') };
      return { key, exact: sign === "=", word: quoted?.replaceAll('""', '"') ?? plain };
    });
    this.arrange();
  }

  arrange() {
    const kept = this.active >= 0 ? this.shown[this.active] : -1;
    const rows = Array.from({ length: this.length }, (_, row) => row);
    this.shown = rows.filter((row) => this.keep(row) && this.matches(row));
    if (this.sorting.key) this.order();
    this.active = kept < 0 ? -1 : this.shown.indexOf(kept);
    this.anchor = this.active;
  }

  order() {
    const column = this.column(this.sorting.key);
    if (!column) return;
    const sign = this.sorting.descending ? -1 : 1;
    // Unknown values come last in both orders.
    const values = Array.from({ length: this.length }, (_, row) => column.value(row) ?? sign * Infinity);
    const texts = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
    /** @type {(a: number, b: number) => number} */
    const compare = column.numeric
      ? (a, b) => (values[a] === values[b] ? 0 : values[a] - values[b])
      : (a, b) => texts.compare(values[a], values[b]);
    this.shown.sort((a, b) => sign * compare(a, b) || a - b);
  }

  /**
   * The columns that a word of the filter searches: the named one, otherwise all that hold texts.
   * @param {string} key
   */
  searched(key) {
    return this.columns.filter((column) => (key ? column.key === key : !column.numeric));
  }

  /**
   * The searched texts of all rows.
   * @param {string} key a column; "" for all
   */
  haystack(key) {
    const known = this.haystacks.get(key);
    if (known) return known;
    const columns = this.searched(key);
    const texts = Array.from({ length: this.length }, (_, row) =>
      columns.map((column) => column.value(row)).join("\n").toLowerCase());
    this.haystacks.set(key, texts);
    return texts;
  }

  /** @param {number} row */
  matches(row) {
    return this.words.every(({ key, word, exact }) => {
      const text = this.haystack(key)[row];
      return exact ? text === word : text.includes(word);
    });
  }

  /**
   * Positions are those in `shown`, so that a selection matches the screen.
   * @param {number} position
   */
  selectOnly(position) {
    this.selected = new Set([this.shown[position]]);
    this.active = this.anchor = position;
  }

  /** @param {number} position */
  toggle(position) {
    const row = this.shown[position];
    this.selected = new Set(this.selected);
    if (!this.selected.delete(row)) this.selected.add(row);
    this.active = this.anchor = position;
  }

  /** @param {number} position */
  selectTo(position) {
    const start = Math.max(this.anchor, 0);
    const [low, high] = start < position ? [start, position] : [position, start];
    this.selected = new Set(this.shown.slice(low, high + 1));
    this.active = position;
    this.anchor = start;
  }

  selectShown() {
    this.selected = new Set(this.shown);
  }

  /**
   * Rows by their numbers; the first of them that is shown becomes the active one.
   * @param {number[]} rows
   */
  selectRows(rows) {
    this.selected = new Set(rows);
    this.active = this.anchor = this.shown.findIndex((row) => this.selected.has(row));
  }

  clear() {
    this.selected = new Set();
  }

  // The rows to export: the selection if there is one, otherwise all shown rows, in the order on screen.
  exported() {
    if (this.selected.size === 0) return this.shown;
    return this.shown.filter((row) => this.selected.has(row));
  }
}

// A table of any length: only the visible rows exist as elements. Mouse, keyboard and CSV work on the model.

const ROW_HEIGHT = 30;
const ROWS_BEYOND = 8;
const MONO_LETTER = 7.3; // pixels; long names lose their middle
let tableCount = 0;

/**
 * The least width of a grid with these tracks, in pixels: the first number of `84px` and `minmax(170px, 2fr)`.
 * @param {Column[]} columns
 */
const leastWidth = (columns) => columns.reduce((sum, { width }) => sum + Number(width.match(/\d+/)?.[0] ?? 0), 0);

export class TableView {
  /**
   * @param {HTMLElement} host
   * @param {TableModel} model
   * @param {object} options
   * @param {string} options.label
   * @param {string} options.file the name of the CSV file
   * @param {number} [options.least] the least width in pixels
   * @param {(model: TableModel) => (Node | string)[]} options.describe the text below the table, for what is selected
   * @param {Node[]} [options.tools] elements next to the filter
   * @param {(rows: number[]) => void} [options.selected] called when the selection changes
   */
  constructor(host, model, { label, file, least, describe, tools = [], selected = () => {} }) {
    this.model = model;
    this.label = label;
    this.file = file;
    this.describe = describe;
    this.selected = selected;
    this.reported = model.selected;
    this.least = least;
    this.id = `table-${tableCount++}`;
    /** @type {HTMLElement[]} */
    this.heads = [];
    this.field = make("input", {
      type: "search",
      placeholder: `Filter ${this.label}`,
      "aria-label": `Filter ${this.label}`,
      title: "All words must occur; type:conv searches one column, type=conv matches its whole value",
      spellcheck: "false",
      oninput: () => this.filter(this.field.value),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.keyInField(event),
    });
    this.count = make("output", { "aria-live": "polite" });
    this.csv = make("button", { type: "button", onclick: () => this.save() });
    const chooser = this.model.columns.some((column) => "hidden" in column) ? [this.chooser()] : [];
    this.tools = make("div", { class: "tools" }, this.field, this.count, ...tools, ...chooser, this.csv);
    this.header = make("div", { class: "grid-head", role: "row", "aria-rowindex": 1 });
    this.body = make("div", { class: "grid-body", role: "rowgroup" });
    this.box = make("div", {
      class: "grid-box",
      role: "grid",
      tabindex: 0,
      "aria-label": this.label,
      "aria-multiselectable": "true",
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
      onmousedown: (/** @type {MouseEvent} */ event) => event.shiftKey && event.preventDefault(),
      onclick: (/** @type {MouseEvent} */ event) => this.click(event),
    }, this.header, this.body);
    this.box.addEventListener("scroll", () => this.paint(), { passive: true });
    this.arrangeColumns();
    this.detail = make("div", { class: "detail", "aria-live": "polite" });
    new ResizeObserver(() => this.paint()).observe(this.box);
    host.replaceChildren(this.tools, this.box, this.detail);
    this.refresh();
  }

  get columns() {
    return this.model.columns.filter((column) => !column.hidden);
  }

  arrangeColumns() {
    const { columns } = this;
    this.heads = columns.map((column) => this.head(column));
    this.header.replaceChildren(...this.heads);
    this.box.setAttribute("aria-colcount", String(columns.length));
    this.box.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    this.box.style.setProperty("--least", `${this.least ?? leastWidth(columns)}px`);
  }

  // The choice of shown columns; a CSV file holds all of them.
  chooser() {
    const choices = this.model.columns.map((column) => {
      const box = make("input", { type: "checkbox", checked: !column.hidden });
      box.addEventListener("change", () => {
        column.hidden = !box.checked;
        this.arrangeColumns();
        this.refresh();
      });
      return make("label", {}, box, column.longLabel ?? column.label);
    });
    const summary = make("summary", {}, "Columns");
    const panel = make("details", { class: "chooser" }, summary, make("div", {}, ...choices));
    panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !panel.open) return;
      panel.open = false;
      summary.focus();
    });
    document.addEventListener("pointerdown", (event) => {
      if (panel.open && !event.composedPath().includes(panel)) panel.open = false;
    });
    return panel;
  }

  /** @param {Column} column */
  head(column) {
    const button = make("button", { type: "button", tabindex: -1 }, column.label);
    button.addEventListener("click", () => this.sort(column.key));
    return make("div", { role: "columnheader", class: column.right ? "right" : "" }, button);
  }

  // Actions

  /** @param {string} text */
  filter(text) {
    if (this.field.value !== text) this.field.value = text;
    this.model.filter(text);
    this.box.scrollTop = 0;
    this.refresh();
  }

  /** @param {string} key */
  sort(key) {
    this.model.sortBy(key);
    this.refresh();
    this.reveal();
  }

  /**
   * Select rows from elsewhere on the page; rows that the filter hides are shown again.
   * @param {number[]} rows
   */
  choose(rows) {
    const hidden = rows.some((row) => !this.model.shown.includes(row));
    if (hidden) {
      this.field.value = "";
      this.model.filter("");
    }
    this.model.selectRows(rows);
    this.refresh();
    this.reveal();
  }

  save() {
    const { columns } = this.model;
    const head = columns.map((column) => column.csvLabel ?? String(column.label));
    const rows = this.model.exported().map((row) =>
      columns.map((column) => (column.csv ?? column.value)(row)));
    download(this.file, "text/csv;charset=utf-8", csvText([head, ...rows]));
  }

  /** @param {MouseEvent} event */
  click(event) {
    const line = around(event, ".grid-row");
    if (!line) return;
    const position = Number(line.dataset.position);
    if (event.shiftKey) this.model.selectTo(position);
    else if (event.ctrlKey || event.metaKey) this.model.toggle(position);
    else this.model.selectOnly(position);
    this.refresh();
  }

  /** @param {KeyboardEvent} event */
  keyInField(event) {
    if (event.key === "Escape" && this.field.value) this.filter("");
    else if (event.key === "Escape") this.field.blur();
    else if (event.key === "Enter" || event.key === "ArrowDown") this.box.focus();
    else return;
    event.preventDefault();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.target !== this.box) return;
    const last = this.model.shown.length - 1;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_HEIGHT) - 2);
    const { active } = this.model;
    /** @type {Record<string, number>} */
    const targets = {
      ArrowDown: active + 1, ArrowUp: active - 1, PageDown: active + page, PageUp: active - page, Home: 0, End: last,
    };
    if (event.key in targets && last >= 0) this.move(targets[event.key], last, event.shiftKey);
    else if (event.key === " " && this.model.active >= 0) this.model.toggle(this.model.active);
    else if (event.key === "Escape") this.model.clear();
    else if (event.key === "a" && (event.ctrlKey || event.metaKey)) this.model.selectShown();
    else if (/^[1-9]$/.test(event.key) && this.columns[Number(event.key) - 1]) this.model.sortBy(this.columns[Number(event.key) - 1].key);
    else return;
    event.preventDefault();
    this.refresh();
    this.reveal();
  }

  /**
   * @param {number} target
   * @param {number} last
   * @param {boolean} extend
   */
  move(target, last, extend) {
    const to = Math.min(last, Math.max(0, target));
    if (extend) this.model.selectTo(to);
    else this.model.selectOnly(to);
  }

  // Painting

  refresh() {
    const { model } = this;
    const rows = model.shown.length;
    this.box.style.setProperty("--rows", String(Math.max(model.length, 1)));
    this.box.setAttribute("aria-rowcount", String(rows + 1));
    this.body.style.height = `${rows * ROW_HEIGHT}px`;
    this.count.textContent = rows === model.length
      ? counted(rows, "row") : `${count(rows)} of ${counted(model.length, "row")}`;
    const chosen = model.exported().length;
    this.csv.textContent = model.selected.size && chosen ? `CSV of ${count(chosen)} selected` : `CSV of ${counted(rows, "row")}`;
    this.columns.forEach((column, place) => {
      const sorted = model.sorting.key === column.key;
      if (sorted) this.heads[place].setAttribute("aria-sort", model.sorting.descending ? "descending" : "ascending");
      else this.heads[place].removeAttribute("aria-sort");
    });
    this.detail.replaceChildren(...this.describe(model));
    this.paint();
    if (this.reported === model.selected) return;
    this.reported = model.selected;
    this.selected([...model.selected]);
  }

  paint() {
    const { shown } = this.model;
    if (shown.length === 0) {
      this.body.replaceChildren(make("div", { class: "grid-empty" }, "No row matches."));
      return;
    }
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - ROWS_BEYOND);
    const inSight = Math.ceil(this.box.clientHeight / ROW_HEIGHT) + 2 * ROWS_BEYOND;
    const { columns } = this;
    const lines = [];
    for (const [place, column] of columns.entries()) {
      column.letters = column.mono ? Math.max(10, Math.floor((this.heads[place].offsetWidth - 20) / MONO_LETTER)) : 160;
    }
    for (let position = first; position < Math.min(shown.length, first + inSight); position++) {
      lines.push(this.line(position, columns));
    }
    this.body.replaceChildren(...lines);
    const active = this.model.active;
    if (active >= 0) this.box.setAttribute("aria-activedescendant", `${this.id}-${active}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  /**
   * @param {number} position
   * @param {Column[]} columns the shown ones
   */
  line(position, columns) {
    const row = this.model.shown[position];
    const line = make("div", {
      id: `${this.id}-${position}`,
      class: `grid-row${position % 2 ? " odd" : ""}${position === this.model.active ? " active" : ""}`,
      role: "row",
      "aria-rowindex": position + 2,
      "aria-selected": this.model.selected.has(row) ? "true" : "false",
      "data-position": position,
    }, ...columns.map((column) => this.cell(column, row)));
    line.style.top = `${position * ROW_HEIGHT}px`;
    return line;
  }

  /**
   * @param {Column} column
   * @param {number} row
   */
  cell(column, row) {
    const value = column.value(row);
    const text = column.format ? column.format(value, row) : shortened(String(value), Math.max(10, (column.letters ?? 0) - 2 * (column.indent?.(row) ?? 0)));
    const classes = [column.right && "right", column.mono && "mono", column.heat && "heat", column.tone?.(row)].filter(Boolean).join(" ");
    const cell = make("div", { role: "gridcell", class: classes || null, title: column.about?.(row) || (text.length > 16 || column.mono ? shortened(String(value), 400) : null) }, column.element ? column.element(value, row) : text);
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

// The heat of a number within its column: 0 to 1, on a scale that the reader chooses.

/** @param {(number | null)[]} values */
const known = (values) => values.filter((value) => value !== null);

/** @type {Record<string, (values: (number | null)[]) => (value: number | null) => number>} */
const HEAT_SCALES = {
  linear: (values) => {
    const most = known(values).reduce((a, b) => Math.max(a, b), 0) || 1;
    return (value) => (value ?? 0) / most;
  },
  log: (values) => {
    const positive = known(values).filter((value) => value > 0);
    const most = positive.reduce((a, b) => Math.max(a, b), 0);
    const least = Math.max(positive.reduce((a, b) => Math.min(a, b), Infinity), most / 1e4);
    const span = Math.log(most / least) || 1;
    return (value) => (value && value > 0 ? Math.max(0, Math.log(value / least) / span) : 0);
  },
  rank: (values) => {
    const levels = [...new Set(known(values))].sort((a, b) => a - b);
    const places = new Map(levels.map((value, place) => [value, place / Math.max(levels.length - 1, 1)]));
    return (value) => (value === null ? 0 : places.get(value) ?? 0);
  },
  none: () => () => 0,
};

// Scales of the columns, computed when they are first painted.
export class Heat {
  constructor(scale = "linear") {
    this.scale = scale;
    /** @type {Map<string, (value: number | null) => number>} */
    this.scales = new Map();
  }

  /** @param {string} scale */
  use(scale) {
    this.scale = scale;
    this.scales.clear();
  }

  /**
   * @param {string} key
   * @param {(number | null)[]} values
   */
  of(key, values) {
    const heat = this.scales.get(key) ?? HEAT_SCALES[this.scale](values);
    this.scales.set(key, heat);
    return heat;
  }
}
