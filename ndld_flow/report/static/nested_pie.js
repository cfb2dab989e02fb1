// Time as two rings: types within, the precisions of each type around them.

const PIE_TYPES = 7;
const PIE_COLORS = [0, 4, 2, 3, 6, 1, 9];
const RINGS = { type: [44, 84], precision: [86, 118] };

function ringSlice(from, to, [inner, outer]) {
  // A whole ring cannot be one arc: its ends would meet.
  const end = Math.min(to, from + 2 * Math.PI - 1e-4);
  const at = (angle, radius) => `${(Math.sin(angle) * radius).toFixed(2)} ${(-Math.cos(angle) * radius).toFixed(2)}`;
  const large = end - from > Math.PI ? 1 : 0;
  return `M${at(from, outer)}A${outer} ${outer} 0 ${large} 1 ${at(end, outer)}L${at(end, inner)}A${inner} ${inner} 0 ${large} 0 ${at(from, inner)}Z`;
}

class NestedPie {
  // `types` as LayerData.byType gives them; `pick({type, precision})` hears what was clicked.
  constructor(host, types, { label, pick = () => {} }) {
    Object.assign(this, { pick, label, now: -1 });
    this.total = types.reduce((sum, { ms }) => sum + ms, 0);
    this.groups = this.together(types);
    this.precisions = this.longestPrecisions();
    this.slices = this.layOut();
    this.svg = draw("svg", {
      viewBox: "-124 -124 248 248", role: "application", "aria-roledescription": "pie chart", tabindex: 0,
      "aria-label": `Time of ${shortened(label, 60)} by type and precision. Left and right move through the parts, Enter shows their layers.`,
    });
    this.paths = this.slices.map((slice, place) => this.path(slice, place));
    this.middle = draw("text", { class: "strong", "text-anchor": "middle", y: 5 }, milliseconds(this.total));
    this.svg.append(...this.paths, this.middle);
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("pointerleave", () => this.leave());
    host.replaceChildren(make("figure", { class: "picture pie" }, this.svg, this.legend()));
  }

  // The longest types, and one slice for the rest, so that no slice is a hair.
  together(types) {
    const shown = types.length > PIE_TYPES + 1 ? types.slice(0, PIE_TYPES) : types.slice(0, PIE_TYPES + 1);
    const groups = shown.map((group, place) => ({
      name: group.type || "(no type)", type: group.type, count: group.count, ms: group.ms, color: PIE_COLORS[place] ?? null,
      parts: [...group.precisions.values()],
    }));
    const rest = types.slice(shown.length);
    if (rest.length === 0) return groups;
    const parts = new Map();
    for (const one of rest.flatMap(({ precisions }) => [...precisions.values()])) {
      const part = parts.get(one.precision) ?? { precision: one.precision, count: 0, ms: 0 };
      parts.set(one.precision, { ...part, count: part.count + one.count, ms: part.ms + one.ms });
    }
    const sum = (key) => rest.reduce((all, one) => all + one[key], 0);
    return [...groups, { name: `${count(rest.length)} more types`, type: null, count: sum("count"), ms: sum("ms"), color: null, parts: [...parts.values()] }];
  }

  longestPrecisions() {
    const sums = new Map();
    for (const { precision, ms } of this.groups.flatMap(({ parts }) => parts)) sums.set(precision, (sums.get(precision) ?? 0) + ms);
    return [...sums].sort((a, b) => b[1] - a[1]).map(([precision]) => precision);
  }

  layOut() {
    const types = [];
    const precisions = [];
    const turn = (2 * Math.PI) / (this.total || 1);
    let angle = 0;
    for (const group of this.groups) {
      types.push({ ...group, ring: "type", from: angle, to: angle + group.ms * turn, shade: 0, words: [group.name] });
      for (const part of group.parts.sort((a, b) => b.ms - a.ms)) {
        const words = [group.name, part.precision || "(no precision)"];
        precisions.push({ ...group, ...part, ring: "precision", from: angle, to: angle + part.ms * turn, shade: this.precisions.indexOf(part.precision), words });
        angle += part.ms * turn;
      }
    }
    return [...types, ...precisions];
  }

  path(slice, place) {
    const path = draw("path", {
      class: `slice ${slice.color === null ? "rest" : `series-${slice.color}`} shade-${Math.min(slice.shade, 3)}`,
      d: ringSlice(slice.from, slice.to, RINGS[slice.ring]),
    });
    path.addEventListener("pointermove", (event) => {
      this.point(place);
      tooltip.show(event.clientX, event.clientY, this.describe(slice));
    });
    path.addEventListener("click", () => this.choose(slice));
    return path;
  }

  describe({ words, count: layers, ms }) {
    return `${words.map((word) => shortened(word, 60)).join(", ")}\n${count(layers)} layer${layers === 1 ? "" : "s"}, ${milliseconds(ms)}, ${share(ms / (this.total || 1))}`;
  }

  legend() {
    const types = this.groups.map((group) => make("li", { class: `key ${group.color === null ? "key-rest" : `key-series series-${group.color}`}` },
      make("bdi", {}, shortened(group.name, 30)), make("span", { class: "quiet" }, ` ${share(group.ms / (this.total || 1))}`)));
    const shades = this.precisions.slice(0, 4).map((precision, place) =>
      make("li", { class: `key key-shade shade-${place}` }, make("bdi", {}, shortened(precision, 30) || "(no precision)")));
    return make("div", {}, make("ul", { class: "pie-keys" }, ...types), make("p", { class: "quiet small" }, "Around: precision"), make("ul", { class: "pie-keys" }, ...shades));
  }

  point(place) {
    this.paths[this.now]?.classList.remove("now");
    this.now = place;
    this.paths[place].classList.add("now");
    const { words, ms } = this.slices[place];
    this.middle.textContent = share(ms / (this.total || 1));
    this.svg.setAttribute("aria-valuetext", words.join(", "));
  }

  leave() {
    this.paths[this.now]?.classList.remove("now");
    this.middle.textContent = milliseconds(this.total);
    tooltip.hide();
  }

  choose({ type, precision, ring }) {
    if (type === null) return;
    this.pick(ring === "type" ? { type } : { type, precision });
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const { slices } = this;
    if (by && slices.length) this.pointByKey((this.now + by + slices.length + (this.now < 0 && by < 0 ? 1 : 0)) % slices.length);
    else if ((event.key === "Enter" || event.key === " ") && this.now >= 0) this.choose(slices[this.now]);
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
  }

  pointByKey(place) {
    this.point(place);
    const box = this.paths[place].getBoundingClientRect();
    tooltip.show(box.left + box.width / 2, box.top + box.height / 2, this.describe(this.slices[place]));
  }
}
