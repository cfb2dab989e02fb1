// Behaviour that every page has: copy buttons, ages of times, links that open their target, printing in full.

import { all } from "./elements.js";
import { drawAllPictures, redrawPictures } from "./charts.js";
import { Sections } from "./sections.js";
import { afterPrinting, beforePrinting, listenForFilterKey, watchScrolling } from "./widgets.js";

/** @param {HTMLElement} button its `data-copy` is the id of the element whose text is copied */
export async function copy(button) {
  const source = document.getElementById(button.dataset.copy ?? "");
  if (!source) return;
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection()?.selectAllChildren(source);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

/** @param {HTMLTimeElement} time */
function ago(time) {
  const seconds = (Date.parse(time.dateTime) - Date.now()) / 1000;
  /** @type {[Intl.RelativeTimeFormatUnit, number][]} */
  const sizes = [["day", 86400], ["hour", 3600], ["minute", 60]];
  const [unit, size] = sizes.find(([, least]) => Math.abs(seconds) >= least) ?? ["second", 1];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" }).format(Math.round(seconds / size), unit);
  time.append(` (${words})`);
}

/**
 * Before printing, open all sections and details and switch to the light theme; afterwards restore these.
 * @param {Sections} sections
 */
function preparePrinting(sections) {
  const root = document.documentElement;
  /** @type {HTMLDetailsElement[]} */
  let opened = [];
  /** @type {string | undefined} */
  let theme;
  let closeSections = () => {};
  addEventListener("beforeprint", () => {
    closeSections = sections.openAll();
    opened = /** @type {HTMLDetailsElement[]} */ (all("details:not([open], .chooser)"));
    theme = root.dataset.theme;
    for (const details of opened) details.open = true;
    for (const act of beforePrinting) act();
    root.dataset.theme = "light";
    drawAllPictures();
    redrawPictures();
  });
  addEventListener("afterprint", () => {
    closeSections();
    for (const details of opened) details.open = false;
    for (const act of afterPrinting) act();
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
  });
}

// The decoded hash of the address; empty for one that cannot be decoded.
function targetName() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

/**
 * Open the section and the step that the address names.
 * @param {Sections} sections
 */
function openTarget(sections) {
  const target = document.getElementById(targetName());
  if (!target) return;
  sections.reveal(target);
  /** @type {HTMLDetailsElement | null} */
  const inside = target.querySelector(":scope > details");
  if (inside) inside.open = true;
}

export function startConveniences() {
  for (const time of all("[data-ago]")) ago(/** @type {HTMLTimeElement} */ (time));
  for (const button of all("[data-copy]")) button.addEventListener("click", () => copy(button));
  const sections = new Sections();
  preparePrinting(sections);
  listenForFilterKey();
  for (const box of all(".scroll, pre")) watchScrolling(box);
  addEventListener("hashchange", () => openTarget(sections));
  openTarget(sections);
}
