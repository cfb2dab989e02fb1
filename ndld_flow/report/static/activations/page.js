// The page of activations: the list, the strip and the view of one tensor follow one state, kept in the address.

/** @import { Look, State } from "./state.js" */
/** @import { Column } from "../table.js" */
/** @import { TensorMaps } from "./data.js" */
/** @import { Tensor } from "./values.js" */

import { clamp } from "../charts.js";
import { startConveniences } from "../conveniences.js";
import { afterPrinting, beforePrinting } from "../widgets.js";
import { around, make, required, shortened } from "../elements.js";
import { count, counted } from "../quantities.js";
import { readPageData } from "../unpack.js";
import { fittingLook, shownSides } from "./colours.js";
import { Controls } from "./controls.js";
import { ActivationsData } from "./data.js";
import { channelColumns, ChannelTable, mapsNote, tensorAbout, tensorHead } from "./details.js";
import { Histograms } from "./histogram.js";
import { ChannelGrid, LargeView } from "./maps.js";
import { GAIN, MODES, ORDERS, readState, writeState } from "./state.js";
import { DepthStrip, TensorList } from "./tensors.js";
import { valueText } from "./values.js";

// On paper, the statistics of the shown tensor are a plain table.

const CHANNELS_ON_PAPER = 64;

/** @param {Tensor} tensor */
function channelsOnPaper(tensor) {
  const { channels } = tensor;
  const columns = channelColumns(tensor);
  const rows = [...channels.channel.keys()].slice(0, CHANNELS_ON_PAPER);
  /**
   * @param {Column} column
   * @param {number} row
   */
  const text = (column, row) => String(column.format ? column.format(column.value(row), row) : column.value(row));
  return [
    make("h3", {}, `Channels${channels.channel.length > CHANNELS_ON_PAPER ? `, the first ${CHANNELS_ON_PAPER} of ${channels.channel.length}` : ""}`),
    make("table", { class: "dense" }, make("thead", {}, make("tr", {}, ...columns.map(({ label }) => make("th", { class: "n", scope: "col" }, label)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...columns.map((column) => make("td", { class: "n" }, text(column, row))))))),
  ];
}

/**
 * @param {HTMLElement} host
 * @param {() => Tensor} tensorNow
 */
function preparePaper(host, tensorNow) {
  beforePrinting.push(() => host.replaceChildren(...(tensorNow().channels.channel.length ? channelsOnPaper(tensorNow()) : [])));
  afterPrinting.push(() => host.replaceChildren());
}

// The state of the page, and all that follows it.

export class Inspector {
  /** @param {ActivationsData} data */
  constructor(data) {
    this.data = data;
    this.state = readState(location.hash, data);
    /** @type {TensorMaps | null} */
    this.maps = null;
    /** @type {Tensor | null} the tensor that the page shows; `state` may be ahead of it */
    this.shown = null;
    this.arranged = "";
    this.frame = 0;
    const pick = (/** @type {number} */ tensor) => this.set({ tensor }, true);
    this.list = new TensorList(required("list"), data, pick);
    this.depth = new DepthStrip(required("depth"), data, pick);
    const part = (/** @type {string} */ name) => make("div", { class: name });
    this.head = part("tensor-head");
    this.about = part("tensor-about");
    const [controls, pictures, spread, table, paper] = [part("controls only-screen"), part("maps"), part("histograms"), part("channel-table only-screen"), part("on-paper")];
    paper.hidden = true;
    this.orderTools = part("tools order-tools");
    this.gridHost = part("");
    this.largeHost = part("");
    this.note = make("p", { class: "small quiet" });
    pictures.append(this.orderTools, this.gridHost, this.largeHost, this.note);
    const aside = make("aside", { class: "beside", "aria-label": "About this tensor" }, this.about, spread);
    required("tensor").replaceChildren(this.head, controls, make("div", { class: "looking" }, pictures, aside), table, paper);
    const open = (/** @type {number} */ channel) => this.set({ channel }, true);
    this.controls = new Controls(controls, this);
    this.grid = new ChannelGrid(this.gridHost, open);
    this.large = new LargeView(this.largeHost, { leave: () => this.leave(), step: (by) => this.stepChannel(by), split: (split) => this.set({ split }), splitBy: (by) => this.set({ split: clamp(this.state.split + by, 0, 1) }) });
    this.histograms = new Histograms(spread, this.data);
    this.table = new ChannelTable(table, open);
    this.order = make("select", { "aria-label": "Order of channels", onchange: () => this.set({ order: this.order.value }) }, ...Object.entries(ORDERS).map(([value, text]) => make("option", { value }, `by ${text}`)));
    preparePaper(paper, () => this.tensor);
    addEventListener("hashchange", () => this.arrive());
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("click", (event) => this.followLink(event));
  }

