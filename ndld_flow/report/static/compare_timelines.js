// One pass of each report, one above the other on one scale: what is shown of one is shown of all.

class LinkedTimeline extends Timeline {
  show(from, to) {
    super.show(from, to);
    for (const peer of this.peers ?? []) if (peer !== this) Timeline.prototype.show.call(peer, from, to);
  }
}

class Timelines {
  // `choose(row)` hears the row of the layer that was clicked.
  constructor(host, choose) {
    Object.assign(this, { host, choose, lines: new Map() });
  }

  // Nothing here depends on the base. All is made when somebody comes near, of the profile that is shown by then.
  draw(view, pair) {
    const same = this.view?.profile === view.profile;
    Object.assign(this, { view, pair });
    if (same) return;
    this.lines = new Map();
    if (this.picture) this.picture.again();
    else this.picture = drawAtWidth(this.host, () => this.lines.size === 0 && this.build());
  }

  build() {
    const { view } = this;
    const told = view.profile.reports.map((report, place) => ({ report, place })).filter(({ report }) => report.timeline);
    const rooms = told.map(() => make("div", { "data-live": "timeline" }));
    this.host.replaceChildren(...told.flatMap(({ place }, number) => [make("h4", {}, named(view.subject(place))), rooms[number]]));
    if (told.length === 0) this.host.replaceChildren(make("p", { class: "quiet" }, "These profiles have no timeline."));
    const spans = told.map(({ report }) => new TimelineData(report.timeline, this.layersOf(report), view.texts));
    const total = Math.max(...spans.map((one) => one.total));
    const peers = told.map(({ place }, number) => {
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
