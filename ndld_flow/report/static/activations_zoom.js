// One channel or matrix in large: one picture, or both models' beside each other, moved together and read element by element.

const PLANE = { most: 560, least: 64, zoomMost: 96 };

class LargeView {
  // `hear`: {leave(), step(by), split(fraction), splitBy(fraction)}
  constructor(host, hear) {
    this.hear = hear;
    this.view = { x: 0, y: 0, across: 1, down: 1, width: 1, height: 1, cursor: null };
    this.title = make("h4", {});
    this.readout = make("output", { class: "readout mono", "aria-live": "polite" });
    this.divider = make("div", { class: "divider", role: "slider", tabindex: 0, "aria-label": "Split between reference and candidate", "aria-valuemin": 0, "aria-valuemax": 100 });
    this.stage = make("div", { class: "planes" });
    const button = (text, label, onclick) => make("button", { type: "button", "aria-label": label, title: label, onclick }, text);
    this.back = make("span", { class: "buttons" }, button("‹ All channels", "All channels (Esc)", () => hear.leave()),
      button("↑", "Previous channel (PageUp)", () => hear.step(-1)), button("↓", "Next channel (PageDown)", () => hear.step(1)));
    const zooms = make("span", { class: "buttons" }, button("−", "Smaller (-)", () => this.zoom(0.5)), button("+", "Larger (+)", () => this.zoom(2)), button("Whole", "All of it (0)", () => this.whole()));
    this.element = make("div", { class: "large-view" }, make("div", { class: "tools" }, this.back, this.title, zooms), this.stage, this.readout);
    host.replaceChildren(this.element);
    this.listenDivider();
    new ResizeObserver(() => this.maps && this.layOut()).observe(this.stage);
  }

  show(maps, channel, { sides, title, alone, spotted }) {
    const same = this.maps === maps;
    Object.assign(this, { maps, channel, names: spotted });
    this.title.textContent = title;
    this.back.hidden = alone;
    if (!same) this.view.cursor = null;
    if (!same || this.sides?.join() !== sides.join()) {
      this.sides = sides;
      this.planes = sides.map((side) => new Plane(side, this.view, {
        point: (x, y) => this.point(x, y), pan: (x, y) => this.pan(x, y), zoom: (...by) => this.zoom(...by), key: (event) => this.key(event),
      }));
      this.stage.replaceChildren(...this.planes.map(({ canvas, side }) => make("figure", {}, canvas, sides.length > 1 ? make("figcaption", {}, spotted[side]) : "")), this.divider);
      this.layWidth = 0;
      this.layOut();
    }
  }

  paint(look) {
    this.look = look;
    for (const plane of this.planes) {
      plane.paint(this.maps, this.channel, look);
      plane.canvas.setAttribute("aria-label", `${this.title.textContent}, ${MODES[look.mode]}. Arrow keys read elements, + and - zoom.`);
    }
    this.placeDivider();
    this.tell();
  }

  // As large as there is room; what is thinner than a finger is stretched.
  layOut() {
    const { maps, view, stage } = this;
    const room = Math.floor((stage.clientWidth - 10 * (this.planes.length - 1)) / this.planes.length);
    if (room < 1 || room === this.layWidth) return;
    this.layWidth = room;
    const zoom = Math.min(room / maps.width, PLANE.most / maps.height);
    view.fit = { across: Math.max(zoom, Math.min(PLANE.least / maps.width, room / maps.width)), down: Math.max(zoom, PLANE.least / maps.height) };
    Object.assign(view, { width: Math.round(view.fit.across * maps.width), height: Math.round(view.fit.down * maps.height) });
    this.whole();
  }

  whole() {
    Object.assign(this.view, { x: 0, y: 0, ...this.view.fit });
    this.redraw();
  }

  redraw() {
    if (!this.look) return;
    for (const plane of this.planes) if (plane.maps) plane.draw();
    this.placeDivider();
  }

  zoom(by, x = this.view.width / 2, y = this.view.height / 2) {
    const { view, maps } = this;
    const most = Math.max(1, PLANE.zoomMost / view.fit.across);
    const factor = within((view.across / view.fit.across) * by, 1, most) / (view.across / view.fit.across);
    view.x += x / view.across - x / (view.across * factor);
    view.y += y / view.down - y / (view.down * factor);
    view.across *= factor;
    view.down *= factor;
    this.keepInside(maps);
    this.redraw();
  }

