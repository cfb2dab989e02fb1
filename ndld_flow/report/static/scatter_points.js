// Points of a chart for mouse and keyboard: the nearest one has a tooltip, Enter and clicks select it.

import { draw } from "./elements.js";
import { tooltip } from "./widgets.js";

export class Spots {
  /**
   * @param {SVGSVGElement} svg
   * @param {{x: number, y: number, row: number, text: string}[]} spots in pixels, in the order of the arrow keys
   * @param {{start?: number, pick: (row: number, more: boolean) => void}} options `pick` is called for a click or Enter
   */
  constructor(svg, spots, { start = 0, pick }) {
    this.svg = svg;
    this.spots = spots;
    this.pick = pick;
    this.start = start;
    this.now = -1;
    this.ring = draw("circle", { class: "spot-ring", r: 8, visibility: "hidden" });
    svg.append(this.ring);
    svg.addEventListener("pointermove", (event) => this.hover(event));
    svg.addEventListener("pointerleave", () => this.leave());
    svg.addEventListener("blur", () => this.leave());
    svg.addEventListener("click", (event) => this.now >= 0 && this.choose(event));
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  /** @param {MouseEvent | KeyboardEvent} event */
  choose(event) {
    this.pick(this.spots[this.now].row, event.shiftKey || event.ctrlKey || event.metaKey);
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const box = this.svg.getBoundingClientRect();
    let best = -1;
    let far = 22;
    this.spots.forEach((spot, place) => {
      const away = Math.hypot(spot.x - (event.clientX - box.left), spot.y - (event.clientY - box.top));
      if (away < far) [best, far] = [place, away];
    });
    if (best >= 0) this.point(best);
    else this.leave();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (by && this.spots.length) this.point(this.now < 0 ? this.start : Math.min(this.spots.length - 1, Math.max(0, this.now + by)));
    else if ((event.key === "Enter" || event.key === " ") && this.now >= 0) this.choose(event);
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
  }

  /** @param {number} place */
  point(place) {
    this.now = place;
    const { x, y, text } = this.spots[place];
    const box = this.svg.getBoundingClientRect();
    for (const [key, value] of [["cx", x], ["cy", y], ["visibility", "visible"]]) this.ring.setAttribute(String(key), String(value));
    tooltip.show(box.left + x, box.top + y, text);
  }

  leave() {
    this.now = -1;
    this.ring.setAttribute("visibility", "hidden");
    tooltip.hide();
  }
}
