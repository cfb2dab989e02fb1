// One channel, or a matrix, large: as a picture that is moved and zoomed, with the numbers where there is room.

const NUMBERS_FROM = 46; // pixels of an element

class Plane {
  // `view`: {x, y, zoom} shared by both sides, in elements of the map; `hear` is told of what a person does here.
  constructor(side, view, hear) {
    Object.assign(this, { side, view, hear });
    this.canvas = make("canvas", { class: "plane", role: "img", tabindex: 0 });
    this.source = document.createElement("canvas");
    this.listen();
  }

  listen() {
    const { canvas, hear } = this;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => event.buttons === 0 && hear.point(...this.element(event)));
    canvas.addEventListener("dblclick", (event) => hear.zoom(2, event.offsetX, event.offsetY));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      hear.zoom(Math.exp(-within(event.deltaY * (event.deltaMode === 1 ? 16 : 1), -240, 240) / 400), event.offsetX, event.offsetY);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => hear.key(event));
  }

  press(event) {
    if (event.button !== 0) return;
    let last = [event.clientX, event.clientY];
    this.canvas.setPointerCapture(event.pointerId);
    this.hear.point(...this.element(event));
    const move = (now) => {
      this.hear.pan(now.clientX - last[0], now.clientY - last[1]);
      last = [now.clientX, now.clientY];
    };
    const end = () => this.canvas.removeEventListener("pointermove", move);
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", end, { once: true });
    this.canvas.addEventListener("pointercancel", end, { once: true });
  }

  // Which element of the map lies under the pointer.
  element(event) {
    return [this.view.x + event.offsetX / this.view.across, this.view.y + event.offsetY / this.view.down].map(Math.floor);
  }

  paint(maps, channel, look) {
    paintCanvas(this.source, maps, channel, look, this.side);
    Object.assign(this, { maps, channel, look });
    this.draw();
  }

  draw() {
    const { canvas, source, view } = this;
    const dots = devicePixelRatio;
    canvas.width = Math.round(view.width * dots);
    canvas.height = Math.round(view.height * dots);
    canvas.style.width = `${view.width}px`;
    canvas.style.height = `${view.height}px`;
    const context = canvas.getContext("2d");
    context.scale(dots, dots);
    context.imageSmoothingEnabled = Math.min(view.across, view.down) * dots < 1;
    context.drawImage(source, -view.x * view.across, -view.y * view.down, source.width * view.across, source.height * view.down);
    if (view.across >= NUMBERS_FROM && view.down >= 16 && this.look.mode !== "mix") this.drawNumbers(context);
    this.drawCursor(context);
  }

  drawNumbers(context) {
    const { view, maps, look } = this;
    context.font = "11px ui-monospace, monospace";
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineWidth = 3;
    context.strokeStyle = "#0009";
    context.fillStyle = "#fff";
    for (let y = Math.max(0, Math.floor(view.y)); y < Math.min(maps.height, view.y + view.height / view.down); y++) {
      for (let x = Math.max(0, Math.floor(view.x)); x < Math.min(maps.width, view.x + view.width / view.across); x++) {
        const text = valueText(shownValue(maps, this.channel, x, y, look, this.side), 3);
        const at = [(x + 0.5 - view.x) * view.across, (y + 0.5 - view.y) * view.down];
        context.strokeText(text, ...at);
        context.fillText(text, ...at);
      }
    }
  }

  drawCursor(context) {
    const { view, maps } = this;
    if (view.cursor === null) return;
    const [x, y] = view.cursor;
    if (x >= maps.width || y >= maps.height) return;
    const box = [(x - view.x) * view.across, (y - view.y) * view.down, view.across, view.down];
    for (const [colour, room] of [["#000", 1.5], ["#fff", 0.5]]) {
      context.strokeStyle = colour;
      context.lineWidth = 1;
      context.strokeRect(box[0] - room, box[1] - room, box[2] + 2 * room, box[3] + 2 * room);
    }
  }
}

// What a mode shows of an element.
function shownValue(maps, channel, x, y, look, side) {
  const place = channel * maps.size + y * maps.width + x;
  if (look.mode === "difference") return maps.candidate.value(place) - maps.reference.value(place);
  if (look.mode === "split") return (x < Math.round(look.split * maps.width) ? maps.reference : maps.candidate).value(place);
  return maps[side].value(place);
}
