// Every pass in order: drift, warm-up that leaked, outliers. The median pass is ringed.

const PASSES_HEIGHT = 230;

class PassesPlot {
  constructor(host, profiles) {
    this.profiles = profiles.map((profile, place) => ({
      ...profile,
      series: profile.series ?? place % SERIES,
      samples: profile.runs.flat(),
      shown: true,
    }));
    this.legend = make("div", { class: "legend" });
    this.host = make("div");
    host.replaceChildren(make("h4", {}, "Passes in order"), this.legend, make("figure", { class: "picture" }, this.host));
    this.buildLegend();
    drawAtWidth(this.host, (width) => this.draw(width));
  }

  buildLegend() {
    for (const profile of this.profiles) {
      const button = make("button", { type: "button", class: `series series-${profile.series}`, "aria-pressed": "true" },
        make("span", {}, shortened(profile.label, 40)));
      button.addEventListener("click", () => {
        profile.shown = !profile.shown;
        button.setAttribute("aria-pressed", String(profile.shown));
        this.draw(this.width);
      });
      this.legend.append(button);
    }
  }

  draw(width) {
    this.width = width;
    const shown = this.profiles.filter((profile) => profile.shown);
    const range = commonRange(shown.length ? shown : this.profiles);
    const { unit, factor } = axisUnit(range.high);
    const marks = ticks(range.low, range.high, 5);
    const step = marks.length > 1 ? marks[1] - marks[0] : 1;
    const left = 64;
    const most = Math.max(...this.profiles.map((profile) => profile.samples.length));
    this.x = scale(0, Math.max(most - 1, 1), left + 4, width - 6);
    this.y = scale(range.low, range.high, PASSES_HEIGHT - 28, 8);
    this.range = range;
    this.svg = draw("svg", {
      height: PASSES_HEIGHT,
      viewBox: `0 0 ${width} ${PASSES_HEIGHT}`,
      role: "img",
      tabindex: 0,
      "aria-label": "Latency by pass. Left and right move through the passes, up and down change the profile.",
    });
    for (const mark of marks) {
      this.svg.append(
        draw("line", { class: "grid", x1: left, x2: width, y1: this.y(mark), y2: this.y(mark) }),
        draw("text", { x: left - 8, y: this.y(mark) + 4, "text-anchor": "end" }, `${tickText(mark, step, factor)} ${unit}`));
    }
    for (const mark of ticks(0, most, width / 120).filter(Number.isInteger)) {
      this.svg.append(draw("text", { x: this.x(Math.max(mark - 1, 0)), y: PASSES_HEIGHT - 8, "text-anchor": "middle" }, mark === 0 ? "pass 1" : count(mark)));
    }
    for (const profile of shown) this.svg.append(this.series(profile, left, width));
    this.mark = draw("circle", { class: "ring", r: 6, visibility: "hidden" });
    this.markGroup = draw("g", { class: "series" }, this.mark);
    this.svg.append(this.markGroup);
    this.listen(shown);
    this.host.replaceChildren(this.svg);
  }

  // Thousands of dots are one path: a line of next to no length, with round ends, is a dot.
  // Of no length at all it is one on a screen, but a dash on paper.
  series(profile, left, width) {
    const { samples, latency } = profile;
    const inside = [];
    const beyond = [];
    samples.forEach((sample, pass) => {
      const x = this.x(pass).toFixed(1);
      if (sample <= this.range.high) inside.push(`M${x} ${this.y(sample).toFixed(1)}h.01`);
      else beyond.push(`M${x} 0l4 7h-8z`);
    });
    const group = draw("g", { class: `series series-${profile.series}` },
      draw("path", { class: "dots", d: inside.join("") }),
      draw("path", { class: "beyond", d: beyond.join("") }),
      draw("line", { class: "median-line", x1: left, x2: width, y1: this.y(latency.median_ms), y2: this.y(latency.median_ms) }),
      draw("circle", { class: "ring", cx: this.x(latency.median_pass), cy: this.y(samples[latency.median_pass]), r: 5 }));
    let start = 0;
    for (const run of profile.runs.slice(0, -1)) {
      start += run.length;
      group.append(draw("line", { class: "border", x1: this.x(start - 0.5), x2: this.x(start - 0.5), y1: 8, y2: PASSES_HEIGHT - 28 }));
    }
    return group;
  }

  listen(shown) {
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      const near = this.nearest(shown, event.clientX - box.left, event.clientY - box.top);
      if (near) this.point(near.profile, near.pass);
    });
    const leave = () => {
      this.mark.setAttribute("visibility", "hidden");
      tooltip.hide();
    };
    this.svg.addEventListener("pointerleave", leave);
    this.svg.addEventListener("blur", leave);
    this.svg.addEventListener("keydown", (event) => this.key(event, shown));
  }

  nearest(shown, x, y) {
    let best = null;
    for (const profile of shown) {
      profile.samples.forEach((sample, pass) => {
        const far = Math.hypot(this.x(pass) - x, this.height(sample) - y);
        if (far < (best?.far ?? 40)) best = { profile, pass, far };
      });
    }
    return best;
  }

  height(sample) {
    return sample <= this.range.high ? this.y(sample) : 4;
  }

  point(profile, pass) {
    this.current = { profile, pass };
    const sample = profile.samples[pass];
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [this.x(pass), this.height(sample)];
    this.markGroup.setAttribute("class", `series series-${profile.series}`);
    this.mark.setAttribute("cx", x);
    this.mark.setAttribute("cy", y);
    this.mark.setAttribute("visibility", "visible");
    const about = pass === profile.latency.median_pass
      ? "the median pass" : `${signedShare(sample / profile.latency.median_ms - 1)} of the median`;
    tooltip.show(box.left + x, box.top + y, `${shortened(profile.label, 40)}, pass ${pass + 1}\n${milliseconds(sample)}, ${about}`);
  }

  key(event, shown) {
    if (shown.length === 0) return;
    const now = shown.includes(this.current?.profile) ? this.current : { profile: shown[0], pass: shown[0].latency.median_pass };
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const across = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!sideways && !across) return;
    const profile = across ? shown.at((shown.indexOf(now.profile) + across) % shown.length) : now.profile;
    const last = profile.samples.length - 1;
    this.point(profile, Math.min(last, Math.max(0, now.pass + (this.current ? sideways ?? 0 : 0))));
    event.preventDefault();
  }
}
