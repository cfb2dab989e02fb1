// Mouse, wheel and touch on a graph: drag to move, hover, click a node, zoom.

class GraphMouse {
  // `view` is a GraphView: it is told what to show and which node was chosen.
  constructor(view) {
    const { canvas } = view;
    Object.assign(this, { view, canvas, dragging: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.leave());
    canvas.addEventListener("dblclick", (event) => this.clickTwice(event));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  press(event) {
    if (event.button !== 0) return;
    const start = [event.clientX, event.clientY];
    let last = start;
    let dragged = false;
    this.canvas.setPointerCapture(event.pointerId);
    this.dragging = true;
    const move = (now) => {
      dragged ||= Math.hypot(now.clientX - start[0], now.clientY - start[1]) > 4;
      if (dragged) this.view.panBy(now.clientX - last[0], now.clientY - last[1]);
      last = [now.clientX, now.clientY];
    };
    const end = (now) => {
      this.canvas.removeEventListener("pointermove", move);
      this.dragging = false;
      if (!dragged && now.type === "pointerup") this.click(now);
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", end, { once: true });
    this.canvas.addEventListener("pointercancel", end, { once: true });
  }

  click(event) {
    const node = this.view.data.nodeAt(...this.view.world(event.offsetX, event.offsetY));
    if (node < 0 && this.view.state.active < 0) return;
    this.view.activate(node, true);
  }

  clickTwice(event) {
    const node = this.view.data.nodeAt(...this.view.world(event.offsetX, event.offsetY));
    if (node < 0 || !this.view.options.open(node)) this.view.zoomBy(1.8, event.offsetX, event.offsetY);
  }

  hover(event) {
    if (this.dragging) {
      tooltip.hide();
      return;
    }
    const node = this.view.data.nodeAt(...this.view.world(event.offsetX, event.offsetY));
    this.canvas.style.cursor = node >= 0 ? "pointer" : "";
    if (node >= 0) tooltip.show(event.clientX, event.clientY, this.view.about(node));
    else tooltip.hide();
    if (node === this.view.state.hover) return;
    this.view.state.hover = node;
    this.view.repaint();
  }

  leave() {
    this.view.state.hover = -1;
    tooltip.hide();
    this.view.repaint();
  }

  wheel(event) {
    if (!this.view.options.wheelZooms && !event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    this.view.zoomBy(Math.exp(-Math.max(-240, Math.min(240, event.deltaY * lines)) / 400), event.offsetX, event.offsetY);
  }
}
