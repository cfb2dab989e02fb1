// What changed by type of layer and by precision, to the left what became faster; in ms or in %.

const DELTAS_SHOWN = 12;

// In percent, what is new has no bar: it is more than any share.
function deltaBar(one, unit, most) {
  const relative = one.before ? one.delta / one.before : null;
  const amount = unit === "ms" ? one.delta : relative;
  const track = make("div", { class: "delta axis" });
  if (amount !== null && amount !== 0) {
    const bar = make("i", { class: amount < 0 ? "faster" : "slower" });
    bar.style.width = `${Math.min(100, (100 * Math.abs(amount)) / most).toFixed(1)}%`;
    track.append(bar);
  }
  return track;
}

function deltaText(one, unit) {
  if (unit === "ms") return signedMs(one.delta);
  if (one.before === 0) return "new";
  return one.after === 0 ? "gone" : changeText(one.after / one.before);
}

function deltaRow(one, unit, most, pick) {
  const name = make("bdi", {}, shortened(one.text, 60) || "(none)");
  return make("tr", {},
    make("th", { scope: "row", class: "clip" }, make("button", { type: "button", title: `Show only layers of ${shortened(one.text, 60)}`, onclick: () => pick(one.text) }, name)),
    make("td", { class: "n quiet" }, milliseconds(one.before)), make("td", { class: "n quiet" }, milliseconds(one.after)),
    make("td", { class: "n" }, deltaText(one, unit)), make("td", { class: "track" }, deltaBar(one, unit, most)));
}

function deltaTable(title, found, unit, view, pick) {
  const shown = found.slice(0, DELTAS_SHOWN);
  const amounts = shown.map((one) => (unit === "ms" ? one.delta : one.before ? one.delta / one.before : 0));
  const most = Math.max(...amounts.map(Math.abs), 1e-12);
  const more = found.length > shown.length ? ` (the ${shown.length} largest of ${found.length})` : "";
  return make("div", {}, make("h4", {}, `${title}${more}`),
    make("div", { class: "scroll" }, make("table", { class: "bars deltas" },
      make("thead", {}, make("tr", {}, make("th"), make("th", { class: "n", scope: "col" }, badge(view.subject(view.base))),
        make("th", { class: "n", scope: "col" }, badge(view.subject(view.candidate))), make("th", { class: "n", scope: "col" }, "Delta"), make("th"))),
      make("tbody", {}, ...shown.map((one) => deltaRow(one, unit, most, pick))))));
}

class Deltas {
  constructor(host, pick) {
    this.pick = pick;
    this.unit = "ms";
    this.tables = make("div", { class: "columns" });
    const units = makeSwitch("Deltas in", { ms: "ms", "%": "%" }, this.unit, (unit) => {
      this.unit = unit;
      this.draw(this.view, this.pair);
    });
    host.replaceChildren(units, this.tables);
  }

  draw(view, pair) {
    Object.assign(this, { view, pair });
    this.tables.replaceChildren(...[["type", "By type"], ["precision", "By precision"]].map(([key, title]) =>
      deltaTable(title, pair.deltasBy(key), this.unit, view, (text) => this.pick(key, text))));
  }
}
