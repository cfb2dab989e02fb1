// Behaviour that every page has: copy buttons, ages of times, links that open their target, printing in full.

import { drawAllPictures, redrawPictures } from "./charts.js";
import { listenForFilterKey } from "./widgets.js";

export async function copy(button) {
  const text = document.getElementById(button.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

function ago(time) {
  const seconds = (Date.parse(time.dateTime) - Date.now()) / 1000;
  const [unit, size] = [["day", 86400], ["hour", 3600], ["minute", 60]].find(([, least]) => Math.abs(seconds) >= least) ?? ["second", 1];
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" }).format(Math.round(seconds / size), unit);
  time.append(` (${words})`);
}

// What else has to be done for paper, and undone.
export const beforePrinting = [];
export const afterPrinting = [];

// Paper cannot be clicked and is white: open everything, draw it in the light, then put it back.
function preparePrinting() {
  const root = document.documentElement;
  let opened = [];
  let theme;
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open], .chooser)")];
    theme = root.dataset.theme;
    for (const one of opened) one.open = true;
    for (const act of beforePrinting) act();
    root.dataset.theme = "light";
    drawAllPictures();
    redrawPictures();
  });
  addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
    for (const act of afterPrinting) act();
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
  });
}

// A name in an address, which anybody may have written: one that cannot be read is none.
function targetName() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return "";
  }
}

// A link to a step opens it.
function openTarget() {
  const name = targetName();
  const target = name && document.getElementById(name);
  const inside = target && target.querySelector(":scope > details");
  if (inside) inside.open = true;
}

export function startConveniences() {
  for (const time of document.querySelectorAll("[data-ago]")) ago(time);
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(button));
  preparePrinting();
  listenForFilterKey();
  addEventListener("hashchange", openTarget);
  openTarget();
}