  get tensor() {
    return this.data.tensors[this.state.tensor];
  }

  // Position in the maps of the channel that is open; -1 for all of them.
  get place() {
    if (!this.maps) return -1;
    return this.maps.count === 1 ? 0 : this.maps.numbers.indexOf(this.state.channel);
  }

  /**
   * The colours and the scale in use: the chosen ones, or those that fit the values.
   * @returns {Look}
   */
  get look() {
    const { state, maps } = this;
    const fits = fittingLook(state.colours, maps ? [maps.low, maps.high] : [-1, 1]);
    const scale = state.scale ?? fits.scale;
    return { ...state, shift: state.shift ?? fits.shift, scale, gain: state.gain ?? this.autoGain(scale) };
  }

  /** @param {number} scale */
  autoGain(scale) {
    if (this.state.mode !== "difference" || !this.maps) return GAIN.least;
    this.maps.most ??= this.maps.largestDifference();
    return this.maps.most > 0 ? clamp(1 / (this.maps.most * scale), GAIN.least, GAIN.most) : GAIN.least;
  }

  /**
   * Another tensor gets a fitting scale, unless the reader holds the current one.
   * @param {Partial<State>} changes
   * @param {boolean} [isPlace] the browser's Back button returns here
   */
  async set(changes, isPlace = false) {
    const before = this.state;
    const next = { ...before, ...changes };
    if (next.tensor !== before.tensor) {
      if (changes.channel === undefined) next.channel = -1;
      const samples = this.data.samplesOf(next.tensor);
      if (!samples.includes(next.sample)) next.sample = samples[0] ?? 0;
      if (!next.hold) Object.assign(next, { shift: null, scale: null, gain: null });
    }
    this.state = next;
    const hash = writeState(next, this.data);
    const moved = isPlace && (next.tensor !== before.tensor || next.channel !== before.channel);
    if (hash !== location.hash) history[moved ? "pushState" : "replaceState"](null, "", hash);
    await this.follow();
  }

  async arrive() {
    if (!location.hash.includes("tensor=")) return; // the link is to a section
    this.state = readState(location.hash, this.data);
    this.comeIntoSight();
    await this.follow();
  }

