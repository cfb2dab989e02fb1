// The page of a comparison: all parts follow the choice of profile, base and candidate.

import { startConveniences } from "../conveniences.js";
import { all, around, live, make, shortened } from "../elements.js";
import { readPayload } from "../payload.js";
import { badge, Choice, chooser, pairOf, View } from "./data.js";
import { Deltas, drawCoverage, Waterfall } from "./differences.js";
import { ComparedGraph, drawTypes, Timelines } from "./drawings.js";
import { ComparedLayers } from "./layers.js";
import { drawRuns, drawSpread } from "./process_runs.js";
import { drawDecision, drawHeadline, drawMetrics } from "./verdicts.js";

/** @param {Choice} choice */
function baseControls(choice) {
  const { subjects } = choice.payload;
  const option = (subject, value) => ({ content: badge(subject), value });
  const base = chooser("bar-base", "Base", subjects.map(option), (value) => choice.set({ base: value }));
  const candidate = chooser("bar-candidate", "Candidate", subjects.map(option), (value) => choice.set({ candidate: value }));
  candidate.element.hidden = subjects.length < 3;
  live("controls").replaceChildren(base.element, candidate.element);
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
    onkeydown: (event) => {
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
  drawRuns(live("runs"), view);
  drawSpread(live("distribution"), view);
}

/** @param {Choice} choice */
function followProfile(choice) {
  const parts = [];
  const layers = live("layers") && new ComparedLayers(live("layers"), (rows) => parts.forEach((part) => part.mark(rows)));
  const goToLayers = () => document.getElementById("layers").scrollIntoView();
  const deltas = layers && new Deltas(live("deltas"), (key, text) => {
    layers.pick(key, text);
    goToLayers();
  });
  const pickMethod = (method) => {
    layers.showMethod(method);
    goToLayers();
  };
  const choose = (row) => layers.table.choose(row < 0 ? [] : [row]);
  if (live("timelines")) parts.push(new Timelines(live("timelines"), choose));
  if (live("graph")) parts.push(new ComparedGraph(live("graph"), choose));
  const waterfall = layers && new Waterfall(live("waterfall"));
  let shown = -1;
  choice.follow(() => {
    const view = new View(choice);
    drawMetrics(live("metrics"), live("metrics-about"), view);
    if (shown !== choice.profile) drawMeasured(view);
    shown = choice.profile;
    if (!layers) return;
    const pair = pairOf(view);
    waterfall.draw(view, pair);
    deltas.draw(view, pair);
    drawCoverage(live("coverage"), view, pair, pickMethod);
    drawTypes(live("types"), view, pair, (type) => {
      layers.pick("type", type);
      goToLayers();
    });
    layers.draw(view, pair);
    for (const part of parts) part.draw(view, pair);
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
  const payload = await readPayload();
  const choice = new Choice(payload);
  if (payload.profiles.length) {
    baseControls(choice);
    profileTabs(choice);
    choice.follow(() => {
      drawHeadline(live("headline"), choice);
      drawDecision(live("decision"), choice);
    });
    followProfile(choice);
    listenToKeys(choice);
    choice.recall();
    // A link to a section keeps the base; an address that names a base is followed.
    addEventListener("hashchange", () => (location.hash.includes("=") ? choice.recall() : choice.remember()));
  }
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
