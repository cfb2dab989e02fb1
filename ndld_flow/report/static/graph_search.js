// The search field of a graph: what is found stays bright, Enter goes from one to the next.

class GraphSearch {
  // `view` is a GraphView: it is told what was found and where to go.
  constructor(view) {
    Object.assign(this, { view, hits: [], hit: -1 });
    this.field = make("input", {
      type: "search", placeholder: "Find in graph", "aria-label": `Find in graph of ${view.options.label}`, spellcheck: "false",
      oninput: () => this.find(this.field.value), onkeydown: (event) => this.keyInField(event),
    });
  }

  find(text) {
    const { view } = this;
    const { data, state, options } = view;
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    state.found = words.length ? new Set() : null;
    this.hits = [];
    for (let node = 0; words.length && node < data.length; node++) {
      const hay = (node < data.layers ? options.search(node) : data.terminals[node - data.layers]).toLowerCase();
      if (words.every((word) => hay.includes(word))) this.hits.push(node);
    }
    for (const hit of this.hits) state.found.add(hit);
    this.hit = -1;
    view.told.textContent = words.length ? `${count(this.hits.length)} found` : "";
    view.map.forget();
    view.repaint();
  }

  nextHit(by) {
    const { view } = this;
    if (!this.hits.length) return;
    this.hit = (this.hit + by + this.hits.length) % this.hits.length;
    if (this.hit < 0) this.hit = 0;
    view.view.scale = Math.max(view.view.scale, 0.7);
    view.moved = true;
    const node = this.hits[this.hit];
    view.centreOn(...view.data.centre(node));
    view.activate(node, false);
    view.told.textContent = `${count(this.hit + 1)} of ${count(this.hits.length)}`;
  }

  keyInField(event) {
    if (event.key === "Enter") this.nextHit(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && this.field.value) this.find((this.field.value = ""));
    else if (event.key === "Escape") this.field.blur();
    else if (event.key === "ArrowDown") this.view.canvas.focus();
    else return;
    event.preventDefault();
  }
}
