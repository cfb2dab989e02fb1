// Timelines and graphs of both subjects of a comparison.

/** @import { GraphMode } from "../graph/colours.js" */
/** @import { View, RowPair } from "./data.js" */

import { drawAtWidth } from "../charts.js";
import { make, shortened } from "../elements.js";
import { deltaMode, familyMode, heatMode, kindsMode } from "../graph/colours.js";
import { GraphView } from "../graph/view.js";
import { changeText, milliseconds } from "../quantities.js";
import { TimelineData } from "../timeline/data.js";
import { Timeline } from "../timeline/view.js";
import { TypeChart } from "../type_chart.js";
import { makeSwitch } from "../widgets.js";
import { named } from "./data.js";

/** @typedef {{view: View, pair: RowPair}} Compared */

// The passes of all reports on one scale: they zoom and move together.

class LinkedTimeline extends Timeline {
  /** @type {LinkedTimeline[] | undefined} undefined while the base class is built */
  peers;

  /**
   * @param {number} from
   * @param {number} to
   */
  show(from, to) {
    super.show(from, to);
    for (const peer of this.peers ?? []) if (peer !== this) Timeline.prototype.show.call(peer, from, to);
  }
}

export class Timelines {
  /**
   * @param {HTMLElement} host
   * @param {(row: number) => void} choose is called for the row of the layer that was clicked
   */
  constructor(host, choose) {
    this.host = host;
    this.choose = choose;
    /** @type {Compared | null} */
    this.shown = null;
    /** @type {Map<number, LinkedTimeline>} */
    this.lines = new Map();
    /** @type {Align} */
    this.align = "kernel";
    this.picture = drawAtWidth(host, () => this.shown && this.lines.size === 0 && this.build(this.shown.view));
  }

  /**
   * Nothing here depends on the base. The timelines are built when they come near the screen.
   * @param {View} view
   * @param {RowPair} pair
   */
  draw(view, pair) {
    const same = this.shown?.view.profile === view.profile;
    this.shown = { view, pair };
    if (same) return;
    this.lines.clear();
    this.picture.again();
  }

  /** @param {View} view */
  build(view) {
    const timed = view.profile.reports.flatMap(({ layers, timeline }, place) => (timeline ? [{ layers, timeline, place }] : []));
    const rooms = timed.map(() => make("div", { "data-live": "timeline" }));
    const pictures = timed.flatMap(({ place }, number) => [make("h3", { class: "minor" }, named(view.subject(place))), rooms[number]]);
    if (timed.length === 0) this.host.replaceChildren(make("p", { class: "quiet" }, "These profiles have no timeline."));
    const spans = timed.map(({ layers, timeline }) => new TimelineData(timeline, layers));
    const marks = alignments(spans);
    if (timed.length) this.host.replaceChildren(...(Object.keys(marks).length > 1 ? [this.alignSwitch(marks)] : []), ...pictures);
    alignAt(spans, this.align in marks ? this.align : "pass");
    const total = Math.max(...spans.map((span) => span.total));
    const peers = timed.map(({ place }, number) => {
      spans[number].total = total;
      const subject = view.subject(place);
      const line = new LinkedTimeline(rooms[number], spans[number], {
        label: `${subject.letter} ${subject.label}`, series: subject.series,
        pick: (layer) => this.choose(this.shown?.pair.rows.rowOf(place, layer) ?? -1),
      });
      this.lines.set(place, line);
      return line;
    });
    for (const line of peers) line.peers = peers;
    // What comes before the kernels may be as long as they are.
    if (this.align === "kernel") peers[0]?.show(spans[0].firstOf("kernel") ?? 0, total);
  }

  /** @param {Record<string, string>} marks */
  alignSwitch(marks) {
    const now = this.align in marks ? this.align : "pass";
    return make("div", { class: "tools" }, makeSwitch("Align at", marks, now, (mark) => {
      this.align = /** @type {Align} */ (mark);
      this.lines.clear();
      this.picture.again();
    }));
  }

  /** @param {number[]} rows */
  mark(rows) {
    if (!this.shown) return;
    const { layers } = this.shown.view.profile.rows;
    for (const [place, line] of this.lines) {
      line.mark(rows.flatMap((row) => layers[place][row]));
    }
  }
}

/** @typedef {"pass" | "enqueue" | "kernel"} Align */

/**
 * The points that all timelines of several have, by which they can be aligned.
 * @param {TimelineData[]} spans
 * @returns {Record<string, string>}
 */
function alignments(spans) {
  if (spans.length < 2) return {};
  const has = (/** @type {"enqueue" | "kernel"} */ mark) => spans.every((span) => span.firstOf(mark) !== null);
  return { pass: "pass", ...(has("enqueue") ? { enqueue: "first enqueue" } : {}), ...(has("kernel") ? { kernel: "first kernel" } : {}) };
}

/**
 * Delay timelines so that a point of all is at the same time.
 * @param {TimelineData[]} spans
 * @param {Align} mark
 */
function alignAt(spans, mark) {
  if (mark === "pass") return;
  const starts = spans.map((span) => span.firstOf(mark) ?? 0);
  const last = Math.max(...starts);
  spans.forEach((span, number) => span.delay(last - starts[number]));
}

// The graph of the base or of the candidate, its layers coloured by the change between the two.

