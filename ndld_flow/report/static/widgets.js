// Small parts of every page: switches, the tooltip, the key of the filters, summaries of selected rows.

/** @import { Column, TableModel } from "./table.js" */

import { all, around, make, shortened } from "./elements.js";
import { count, counted } from "./quantities.js";

/**
 * A row of buttons of which one is pressed.
 * @param {string} label
 * @param {Record<string, string>} choices texts of the buttons
 * @param {string} chosen
 * @param {(choice: string) => void} changed
 * @param {(choice: string) => string} about the tooltip of a choice
 */
export function makeSwitch(label, choices, chosen, changed, about = (_) => "") {
  const buttons = Object.entries(choices).map(([value, text]) => make("button", {
    type: "button",
    "aria-pressed": String(value === chosen),
    title: about(value),
    onclick: () => {
      for (const [place, key] of Object.keys(choices).entries()) buttons[place].setAttribute("aria-pressed", String(key === value));
      changed(value);
    },
  }, text));
  return make("span", { class: "switch", role: "group", "aria-label": label }, make("span", { class: "quiet", "aria-hidden": "true" }, label), ...buttons);
}

// Functions that are called before and after printing.
export const beforePrinting = /** @type {(() => void)[]} */ ([]);
export const afterPrinting = /** @type {(() => void)[]} */ ([]);

/**
 * Tabs, of which one is shown on screen and all are on paper. A search in the page, or a link to it, opens a tab.
 * @param {HTMLElement} bar is removed if there is only one tab
 * @param {HTMLElement[]} panes
 * @param {string[]} titles
 * @param {(place: number) => void} shown called each time that a tab is about to be seen
 * @returns {(place: number) => void} opens a tab
 */
export function makeTabs(bar, panes, titles, shown = () => {}) {
  let current = 0;
  const tabs = panes.map((pane, place) => make("button", {
    type: "button",
    role: "tab",
    id: `tab-${pane.id}`,
    "aria-controls": pane.id,
    onclick: () => open(place),
    onkeydown: (/** @type {KeyboardEvent} */ { key }) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (!by) return;
      open((place + by + tabs.length) % tabs.length);
      tabs[current].focus();
    },
  }, titles[place]));
  /** @param {number} place */
  function open(place) {
    current = place;
    tabs.forEach((tab, other) => {
      tab.setAttribute("aria-selected", String(other === place));
      tab.tabIndex = other === place ? 0 : -1;
      if (other === place) panes[other].removeAttribute("hidden");
      else panes[other].setAttribute("hidden", "until-found");
    });
    shown(place);
  }
  panes.forEach((pane, place) => {
    pane.setAttribute("role", "tabpanel");
    pane.setAttribute("aria-labelledby", tabs[place].id);
    pane.addEventListener("beforematch", () => open(place));
  });
  if (tabs.length > 1) bar.replaceChildren(...tabs);
  else bar.remove();
  open(0);
  beforePrinting.push(() => panes.forEach((pane, place) => {
    pane.removeAttribute("hidden");
    shown(place);
  }));
  afterPrinting.push(() => open(current));
  return open;
}

// The tooltip of the page, next to the pointer or to the element that has the keyboard's focus.

export const tooltip = {
  element: /** @type {HTMLElement} */ (document.querySelector(".tooltip")),

  /**
   * @param {number} x
   * @param {number} y
   * @param {string} text
   */
  show(x, y, text) {
    const { element } = this;
    element.textContent = text;
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - width - 14 : x + 14;
    const top = Math.min(Math.max(4, y - height / 2), innerHeight - height - 4);
    element.style.transform = `translate(${Math.max(4, left)}px, ${top}px)`;
  },

  hide() {
    this.element.hidden = true;
  },
};

// The search field nearest to a third of the window's height.
function nearestFilter() {
  const fields = /** @type {HTMLInputElement[]} */ (all(".tools input[type=search]")).filter((field) => field.offsetParent);
  /** @param {HTMLElement} field */
  const far = (field) => Math.abs(field.getBoundingClientRect().top - innerHeight / 3);
  return fields.sort((a, b) => far(a) - far(b))[0];
}