  /**
   * A link to a tensor keeps mode and colours.
   * @param {MouseEvent} event
   */
  followLink(event) {
    const link = around(event, 'a[href^="#tensor="]');
    const tensor = link ? this.data.named(new URLSearchParams(link.getAttribute("href")?.slice(1)).get("tensor")) : -1;
    if (tensor < 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    this.set({ tensor }, true);
    this.comeIntoSight();
  }

  comeIntoSight() {
    const inspect = document.getElementById("inspect") ?? document.body;
    const { top, bottom } = inspect.getBoundingClientRect();
    if (top > innerHeight / 2 || bottom < innerHeight / 3) inspect.scrollIntoView();
  }

  async follow() {
    const { tensor, sample } = this.state;
    this.list.choose(tensor);
    this.depth.choose(tensor);
    const maps = await this.data.maps(tensor, sample);
    if (tensor !== this.state.tensor || sample !== this.state.sample) return; // the state changed while the maps were unpacked
    if (this.maps !== maps || this.shown !== this.tensor) {
      this.maps = maps;
      this.shown = this.tensor;
      this.arranged = "";
      this.showTensor();
    }
    this.arrange();
    this.paint();
  }

  // Build the elements for the shown channels and sides; `paint` fills them.
  arrange() {
    const { maps, state } = this;
    const sides = maps ? shownSides(maps, state.mode) : [];
    const arranged = [sides, this.place, state.order].join();
    if (arranged === this.arranged) return;
    this.arranged = arranged;
    const isLarge = this.place >= 0;
    this.gridHost.hidden = isLarge || !maps;
    this.largeHost.hidden = !isLarge;
    this.orderTools.hidden = isLarge || !maps;
    if (maps && isLarge) this.large.show(maps, this.place, { sides, title: this.titleOfPlace(maps), alone: maps.count === 1, names: this.names() });
    else if (maps) this.grid.show(maps, this.channelOrder(maps), sides, (place) => this.describe(maps, place));
    this.table.show(this.tensor);
    this.table.follow(isLarge && maps && maps.count > 1 ? state.channel : -1);
  }

  paint() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.paintNow());
  }

  paintNow() {
    const { look, maps } = this;
    this.controls.show();
    if (maps) (this.place >= 0 ? this.large : this.grid).paint(look);
    this.histograms.show(this.tensor, look);
    this.note.textContent = mapsNote(this.data, maps, this.place, look);
  }

  /** @param {number} part */
  fit(part) {
    if (!this.maps) return;
    const { colours } = this.state;
    if (part === 1 && this.place < 0) this.set({ shift: null, scale: null });
    else this.set(fittingLook(colours, this.maps.bounds(part, this.maps.count > 1 ? this.place : -1)));
  }

  leave() {
    if (this.place < 0 || this.maps?.count === 1) return;
    this.set({ channel: -1 }, true).then(() => this.grid.room.focus({ preventScroll: true }));
  }

  /** @param {number} by */
  stepChannel(by) {
    const { maps } = this;
    if (!maps || maps.count === 1) return;
    const order = this.channelOrder(maps);
    const at = order.indexOf(this.place);
    this.set({ channel: maps.numbers[order[clamp(at + by, 0, order.length - 1)]] }, true);
  }

  /**
   * Positions in the maps in the chosen order.
   * @param {TensorMaps} maps
   */
  channelOrder(maps) {
    const { state, tensor } = this;
    const all = [...Array(maps.count).keys()];
    const key = state.order === "difference" ? "difference_rms" : state.order;
    const values = tensor.channels[/** @type {keyof Tensor["channels"]} */ (key)];
    if (state.order === "number" || !values) return all;
    const of = (/** @type {number} */ place) => values[tensor.channels.channel.indexOf(maps.numbers[place])] ?? -1;
    return all.sort((a, b) => of(b) - of(a) || a - b);
  }

  names() {
    return { reference: shortened(this.data.reference, 24), candidate: shortened(this.data.model, 24) };
  }

  /** @param {TensorMaps} maps */
  titleOfPlace(maps) {
    const { tensor } = this;
    if (maps.isStrip) return `${maps.numbers.length} channels of one value each`;
    if (maps.count === 1) return `${tensor.layout} ${tensor.shape}`;
    return `Channel ${maps.numbers[this.place]} of ${maps.about.total}`;
  }

  /**
   * @param {TensorMaps} maps
   * @param {number} place
   */
  describe(maps, place) {
    const { channels } = this.tensor;
    const row = channels.channel.indexOf(maps.numbers[place]);
    const lines = [`channel ${maps.numbers[place]}`];
    if (row >= 0) lines.push(`${valueText(channels.minimum[row] ?? NaN, 4)} to ${valueText(channels.maximum[row] ?? NaN, 4)}, RMS ${valueText(channels.rms[row] ?? NaN, 4)}`);
    if (channels.nonfinite[row]) lines.push(`${count(channels.nonfinite[row])} not finite`);
    const difference = channels.difference_rms[row] ?? NaN;
    if (Number.isFinite(difference)) lines.push(`RMS difference ${valueText(difference, 3)}`);
    return lines.join("\n");
  }

  showTensor() {
    this.head.replaceChildren(...tensorHead(this.data, this.tensor));
    this.about.replaceChildren(...tensorAbout(this.data, this.state, (sample) => this.set({ sample })));
    const { channels } = this.tensor;
    for (const option of this.order.options) option.hidden = option.value === "difference" && !channels.difference_rms.some((value) => value !== null);
    this.order.value = this.state.order;
    const shown = this.maps?.count ?? 0;
    const total = this.maps?.about.total ?? 0;
    const by = this.data.two ? ", those that differ most" : ", those with the largest RMS";
    this.orderTools.replaceChildren(make("span", { class: "quiet small" }, shown < total ? `${count(shown)} of ${counted(total, "channel")}${by}` : `${counted(total, "channel")}`), this.order);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || around(event, "input:not([type=range], [type=checkbox]), textarea, select")) return;
    const samples = this.data.samplesOf(this.state.tensor);
    const modes = Object.keys(MODES);
    /** @type {Record<string, () => void>} */
    const acts = {
      j: () => this.list.step(1), k: () => this.list.step(-1), f: () => this.fit(1), Escape: () => this.leave(),
      n: () => this.set({ sample: samples[(samples.indexOf(this.state.sample) + 1) % samples.length] ?? 0 }),
      m: () => this.data.two && this.set({ mode: modes[(modes.indexOf(this.state.mode) + 1) % modes.length] }),
    };
    if (!Object.hasOwn(acts, event.key)) return;
    acts[event.key]();
  }
}

export async function start() {
  startConveniences();
  const data = new ActivationsData(await readPageData());
  if (data.tensors.length) {
    const inspector = new Inspector(data);
    Object.assign(globalThis, { inspector }); // for the browser's console
    await inspector.follow();
    inspector.paintNow();
    if (location.hash.includes("tensor=")) inspector.comeIntoSight();
  }
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
