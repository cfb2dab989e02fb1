// The keyboard on a graph: from node to node along the edges, zoom, move, choose.

class GraphKeys {
  // `view` is a GraphView; its `state.active` is the node where the keyboard is.
  constructor(view) {
    this.view = view;
    view.canvas.addEventListener("keydown", (event) => this.key(event));
    view.canvas.addEventListener("blur", () => tooltip.hide());
  }

  key(event) {
    const { view } = this;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const arrow = arrows[event.key];
    const acts = {
      "+": () => view.zoomBy(1.4), "=": () => view.zoomBy(1.4), "-": () => view.zoomBy(1 / 1.4), 0: () => view.fit(), f: () => view.fit(),
      Home: () => view.activate(0, false), End: () => view.activate(view.data.layers - 1, false),
      Enter: () => view.options.open(view.state.active) || view.activate(view.state.active, true), " ": () => view.activate(view.state.active, true),
      Escape: () => view.activate(-1, true),
    };
    if (arrow && event.shiftKey) view.panBy(-60 * arrow[0], -60 * arrow[1]);
    else if (arrow) this.step(...arrow);
    else if (acts[event.key]) acts[event.key]();
    else return;
    event.preventDefault();
  }

  // Up and down along the edges, else to what is nearest on that side.
  step(dx, dy) {
    const { view } = this;
    const { data, state } = view;
    if (state.active < 0) {
      view.activate(state.marked.size ? Math.min(...state.marked) : 0, false);
      return;
    }
    const edges = dy < 0 ? data.entering[state.active] : dy > 0 ? data.leaving[state.active] : [];
    const next = edges.map((edge) => (dy < 0 ? data.source[edge] : data.target[edge])).find((node) => node !== state.active);
    view.activate(next ?? data.nearest(state.active, dx, dy), false);
  }
}
