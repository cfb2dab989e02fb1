// All channels of a tensor side by side. Each is a canvas as large as its map; the page makes it larger.

const CELL = { narrowest: 70, widest: 240, high: 640, below: 22 }; // pixels

class ChannelGrid {
  // `pick(channel)` hears which was opened; channels are the tensor's numbers.
  constructor(host, pick) {
    this.pick = pick;
    this.room = make("div", { class: "channel-grid", role: "listbox", "aria-label": "Channels", tabindex: 0, onkeydown: (event) => this.key(event), onclick: (event) => this.click(event) });
    host.replaceChildren(this.room);
    new ResizeObserver(() => this.layOut()).observe(this.room);
    this.active = 0; // position on screen
  }

  // `order`: positions in the maps as they are to stand.
  show(maps, order, sides, describe) {
    if (this.maps?.about !== maps.about) this.active = 0;
    Object.assign(this, { maps, order, sides, describe });
    this.cells = order.map((place, position) => this.cell(place, position));
    this.room.replaceChildren(...this.cells.map(({ element }) => element));
    this.active = Math.min(this.active, order.length - 1);
    this.mark();
    this.layOut();
  }

  // As large as lets all channels be seen at once, within reason.
  layOut() {
    const wide = this.room.clientWidth;
    if (!wide || !this.maps) return;
    const aspect = (this.maps.width / this.maps.height) * this.sides.length;
    const heightOf = (columns) => Math.ceil(this.order.length / columns) * (Math.min(wide / columns, CELL.widest * this.sides.length) / aspect + CELL.below);
    const least = within(CELL.narrowest * Math.sqrt(aspect), CELL.narrowest, wide);
    const most = Math.max(1, Math.floor(wide / least));
    let columns = Math.max(1, Math.ceil(wide / (CELL.widest * this.sides.length)));
    while (columns < most && heightOf(columns) > CELL.high) columns += 1;
    this.room.style.setProperty("--columns", columns);
  }

  cell(place, position) {
    const canvases = this.sides.map((side) => ({ side, canvas: make("canvas", { "aria-hidden": "true", style: `aspect-ratio:${this.maps.width}/${this.maps.height}` }) }));
    const number = this.maps.numbers[place];
    const cut = make("i", { class: "cut", hidden: true });
    const element = make("div", { role: "option", id: `channel-${position}`, "data-position": position, "aria-label": `channel ${number}`, "aria-selected": "false" },
      make("span", { class: "pictures" }, ...canvases.map(({ canvas }) => canvas), cut), make("span", { class: "channel-name" }, String(number)));
    element.addEventListener("pointerenter", (event) => tooltip.show(event.clientX, event.clientY, this.describe(place)));
    element.addEventListener("pointerleave", () => tooltip.hide());
    return { element, canvases, place, cut };
  }

  paint(look) {
    const { maps } = this;
    for (const { canvases, place, cut } of this.cells) {
      for (const { canvas, side } of canvases) {
        paintCanvas(canvas, maps, place, look, side);
        canvas.classList.toggle("smooth", maps.width > 200);
      }
      cut.hidden = look.mode !== "split" || !maps.reference || !maps.candidate;
      cut.style.left = `${(Math.round(look.split * maps.width) / maps.width) * 100}%`;
    }
  }

  click(event) {
    const cell = event.target.closest("[role=option]");
    if (!cell) return;
    tooltip.hide();
    this.active = Number(cell.dataset.position);
    this.pick(this.maps.numbers[this.order[this.active]]);
  }

  key(event) {
    const last = this.order.length - 1;
    const across = this.cells.filter(({ element }) => element.offsetTop === this.cells[0].element.offsetTop).length;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across, Home: -last, End: last }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (by) this.active = within(this.active + by, 0, last);
    else if (event.key === "Enter" || event.key === " ") this.pick(this.maps.numbers[this.order[this.active]]);
    else return;
    event.preventDefault();
    this.mark();
    this.cells[this.active]?.element.scrollIntoView({ block: "nearest" });
  }

  mark() {
    this.cells.forEach(({ element }, position) => element.setAttribute("aria-selected", String(position === this.active)));
    this.room.setAttribute("aria-activedescendant", `channel-${this.active}`);
  }
}
