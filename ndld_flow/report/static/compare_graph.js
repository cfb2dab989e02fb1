// The graph of the base or of the candidate, its layers coloured by what changed between the two.

class ComparedGraph {
  // `choose(row)` hears the row of the layer that was picked.
  constructor(host, choose) {
    Object.assign(this, { choose, side: "base", shown: new Map() });
    const sides = makeSwitch("Layers of", { base: "base", candidate: "candidate" }, this.side, (side) => {
      this.side = side;
      this.show();
    });
    this.about = make("span", { class: "quiet small" });
    this.rooms = make("div", { class: "graph-room" });
    host.replaceChildren(make("div", { class: "tools" }, sides, this.about), this.rooms);
  }

  draw(view, pair) {
    if (this.view && this.view.profile !== view.profile) this.shown.clear();
    Object.assign(this, { view, pair });
    if (this.picture) this.picture.again();
    else this.picture = drawAtWidth(this.rooms, () => this.show());
  }

  graphOf(place) {
    const { payload, profile } = this.view;
    const before = payload.profiles.slice(0, payload.profiles.indexOf(profile)).reduce((sum, one) => sum + one.reports.length, 0);
    return payload.graphs[payload.graph_of[before + place]];
  }

  // Of the other one where this one has none.
  show() {
    const wanted = this.side === "base" ? [this.view.base, this.view.candidate] : [this.view.candidate, this.view.base];
    const place = wanted.find((one) => this.graphOf(one));
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
    const said = (key, layer) => texts[layers[key][layer]];
    const subject = this.view.subject(place);
    const room = make("div");
    this.rooms.replaceChildren(room);
    const graph = new GraphView(room, this.graphOf(place), {
      label: `layers of ${subject.letter} ${shortened(subject.label, 40)}`,
      name: (layer) => said("name", layer),
      type: (layer) => said("type", layer),
      about: (layer) => this.tell(place, layer, said),
      modes: this.modes(place),
      pick: (layer) => this.choose(layer < 0 ? -1 : this.pair.rows.rowOf(place, layer)),
    });
    this.shown.set(place, { room, graph });
  }

  tell(place, layer, said) {
    const { pair } = this;
    const row = pair.rows.rowOf(place, layer);
    const change = pair.both(row)
      ? `${milliseconds(pair.from(row))} → ${milliseconds(pair.to(row))}, ${changeText(pair.ratio(row))}` : "no pair";
    return `${shortened(said("name", layer), 120)}\n${shortened(said("type", layer), 60)} ${said("dims", layer)} ${shortened(pair.change("precision", row), 60)}\n${change}`;
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

// Time by type of as many reports as a line of numbers can hold, in their colours.
function drawTypes(host, view, pair, pick) {
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