export class ComparedGraph {
  /**
   * @param {HTMLElement} host
   * @param {(row: number) => void} choose is called for the row of the layer that was selected
   */
  constructor(host, choose) {
    this.choose = choose;
    this.side = "base";
    /** @type {Compared | null} */
    this.shown = null;
    this.place = 0;
    /** @type {Map<number, {room: HTMLElement, graph: GraphView}>} */
    this.graphs = new Map();
    const sides = makeSwitch("Layers of", { base: "base", candidate: "candidate" }, this.side, (side) => {
      this.side = side;
      this.show();
    });
    this.about = make("span", { class: "quiet small" });
    this.rooms = make("div", { class: "graph-room" });
    host.replaceChildren(make("div", { class: "tools" }, sides, this.about), this.rooms);
    this.picture = drawAtWidth(this.rooms, () => this.show());
  }

  /**
   * @param {View} view
   * @param {RowPair} pair
   */
  draw(view, pair) {
    if (this.shown && this.shown.view.profile !== view.profile) this.graphs.clear();
    this.shown = { view, pair };
    this.picture.again();
  }

  /**
   * @param {View} view
   * @param {number} place
   */
  graphOf({ payload, profile }, place) {
    const before = payload.profiles.slice(0, payload.profiles.indexOf(profile)).reduce((sum, earlier) => sum + earlier.reports.length, 0);
    return payload.graphs[payload.graph_of[before + place] ?? -1];
  }

  // The graph of the other one where this one has none.
  show() {
    if (!this.shown) return;
    const { view, pair } = this.shown;
    const wanted = this.side === "base" ? [view.base, view.candidate] : [view.candidate, view.base];
    const place = wanted.find((candidate) => this.graphOf(view, candidate));
    if (place === undefined) {
      this.rooms.replaceChildren(make("p", { class: "quiet" }, "These profiles have no graph, or too large a one."));
      return;
    }
    this.about.replaceChildren(named(view.subject(place)), ", coloured by ", named(view.subject(view.candidate)), " against ", named(view.subject(view.base)));
    this.place = place;
    const built = this.graphs.get(place) ?? this.build(view, pair, place);
    this.graphs.set(place, built);
    this.rooms.replaceChildren(built.room);
    built.graph.setModes(this.modes(view, pair, place));
  }

  /**
   * @param {View} view
   * @param {RowPair} pair
   * @param {number} place
   */
  build(view, pair, place) {
    const { layers } = view.profile.reports[place];
    const subject = view.subject(place);
    const room = make("div");
    this.rooms.replaceChildren(room);
    const graph = new GraphView(room, this.graphOf(view, place), {
      label: `layers of ${subject.letter} ${shortened(subject.label, 40)}`,
      name: (layer) => layers.name[layer],
      type: (layer) => layers.type[layer],
      about: (layer) => this.describe(place, layer),
      modes: this.modes(view, pair, place),
      pick: (layer) => this.choose(layer < 0 ? -1 : this.shown?.pair.rows.rowOf(place, layer) ?? -1),
    });
    return { room, graph };
  }

  /**
   * @param {number} place
   * @param {number} layer
   */
  describe(place, layer) {
    if (!this.shown) return "";
    const { view: { profile }, pair } = this.shown;
    const { layers } = profile.reports[place];
    const row = pair.rows.rowOf(place, layer);
    const change = pair.both(row)
      ? `${milliseconds(pair.from(row) ?? 0)} → ${milliseconds(pair.to(row) ?? 0)}, ${changeText(pair.ratio(row))}` : "no pair";
    return `${shortened(layers.name[layer], 120)}\n${shortened(layers.type[layer], 60)} ${layers.dims[layer]} ${shortened(pair.change("precision", row), 60)}\n${change}`;
  }

  /**
   * @param {View} view
   * @param {RowPair} pair
   * @param {number} place
   * @returns {GraphMode[]}
   */
  modes(view, pair, place) {
    const { layers } = view.profile.reports[place];
    const length = layers.ms.length;
    const row = (/** @type {number} */ layer) => pair.rows.rowOf(place, layer);
    return [
      deltaMode({
        ratio: (layer) => (pair.both(row(layer)) ? pair.ratio(row(layer)) : null),
        together: (all) => ratioOfSums(pair, new Set(all.map(row))),
        format: changeText,
      }),
      heatMode({ value: (layer) => layers.ms[layer] ?? 0, layers: length }),
      kindsMode({ key: "precision", title: "Precision", of: (layer) => layers.precision[layer], layers: length }),
      familyMode(this.graphOf(view, place), (layer) => layers.type[layer]),
    ];
  }

  /** @param {number[]} rows */
  mark(rows) {
    const layers = this.shown?.view.profile.rows.layers[this.place];
    if (layers) this.graphs.get(this.place)?.graph.mark(rows.flatMap((row) => layers[row]));
  }
}

/**
 * The ratio of the sums of rows; null if one of them has no pair.
 * @param {RowPair} pair
 * @param {Set<number>} rows
 */
function ratioOfSums(pair, rows) {
  let [from, to] = [0, 0];
  for (const row of rows) {
    if (!pair.both(row)) return null;
    from += pair.from(row) ?? 0;
    to += pair.to(row) ?? 0;
  }
  return to / from;
}

/**
 * Time by type: all reports if there are at most three, otherwise the two that are compared.
 * @param {HTMLElement} host
 * @param {View} view
 * @param {RowPair} pair
 * @param {(type: string) => void} pick
 */
export function drawTypes(host, view, pair, pick) {
  const places = view.profile.subjects.length <= 3 ? [...view.profile.subjects.keys()] : [view.base, view.candidate];
  const reports = places.map((place) => ({
    label: view.subject(place).label, series: view.subject(place).series,
    types: pair.types(place), wholeMs: pair.rows.sums[place],
  }));
  const title = make("h3", { class: "minor" }, "Time by type, ", ...places.flatMap((place, number) => [number ? ", " : "", named(view.subject(place))]));
  const inner = make("div");
  host.replaceChildren(title, inner);
  return new TypeChart(inner, reports, { pick });
}
