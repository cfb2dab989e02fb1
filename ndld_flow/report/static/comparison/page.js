// The page of a comparison: all parts follow the choice of profile, base and candidate.

import { startConveniences } from "../conveniences.js";
import { all, around, byId, live, make, required, shortened } from "../elements.js";
import { readPageData } from "../unpack.js";
import { badge, Choice, chooser, pairOf, View } from "./data.js";
import { Deltas, drawCoverage, drawLargest, Waterfall } from "./differences.js";
import { ComparedGraph, drawTypes, Timelines } from "./drawings.js";
import { ComparedLayers } from "./layers.js";
import { drawRuns, drawSpread } from "./process_runs.js";
import { drawDecision, drawHeadline, drawMetrics, drawTitle } from "./verdicts.js";

/** @param {Choice} choice */
function baseControls(choice) {
  const { subjects } = choice.payload;
  const options = () => subjects.map((subject, value) => ({ content: badge(subject), value }));
  const base = chooser("bar-base", "Base", options(), (value) => choice.set({ base: value }));
  const candidate = chooser("bar-candidate", "Candidate", options(), (value) => choice.set({ candidate: value }));
  candidate.element.hidden = subjects.length < 3;
  required("controls").replaceChildren(base.element, candidate.element);
  const inputs = /** @type {HTMLInputElement[]} */ (all('.subjects input[name="base"]'));
  for (const input of inputs) {
    input.addEventListener("change", () => choice.set({ base: Number(input.value) }));
  }
  choice.follow(() => {
    base.show(choice.base);
    candidate.show(choice.candidate);
    for (const input of inputs) input.checked = Number(input.value) === choice.base;
  });
}

/** @param {Choice} choice */
function profileTabs(choice) {
  const { profiles } = choice.payload;
  const host = live("profiles");
  if (!host) return;
  const tabs = profiles.map((profile, place) => make("button", {
    type: "button", role: "tab", onclick: () => choice.set({ profile: place }),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by) return;
      choice.set({ profile: (place + by + profiles.length) % profiles.length });
      tabs[choice.profile].focus();
    },
  }, shortened(profile.name, 40)));
  host.replaceChildren(...tabs);
  choice.follow(() => tabs.forEach((tab, place) => {
    tab.setAttribute("aria-selected", String(place === choice.profile));
    tab.tabIndex = place === choice.profile ? 0 : -1;
  }));
}

/**
 * The parts that do not depend on the base.
 * @param {View} view
 */
function drawMeasured(view) {
  drawRuns(required("runs"), view);
  drawSpread(required("distribution"), view);
}

/**
 * The parts about layers, linked with their table.
 * @param {HTMLElement} host of the table
 * @param {View} first
 * @returns {(view: View) => void} draws all of them
 */
function layerParts(host, first) {
  /** @type {(Timelines | ComparedGraph)[]} */
  const drawings = [];
  const layers = new ComparedLayers(host, first, pairOf(first), (rows) => drawings.forEach((drawing) => drawing.mark(rows)));
  const goToLayers = () => byId("layers").scrollIntoView();
  /** @type {(key: string, text: string) => void} */
  const pick = (key, text) => {
    layers.pick(key, text);
    goToLayers();
  };
  const choose = (/** @type {number} */ row) => layers.table.choose(row < 0 ? [] : [row]);
  const waterfall = new Waterfall(required("waterfall"));
  const deltas = new Deltas(required("deltas"), pick);
  const [timelines, graph] = [live("timelines"), live("graph")];
  if (timelines) drawings.push(new Timelines(timelines, choose));
  if (graph) drawings.push(new ComparedGraph(graph, choose));
  return (view) => {
    const pair = pairOf(view);
    waterfall.draw(view, pair);
    deltas.draw(view, pair);
    drawLargest(required("largest"), view, pair, (row) => {
      choose(row);
      goToLayers();
    });
    drawCoverage(required("coverage"), view, pair, (method) => {
      layers.showMethod(method);
      goToLayers();
    });
    drawTypes(required("types"), view, pair, (type) => pick("type", type));
    layers.draw(view, pair);
    for (const drawing of drawings) drawing.draw(view, pair);
  };
}

/** @param {Choice} choice */
function followProfile(choice) {
  const host = live("layers");
  const drawLayers = host && layerParts(host, new View(choice));
  let shown = -1;
  choice.follow(() => {
    const view = new View(choice);
    drawMetrics(required("metrics"), required("metrics-about"), view);
    if (shown !== choice.profile) drawMeasured(view);
    shown = choice.profile;
    drawLayers?.(view);
  });
}

/** @param {Choice} choice */
function listenToKeys(choice) {
  document.addEventListener("keydown", (event) => {
    if (!["b", "B"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (around(event, "input:not([type=radio]), textarea, select")) return;
    choice.nextBase(event.key === "b" ? 1 : -1);
  });
}

export async function start() {
  startConveniences();
  const payload = await readPageData();
  const choice = new Choice(payload);
  if (payload.profiles.length) {
    baseControls(choice);
    profileTabs(choice);
    choice.follow(() => {
      drawTitle(required("title"), choice);
      drawHeadline(required("headline"), choice);
      drawDecision(required("decision"), choice);
    });
    followProfile(choice);
    listenToKeys(choice);
    choice.recall();
    // A link to a section keeps the base; an address that names a base is followed.
    addEventListener("hashchange", () => (location.hash.includes("=") ? choice.recall() : choice.remember()));
  }
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
