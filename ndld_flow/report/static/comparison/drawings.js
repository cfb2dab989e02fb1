// Timelines and graphs of both subjects of a comparison.

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
import { layerPlaces, named } from "./data.js";

// The passes of all reports on one scale: they zoom and move together.

class LinkedTimeline extends Timeline {
  /** @type {LinkedTimeline[] | undefined} */
  peers;

  show(from, to) {
    super.show(from, to);
    for (const peer of this.peers ?? []) if (peer !== this) Timeline.prototype.show.call(peer, from, to);
  }
}

export class Timelines {
  /**
   * `choose(row)` is called for the row of the layer that was clicked.
   * @param {HTMLElement} host
   */
  constructor(host, choose) {
    this.host = host;
    this.choose = choose;
    this.lines = new Map();
  }

  /**
   * Nothing here depends on the base. The timelines are built when they come near the screen.
   * @param {View} view
   * @param {RowPair} pair
   */
  draw(view, pair) {
    const same = this.view?.profile === view.profile;
    this.view = view;
    this.pair = pair;
    if (same) return;
    this.lines = new Map();
    if (this.picture) this.picture.again();
    else this.picture = drawAtWidth(this.host, () => this.lines.size === 0 && this.build());
  }

  build() {
    const { view } = this;
    const timed = view.profile.reports.map((report, place) => ({ report, place })).filter(({ report }) => report.timeline);
    const rooms = timed.map(() => make("div", { "data-live": "timeline" }));
    this.host.replaceChildren(...timed.flatMap(({ place }, number) => [make("h4", {}, named(view.subject(place))), rooms[number]]));
    if (timed.length === 0) this.host.replaceChildren(make("p", { class: "quiet" }, "These profiles have no timeline."));
    const spans = timed.map(({ report }) => new TimelineData(report.timeline, this.layersOf(report), view.texts));
    const total = Math.max(...spans.map((span) => span.total));
    const peers = timed.map(({ place }, number) => {
      spans[number].total = total;
      const subject = view.subject(place);
      const line = new LinkedTimeline(rooms[number], spans[number], {
        label: `${subject.letter} ${subject.label}`, series: subject.series,
        pick: (layer) => this.choose(this.pair.rows.rowOf(place, layer)),
      });
      this.lines.set(place, line);
      return line;
    });
    for (const line of peers) line.peers = peers;
  }

  layersOf({ layers }) {
    const texts = (key) => layers[key].map((place) => this.view.texts[place]);
    return { role: texts("role"), name: texts("name") };
  }

  mark(rows) {
    for (const [place, line] of this.lines) {
      const { layers } = this.view.profile.rows;
      line.mark(rows.flatMap((row) => layerPlaces(layers[place][row])));
    }
  }
}

// The graph of the base or of the candidate, its layers coloured by the change between the two.

export class ComparedGraph {
  /**
   * `choose(row)` is called for the row of the layer that was selected.
   * @param {HTMLElement} host
   */
  constructor(host, choose) {
    this.choose = choose;
    this.side = "base";
    this.shown = new Map();
    const sides = makeSwitch("Layers of", { base: "base", candidate: "candidate" }, this.side, (side) => {
      this.side = side;
      this.show();
    });
    this.about = make("span", { class: "quiet small" });
    this.rooms = make("div", { class: "graph-room" });
    host.replaceChildren(make("div", { class: "tools" }, sides, this.about), this.rooms);
  }

  /**
   * @param {View} view
   * @param {RowPair} pair
   */
  draw(view, pair) {
    if (this.view && this.view.profile !== view.profile) this.shown.clear();
    this.view = view;
    this.pair = pair;
    if (this.picture) this.picture.again();
    else this.picture = drawAtWidth(this.rooms, () => this.show());
  }

