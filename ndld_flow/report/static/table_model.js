// Which rows of a table are shown, in which order, and which are selected. Knows nothing of the page.
//
// A column is {key, label, value(row) -> number or text}; a row is its number, 0 to length - 1.

const FILTER_WORD = /(?:([a-z_]+)([:=]))?(?:"((?:[^"]|"")*)"|(\S+))/g;

// A word of the filter that wants exactly this value in one column.
function exactWord(key, value) {
  const text = value.toLowerCase();
  return /^[^\s"]+$/.test(text) ? `${key}=${text}` : `${key}="${text.replaceAll('"', '""')}"`;
}

class TableModel {
  constructor(columns, length) {
    this.columns = columns;
    this.length = length;
    this.shown = Array.from({ length }, (_, row) => row);
    this.selected = new Set();
    this.sorting = { key: null, descending: false };
    this.words = [];
    this.keep = () => true; // a choice besides the words
    this.active = -1; // position in `shown`
    this.anchor = -1; // where a range starts
    this.haystacks = new Map();
  }

  column(key) {
    return this.columns.find((column) => column.key === key);
  }

  // Amounts start with the largest, texts with A, positions with the first; once more turns it round.
  sortBy(key) {
    const { numeric, position } = this.column(key);
    const again = this.sorting.key === key;
    this.sorting = { key, descending: again ? !this.sorting.descending : Boolean(numeric && !position) };
    this.arrange();
  }

  // All words must occur, in any case; `type:conv` looks into one column, `type=conv` wants all of it to be so.
  // Quotes hold words together: `type="a b"`; a quote within is doubled.
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
    const sign = this.sorting.descending ? -1 : 1;
    // What is not known comes after what is, whichever way.
    const values = Array.from({ length: this.length }, (_, row) => column.value(row) ?? sign * Infinity);
    const texts = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
    const compare = column.numeric
      ? (a, b) => (values[a] === values[b] ? 0 : values[a] - values[b])
      : (a, b) => texts.compare(values[a], values[b]);
    this.shown.sort((a, b) => sign * compare(a, b) || a - b);
  }

  haystack(key) {
    if (!this.haystacks.has(key)) {
      const columns = key ? [this.column(key)] : this.columns.filter((column) => !column.numeric);
      const texts = Array.from({ length: this.length }, (_, row) =>
        columns.map((column) => column.value(row)).join("\n").toLowerCase());
      this.haystacks.set(key, texts);
    }
    return this.haystacks.get(key);
  }

  matches(row) {
    return this.words.every(({ key, word, exact }) =>
      (exact ? this.haystack(key)[row] === word : this.haystack(key)[row].includes(word)));
  }

  // Positions are those in `shown`, so that a selection is what a person sees.
  selectOnly(position) {
    this.selected = new Set([this.shown[position]]);
    this.active = this.anchor = position;
  }

  toggle(position) {
    const row = this.shown[position];
    this.selected = new Set(this.selected);
    if (!this.selected.delete(row)) this.selected.add(row);
    this.active = this.anchor = position;
  }

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

  // Rows by their numbers; the first of them that is shown becomes the active one.
  selectRows(rows) {
    this.selected = new Set(rows);
    this.active = this.anchor = this.shown.findIndex((row) => this.selected.has(row));
  }

  clear() {
    this.selected = new Set();
  }

  // What leaves as CSV: the selection if there is one, else all that is shown, as ordered on screen.
  exported() {
    if (this.selected.size === 0) return this.shown;
    return this.shown.filter((row) => this.selected.has(row));
  }
}