  pan(x, y) {
    this.view.x -= x / this.view.across;
    this.view.y -= y / this.view.down;
    this.keepInside(this.maps);
    this.redraw();
  }

  keepInside(maps) {
    const { view } = this;
    view.x = within(view.x, 0, Math.max(0, maps.width - view.width / view.across));
    view.y = within(view.y, 0, Math.max(0, maps.height - view.height / view.down));
  }

  point(x, y) {
    this.view.cursor = [within(x, 0, this.maps.width - 1), within(y, 0, this.maps.height - 1)];
    this.redraw();
    this.tell();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (by) this.move(...by.map((step) => step * (event.shiftKey ? 10 : 1)));
    else if (event.key === "+" || event.key === "=") this.zoom(1.5, ...this.cursorPlace());
    else if (event.key === "-") this.zoom(1 / 1.5, ...this.cursorPlace());
    else if (event.key === "0") this.whole();
    else if (event.key === "PageUp" || event.key === "PageDown") this.hear.step(event.key === "PageUp" ? -1 : 1);
    else return;
    event.preventDefault();
  }

  // The next element, moved into sight.
  move(across, down) {
    const { view } = this;
    const [x, y] = view.cursor ?? [-across, -down];
    view.cursor = [within(x + across, 0, this.maps.width - 1), within(y + down, 0, this.maps.height - 1)];
    const [atX, atY] = view.cursor;
    view.x = within(view.x, atX + 1 - view.width / view.across, atX);
    view.y = within(view.y, atY + 1 - view.height / view.down, atY);
    this.redraw();
    this.tell();
  }

  cursorPlace() {
    const { view } = this;
    return view.cursor ? [(view.cursor[0] + 0.5 - view.x) * view.across, (view.cursor[1] + 0.5 - view.y) * view.down] : [];
  }

  tell() {
    const { maps, view, channel } = this;
    if (view.cursor === null) {
      this.readout.textContent = "Point at an element, or press an arrow key in the picture, to read it.";
      return;
    }
    const [x, y] = view.cursor;
    const place = channel * maps.size + y * maps.width + x;
    const [reference, candidate] = [maps.reference?.value(place), maps.candidate?.value(place)];
    const said = [maps.isStrip ? `channel ${maps.numbers[x]}` : elementText(maps.about, x, y)];
    if (reference !== undefined) said.push(`${this.names.reference} ${valueText(reference)}`);
    if (candidate !== undefined) said.push(`${this.names.candidate} ${valueText(candidate)}`);
    if (reference !== undefined && candidate !== undefined) said.push(`difference ${valueText(candidate - reference, 4)}`);
    this.readout.textContent = said.join("   ");
  }

  // The divider of the split mode: dragged, or moved with the arrow keys.
  listenDivider() {
    const { divider } = this;
    divider.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      divider.focus();
      divider.setPointerCapture(event.pointerId);
      const move = (now) => {
        const left = now.clientX - this.planes[0].canvas.getBoundingClientRect().left;
        this.hear.split(within((this.view.x + left / this.view.across) / this.maps.width, 0, 1));
      };
      const end = () => divider.removeEventListener("pointermove", move);
      divider.addEventListener("pointermove", move);
      divider.addEventListener("pointerup", end, { once: true });
      divider.addEventListener("pointercancel", end, { once: true });
    });
    divider.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -100, End: 100 }[event.key];
      if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.hear.splitBy(by / 100); // what was painted last may be older than the last key
    });
  }

  placeDivider() {
    const { maps, view, look, divider } = this;
    divider.hidden = look.mode !== "split" || !maps.reference || !maps.candidate;
    if (divider.hidden) return;
    const at = (Math.round(look.split * maps.width) - view.x) * view.across;
    divider.style.left = `${this.planes[0].canvas.offsetLeft + within(at, 0, view.width)}px`;
    divider.style.height = `${view.height}px`;
    divider.setAttribute("aria-valuenow", Math.round(look.split * 100));
    divider.setAttribute("aria-valuetext", `reference left of ${Math.round(look.split * 100)} %`);
  }
}

// Where an element of a map is in the tensor; of a smaller map, which elements it stands for.
function elementText({ scale: step, full }, x, y) {
  if (step === 1) return `x ${x}, y ${y}`;
  const end = (place, most) => (most > 0 ? Math.min((place + 1) * step, most) : (place + 1) * step) - 1;
  return `largest of x ${x * step} to ${end(x, full[1])}, y ${y * step} to ${end(y, full[0])}`;
}