  graphOf(place) {
    const { payload, profile } = this.view;
    const before = payload.profiles.slice(0, payload.profiles.indexOf(profile)).reduce((sum, earlier) => sum + earlier.reports.length, 0);
    return payload.graphs[payload.graph_of[before + place]];
  }

  // The graph of the other one where this one has none.
  show() {
    const wanted = this.side === "base" ? [this.view.base, this.view.candidate] : [this.view.candidate, this.view.base];
    const place = wanted.find((candidate) => this.graphOf(candidate));
    if (place === undefined) {
      this.rooms.replaceChildren(make("p", { class: "quiet" }, "These profiles have no graph, or too large a one."));
      return;
    }
    this.about.replaceChildren(named(this.view.subject(place)), ", coloured by ", named(this.view.subject(this.view.candidate)), " against ", named(this.view.subject(this.view.base)));
    this.place = place;
    if (!this.shown.has(place)) this.build(place);
    this.rooms.replaceChildren(this.shown.get(place).room);
    this.shown.get(place).graph.setModes(this.modes(place));
  }

  build(place) {
    const { layers } = this.view.profile.reports[place];
    const { texts } = this.view;
    const textOf = (key, layer) => texts[layers[key][layer]];
    const subject = this.view.subject(place);
    const room = make("div");
    this.rooms.replaceChildren(room);
    const graph = new GraphView(room, this.graphOf(place), {
      label: `layers of ${subject.letter} ${shortened(subject.label, 40)}`,
      name: (layer) => textOf("name", layer),
      type: (layer) => textOf("type", layer),
      about: (layer) => this.describe(place, layer, textOf),
      modes: this.modes(place),
      pick: (layer) => this.choose(layer < 0 ? -1 : this.pair.rows.rowOf(place, layer)),
    });
    this.shown.set(place, { room, graph });
  }

  describe(place, layer, textOf) {
    const { pair } = this;
    const row = pair.rows.rowOf(place, layer);
    const change = pair.both(row)
      ? `${milliseconds(pair.from(row))} → ${milliseconds(pair.to(row))}, ${changeText(pair.ratio(row))}` : "no pair";
    return `${shortened(textOf("name", layer), 120)}\n${shortened(textOf("type", layer), 60)} ${textOf("dims", layer)} ${shortened(pair.change("precision", row), 60)}\n${change}`;
  }

  modes(place) {
    const { pair, view } = this;
    const { layers } = view.profile.reports[place];
    const length = layers.ms.length;
    const row = (layer) => pair.rows.rowOf(place, layer);
    return [
      deltaMode({ ratio: (layer) => (pair.both(row(layer)) ? pair.ratio(row(layer)) : null), format: changeText }),
      heatMode({ value: (layer) => layers.ms[layer], layers: length }),
      kindsMode({ key: "precision", title: "Precision", of: (layer) => view.texts[layers.precision[layer]], layers: length }),
      familyMode(this.graphOf(place), (layer) => view.texts[layers.type[layer]]),
    ];
  }

  mark(rows) {
    const layers = this.view?.profile.rows.layers[this.place];
    if (layers) this.shown.get(this.place)?.graph.mark(rows.flatMap((row) => layerPlaces(layers[row])));
  }
}

/**
 * Time by type: all reports if there are at most three, otherwise the two that are compared.
 * @param {HTMLElement} host
 * @param {View} view
 * @param {RowPair} pair
 */
export function drawTypes(host, view, pair, pick) {
  const places = view.profile.subjects.length <= 3 ? [...view.profile.subjects.keys()] : [view.base, view.candidate];
  const reports = places.map((place) => ({
    label: view.subject(place).label, series: view.subject(place).series,
    types: pair.types(place), wholeMs: pair.rows.sums[place],
  }));
  const title = make("h4", {}, "Time by type, ", ...places.flatMap((place, number) => [number ? ", " : "", named(view.subject(place))]));
  const inner = make("div");
  host.replaceChildren(title, inner);
  return new TypeChart(inner, reports, { pick });
}
