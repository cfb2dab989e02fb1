// The controls of the maps: mode, colours, shift and scale, and the settings of each mode.

/** @import { State } from "./state.js" */
/** @import { Inspector } from "./page.js" */

import { clamp } from "../charts.js";
import { all, make } from "../elements.js";
import { share } from "../quantities.js";
import { makeSwitch } from "../widgets.js";
import { BLENDS, COLOUR_NAMES, ODD_COLOURS, paintScale } from "./colours.js";
import { GAIN, MODES } from "./state.js";
import { valueText } from "./values.js";

/**
 * Conversions between a number and the slider's position, 0 to 1.
 * @typedef {{position: (value: number) => number, value: (place: number) => number}} Slide
 */

/** @typedef {(changes: Partial<State>) => void} Set */

const SCALE_ROOM = 4; // powers of ten on either side of what fits

// A slider and a field for one number.
class NumberControl {
  /**
   * @param {string} name
   * @param {Slide & {changed: (value: number) => void, title: string}} options
   */
  constructor(name, { position, value, changed, title }) {
    this.position = position;
    this.value = value;
    this.now = 0;
    /** @param {number} number */
    const report = (number) => Number.isFinite(number) && changed(number);
    this.slider = make("input", { type: "range", min: 0, max: 1, step: "any", "aria-label": name, title, oninput: () => report(this.value(Number(this.slider.value))) });
    this.slider.addEventListener("keydown", (event) => this.key(event, report));
    this.field = make("input", { type: "number", step: "any", "aria-label": `${name}, exactly`, onchange: () => report(this.field.value === "" ? NaN : Number(this.field.value)) });
    this.element = make("span", { class: "number-control" }, make("span", { class: "quiet", "aria-hidden": "true" }, name), this.slider, this.field);
  }

  /**
   * @param {KeyboardEvent} event
   * @param {(value: number) => void} report
   */
  key(event, report) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10 }[event.key];
    if (!by) return;
    event.preventDefault();
    // The page follows with the next frame; the next key may come earlier.
    this.now = this.value(clamp(this.position(this.now) + by * (event.shiftKey ? 0.001 : 0.01), 0, 1));
    report(this.now);
  }

  /** @param {number} value */
  show(value) {
    this.now = value;
    this.slider.value = String(clamp(this.position(value), 0, 1));
    this.slider.setAttribute("aria-valuetext", valueText(value, 4));
    if (document.activeElement !== this.field) this.field.value = value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(3) : String(Number(value.toPrecision(5)));
  }
}

/**
 * @param {() => number} low
 * @param {() => number} high
 * @returns {Slide}
 */
const logControl = (low, high) => ({
  position: (value) => (Math.log10(value) - low()) / (high() - low()),
  value: (place) => 10 ** (low() + place * (high() - low())),
});

export class Controls {
  /**
   * @param {HTMLElement} host
   * @param {Inspector} view
   */
  constructor(host, view) {
    this.view = view;
    /** @type {Set} */
    const set = (changes) => view.set(changes);
    this.shiftRoom = 1;
    this.scaleFits = 0; // power of ten
    this.shift = new NumberControl("Shift", {
      title: "Added to every value before it is scaled",
      position: (value) => 0.5 + value / this.shiftRoom / 2, value: (place) => (place - 0.5) * 2 * this.shiftRoom,
      changed: (shift) => set({ shift: clamp(shift, -1e300, 1e300), scale: view.look.scale }),
    });
    this.scale = new NumberControl("Scale", {
      title: "Colours end where (value + shift) times this is -1 or 1",
      ...logControl(() => this.scaleFits - SCALE_ROOM, () => this.scaleFits + SCALE_ROOM),
      changed: (scale) => scale > 0 && set({ scale: clamp(scale, 1e-300, 1e300), shift: view.look.shift }),
    });
    this.split = this.share("Split", "split", "The reference is on the left, the candidate on the right");
    this.mix = this.share("Candidate", "mix", "Opacity of the candidate over the reference");
    this.gain = new NumberControl("Gain", {
      title: "Amplification of candidate minus reference", ...logControl(() => Math.log10(GAIN.least), () => Math.log10(GAIN.most)),
      changed: (gain) => gain > 0 && set({ gain: clamp(gain, GAIN.least, GAIN.most) }),
    });
    this.modes = this.switch("Show", view.data.two ? MODES : {}, (mode) => set({ mode }));
    this.colours = this.switch("Colours", COLOUR_NAMES, (colours) => set({ colours, shift: null, scale: null }));
    this.auto = make("button", { type: "button", onclick: () => set({ gain: null }), title: "Amplify the largest difference to the strongest colour" }, "Auto");
    this.extra = make("span", { class: "mode-controls" }, this.split.element, this.mix.element, this.gain.element, this.auto);
    this.hold = make("input", { type: "checkbox", onchange: () => set({ hold: this.hold.checked, shift: view.look.shift, scale: view.look.scale }) });
    this.paper = make("span", { class: "on-paper", hidden: true });
    this.bar = make("canvas", { class: "colour-bar", "aria-hidden": "true" });
    this.ends = [0, 1, 2].map(() => make("span", {}));
    const first = make("div", { class: "tools" }, ...(view.data.two ? [this.modes.element] : []), this.extra, this.colours.element);
    host.replaceChildren(first, this.second(set), this.legend());
  }

