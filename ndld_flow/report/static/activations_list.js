// The captured tensors: found by words, ordered, chosen with the arrow keys.

const BY_NAME = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const notFinite = ({ range }) => range.nan + range.inf;
const orNone = (value, none) => (Number.isNaN(value) ? none : value);
const TENSOR_ORDERS = {
  execution: ["Order of execution", null],
  noise: ["Lowest signal to noise", (a, b) => orNone(metricOf(a, "snr_db"), 1e9) - orNone(metricOf(b, "snr_db"), 1e9)],
  largest: ["Largest values", (a, b) => largestOf(b.range) - largestOf(a.range)],
  broken: ["Not finite", (a, b) => notFinite(b) - notFinite(a)],
  saturated: ["Saturated", (a, b) => b.saturated / b.range.elements - a.saturated / a.range.elements],
  name: ["Name", (a, b) => BY_NAME.compare(a.name, b.name)],
};

class TensorList {
  // `pick(tensor)` hears which was chosen here.
  constructor(host, data, pick) {
    Object.assign(this, { data, pick, order: "execution", chosen: -1 });
    this.field = make("input", {
      type: "search", placeholder: "Find tensors", "aria-label": "Find tensors", spellcheck: "false", autocomplete: "off",
      title: "All words must occur in name, node, operator, type or what is wrong: relu nan",
      oninput: () => this.arrange(), onkeydown: (event) => this.keyInField(event),
    });
    const orders = Object.entries(TENSOR_ORDERS).filter(([name]) => data.two || name !== "noise");
    this.select = make("select", { "aria-label": "Order of the list", onchange: () => { this.order = this.select.value; this.arrange(); } },
      ...orders.map(([name, [label]]) => make("option", { value: name }, label)));
    this.count = make("output", { "aria-live": "polite" });
    this.box = make("div", { class: "tensor-list", role: "listbox", tabindex: 0, "aria-label": "Captured tensors", onkeydown: (event) => this.key(event), onclick: (event) => this.click(event) });
    this.rows = data.tensors.map((tensor, place) => this.row(tensor, place));
    this.haystacks = data.tensors.map((one) => [one.name, one.node, one.op, one.dtype, one.layout, one.shape, ...tensorBadges(one).map(([word]) => word)].join("\n").toLowerCase());
    host.replaceChildren(make("div", { class: "tools list-tools" }, this.field, this.select, this.count), this.box);
    this.arrange();
  }

  row(tensor, place) {
    const { two } = this.data;
    const snr = two ? make("span", { class: "snr", title: "Signal to noise against the reference" }, tensor.divergence ? decibels(metricOf(tensor, "snr_db")) : "–") : "";
    return make("div", { role: "option", id: `tensor-${place}`, "aria-selected": "false", "data-place": place },
      make("span", { class: "tensor-name mono", title: shortened(tensor.name, 400) }, make("bdi", {}, shortened(tensor.name, 60))), snr,
      make("span", { class: "tensor-kind" }, make("bdi", {}, `${tensor.op} ${tensor.shape}`), " ", ...makeBadges(tensor)),
      rangeBar(tensor));
  }

  arrange() {
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { tensors } = this.data;
    this.shown = [...tensors.keys()].filter((place) => words.every((word) => this.haystacks[place].includes(word)));
    const compare = TENSOR_ORDERS[this.order][1];
    if (compare) this.shown.sort((a, b) => compare(tensors[a], tensors[b]) || a - b);
    this.box.replaceChildren(...(this.shown.length ? this.shown.map((place) => this.rows[place]) : [make("p", { class: "grid-empty" }, "No tensor matches.")]));
    this.count.textContent = this.shown.length === tensors.length ? count(tensors.length) : `${count(this.shown.length)} of ${count(tensors.length)}`;
    this.reveal();
  }

  choose(place) {
    this.rows[this.chosen]?.setAttribute("aria-selected", "false");
    this.rows[place].setAttribute("aria-selected", "true");
    this.chosen = place;
    this.box.setAttribute("aria-activedescendant", `tensor-${place}`);
    this.reveal();
  }

  // Within the list only: the page stays where it is.
  reveal() {
    const row = this.rows[this.chosen];
    if (!row?.isConnected) return;
    const [top, bottom] = [row.offsetTop, row.offsetTop + row.offsetHeight];
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (bottom > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = bottom - this.box.clientHeight;
  }

  // The next of those shown, from the chosen one.
  step(by) {
    if (!this.shown.length) return;
    const at = this.shown.indexOf(this.chosen);
    this.pick(this.shown[at < 0 ? 0 : within(at + by, 0, this.shown.length - 1)]);
  }

  click(event) {
    const row = event.target.closest("[role=option]");
    if (row) this.pick(Number(row.dataset.place));
  }

  key(event) {
    const all = this.shown.length;
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -all, End: all }[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.step(by);
  }

  keyInField(event) {
    if (event.key === "Escape" && this.field.value) this.field.value = "";
    else if (event.key === "Escape") this.field.blur();
    else if (event.key === "ArrowDown" || event.key === "Enter") this.box.focus();
    else return;
    event.preventDefault();
    this.arrange();
    if (event.key === "Enter" && this.shown.length && !this.shown.includes(this.chosen)) this.pick(this.shown[0]);
  }
}
