// Mouse, wheel and touch on a timeline: drag to measure or to move, hover, click a span, zoom.

class TimelineMouse {
  // `timeline` is a Timeline: it is told what to show, choose, measure and say.
  constructor(timeline) {
    Object.assign(this, { timeline, canvas: timeline.canvas, data: timeline.data, sight: timeline.sight, drag: null });
    this.listen();
  }

  listen() {
    const { canvas } = this;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [x, y] = place(event);
      this.drag = { x, y, last: x, moving: event.shiftKey || event.pointerType === "touch", moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = place(event);
      if (this.drag) this.dragTo(x, y);
      else this.hover(event, x, y);
    });
    canvas.addEventListener("pointerup", () => {
      const { drag } = this;
      this.drag = null;
      if (drag && !drag.moved) this.click(drag.x, drag.y);
    });
    canvas.addEventListener("pointerleave", () => tooltip.hide());
    canvas.addEventListener("dblclick", (event) => {
      const span = this.sight.spanAt(...place(event));
      if (span < 0) return;
      const aside = this.data.duration[span] * 0.2;
      this.timeline.glide(this.data.start[span] - aside, this.data.end(span) + aside);
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event, place(event)[0]), { passive: false });
  }

  dragTo(x, y) {
    const { drag, sight, timeline } = this;
    if (!drag.moved && Math.abs(x - drag.x) < 4) return;
    tooltip.hide();
    if (!drag.moved && !drag.moving) timeline.ruler = [sight.snapped(drag.x, drag.y), 0];
    drag.moved = true;
    if (drag.moving) timeline.move((drag.last - x) / (sight.width - sight.left));
    else timeline.ruler[1] = sight.snapped(x, y);
    drag.last = x;
    timeline.say();
    timeline.repaint();
  }

  hover(event, x, y) {
    const span = this.sight.spanAt(x, y);
    this.canvas.style.cursor = span >= 0 && this.data.layer[span] >= 0 ? "pointer" : "crosshair";
    if (span < 0) tooltip.hide();
    else tooltip.show(event.clientX, event.clientY, this.timeline.describe(span));
  }

  click(x, y) {
    const span = this.sight.spanAt(x, y);
    if (span >= 0) this.timeline.choose(span);
  }

  // A page that scrolls must not stop at a timeline: the wheel zooms with Ctrl, or once the timeline was chosen.
  wheel(event, x) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    const meant = event.ctrlKey || event.metaKey || document.activeElement === this.canvas;
    if (!meant) return;
    event.preventDefault();
    const by = (sideways && event.deltaX) || event.deltaY;
    if (sideways) this.timeline.move(by / 1000);
    else this.timeline.zoom(Math.exp(Math.max(-120, Math.min(120, by)) / 300), this.sight.time(Math.max(x, this.sight.left)));
  }
}