  /**
   * @param {string} name
   * @param {"split" | "mix"} key
   * @param {string} title
   */
  share(name, key, title) {
    return new NumberControl(name, { title, position: (value) => value, value: (place) => place, changed: (value) => this.view.set({ [key]: clamp(value, 0, 1) }) });
  }

  /** @param {Set} set */
  second(set) {
    /** @type {(text: string, title: string, onclick: () => void) => HTMLElement} */
    const button = (text, title, onclick) => make("button", { type: "button", title, onclick }, text);
    return make("div", { class: "tools" }, this.shift.element, this.scale.element,
      make("span", { class: "buttons" },
        button("Fit", "Colours span all values that are shown (f)", () => this.view.fit(1)),
        button("Fit 99 %", "Colours span the middle 99 % of the values that are shown", () => this.view.fit(0.99)),
        button("Reset", "No shift, scale 1", () => set({ shift: 0, scale: 1 }))),
      make("label", { class: "hold", title: "If off, shift and scale are fitted to each tensor when it is opened" }, this.hold, "Keep for all tensors"));
  }

  /**
   * Like `makeSwitch`, for a choice that other parts of the page change, too.
   * @param {string} label
   * @param {Record<string, string>} choices
   * @param {(choice: string) => void} changed
   */
  switch(label, choices, changed) {
    const element = makeSwitch(label, choices, "", changed);
    const buttons = all("button", element);
    /** @param {string} value */
    const show = (value) => Object.keys(choices).forEach((key, place) => buttons[place].setAttribute("aria-pressed", String(key === value)));
    return { element, show };
  }

  legend() {
    /** @type {(colour: keyof typeof ODD_COLOURS, word: string) => HTMLElement} */
    const swatch = (colour, word) => make("span", { class: "swatch" }, make("i", { style: `background:rgb(${ODD_COLOURS[colour].join(" ")})` }), word);
    return make("div", { class: "colour-legend" }, make("div", { class: "colour-scale" }, this.bar, make("div", { class: "ends" }, ...this.ends)),
      swatch("nan", "NaN"), swatch("plus", "+∞"), swatch("minus", "−∞"), this.paper);
  }

  show() {
    const { state, look, maps } = this.view;
    this.modes.show(state.mode);
    this.colours.show(state.colours);
    const both = maps?.reference && maps?.candidate;
    for (const [part, mode] of /** @type {[HTMLElement, string][]} */ ([[this.split.element, "split"], [this.mix.element, "mix"], [this.gain.element, "difference"], [this.auto, "difference"]])) {
      part.hidden = !both || state.mode !== mode;
    }
    this.extra.hidden = !both || !BLENDS[state.mode];
    this.auto.setAttribute("aria-pressed", String(state.gain === null));
    this.hold.checked = state.hold;
    const most = Math.max(Math.abs(maps?.low ?? 0), Math.abs(maps?.high ?? 0)) || 1;
    this.shiftRoom = most;
    this.scaleFits = -Math.log10(most);
    this.shift.show(look.shift);
    this.scale.show(look.scale);
    this.split.show(state.split);
    this.mix.show(state.mix);
    this.gain.show(look.gain);
    this.showLegend();
  }

  showLegend() {
    const { look } = this.view;
    paintScale(this.bar, look.colours);
    /** @type {Record<string, string>} */
    const more = { split: `, reference left of ${share(look.split)}`, mix: `, ${share(look.mix)} candidate`, difference: `, amplified ${valueText(look.gain, 3)} times` };
    this.paper.textContent = this.view.data.two ? `${MODES[look.mode]}${more[look.mode] ?? ""}` : "";
    const factor = look.mode === "difference" ? look.scale * look.gain : look.scale;
    const shift = look.mode === "difference" ? 0 : look.shift;
    [-1, 0, 1].forEach((end, place) => { this.ends[place].textContent = valueText(end / factor - shift, 3); });
    this.bar.setAttribute("title", look.mode === "difference" ? "Candidate minus reference" : "Values");
  }
}