// `/` moves the focus to the nearest filter.
export function listenForFilterKey() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (around(event, "input, textarea, select")) return;
    const field = nearestFilter();
    if (!field) return;
    event.preventDefault();
    field.focus();
    field.select();
  });
}

// A summary of the selected rows: texts with their counts, numbers as minimum, maximum, sum and mean.
// Columns take part by `tally` (texts) or `measure` (numbers; "sum" where a sum makes sense).

const TALLIES_SHOWN = 6;

/**
 * @param {number[]} rows
 * @param {Column} column
 */
function tally(rows, column) {
  /** @type {Map<string, number>} */
  const times = new Map();
  for (const row of rows) {
    const value = String(column.value(row));
    times.set(value, (times.get(value) ?? 0) + 1);
  }
  return [...times].sort((a, b) => b[1] - a[1]);
}

/**
 * @param {number[]} rows
 * @param {Column} column
 */
function measure(rows, column) {
  const values = rows.map((row) => column.value(row)).filter((value) => value !== null && Number.isFinite(value));
  if (values.length === 0) return null;
  const total = values.reduce((a, b) => a + b, 0);
  return {
    min: values.reduce((a, b) => Math.min(a, b)),
    max: values.reduce((a, b) => Math.max(a, b)),
    total: column.measure === "sum" ? total : null,
    mean: total / values.length,
  };
}

/** @param {[string, number][]} tallies */
function tallyText(tallies) {
  const shown = tallies.slice(0, TALLIES_SHOWN).map(([value, times]) => `${shortened(value, 40) || "none"}\u00a0(${count(times)})`);
  const rest = tallies.length - TALLIES_SHOWN;
  return rest > 0 ? `${shown.join(", ")}, ${count(rest)} more` : shown.join(", ");
}

/** @param {TableModel} model */
export function selectionSummary(model) {
  const rows = [...model.selected];
  const list = make("dl", {}, make("dt", {}, "Selected"), make("dd", {}, `${count(rows.length)} of ${counted(model.length, "row")}`));
  for (const column of model.columns.filter((shown) => shown.tally)) {
    const tallies = tally(rows, column);
    if (tallies.length === 1 && tallies[0][0] === "") continue;
    list.append(make("dt", {}, column.label), make("dd", {}, make("bdi", {}, tallyText(tallies))));
  }
  /** @type {(column: Column, value: number | null) => HTMLElement} */
  const cell = (column, value) => make("td", { class: "n" }, value === null ? "–" : (column.format ?? count)(value, -1));
  const lines = model.columns.filter((column) => column.measure).flatMap((column) => {
    const summary = measure(rows, column);
    if (!summary) return [];
    const { min, max, total, mean } = summary;
    return [make("tr", {},
      make("th", { scope: "row" }, column.summaryLabel ?? column.label),
      ...[min, max, total, mean].map((value) => cell(column, value)))];
  });
  const table = make("table", { class: "dense" },
    make("thead", {}, make("tr", {}, make("td"), ...["Min", "Max", "Total", "Mean"].map((head) => make("th", { scope: "col", class: "n" }, head)))),
    make("tbody", {}, ...lines));
  return [make("div", { class: "summary" }, list, scrollBox(table))];
}

const scrollObserver = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth + 1 || target.scrollHeight > target.clientHeight + 1) target.setAttribute("tabindex", "0");
    else target.removeAttribute("tabindex");
  }
});

/**
 * A box that is smaller than its content scrolls with the arrow keys, once it has the focus.
 * @param {HTMLElement} box
 */
export function watchScrolling(box) {
  scrollObserver.observe(box);
  return box;
}

/** @param {(Node | string)[]} children */
export const scrollBox = (...children) => watchScrolling(make("div", { class: "scroll" }, ...children));
