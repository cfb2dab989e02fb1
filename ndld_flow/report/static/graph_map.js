// A small picture of the whole graph with a frame around what is in sight. There only while something is out of sight.

const GRAPH_MAP_WIDTH = 180;
const GRAPH_MAP_HEIGHT = 110;

class GraphMap {
  constructor(canvas, data, palette, go) {
    Object.assign(this, { canvas, data, palette });
    this.scale = Math.min(GRAPH_MAP_WIDTH / data.width, GRAPH_MAP_HEIGHT / data.height);
    canvas.style.width = `${Math.ceil(data.width * this.scale)}px`;
    canvas.style.height = `${Math.ceil(data.height * this.scale)}px`;
    const move = (event) => event.buttons & 1 && go(event.offsetX / this.scale, event.offsetY / this.scale);
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    canvas.addEventListener("pointermove", move);
  }

  // The nodes are painted once and kept until the colours change.
  forget() {
    this.whole = null;
  }

  picture(mode) {
    const { data, palette } = this;
    const ratio = devicePixelRatio || 1;
    const whole = document.createElement("canvas");
    whole.width = Math.max(1, Math.ceil(data.width * this.scale * ratio));
    whole.height = Math.max(1, Math.ceil(data.height * this.scale * ratio));
    const context = whole.getContext("2d");
    context.scale(this.scale * ratio, this.scale * ratio);
    for (let node = 0; node < data.layers; node++) {
      context.fillStyle = mode.colour(node, palette);
      context.fillRect(data.x[node], data.y[node], data.nodeWidth, Math.max(data.nodeHeight, 1 / this.scale));
    }
    return whole;
  }

  paint(view, { width, height }, mode) {
    const [wide, high] = [width / view.scale, height / view.scale];
    const all = view.x <= 0 && view.y <= 0 && view.x + wide >= this.data.width && view.y + high >= this.data.height;
    this.canvas.hidden = all;
    if (all) return;
    this.whole ??= this.picture(mode);
    const ratio = devicePixelRatio || 1;
    this.canvas.width = this.whole.width;
    this.canvas.height = this.whole.height;
    const context = this.canvas.getContext("2d");
    context.drawImage(this.whole, 0, 0);
    const scale = this.scale * ratio;
    context.strokeStyle = this.palette.css("--accent");
    context.lineWidth = 2 * ratio;
    context.strokeRect(view.x * scale, view.y * scale, wide * scale, high * scale);
  }
}
