// How the latencies of each profile are spread: a silhouette and a box, all on one axis.

const DISTRIBUTION_ROW = 78;
const BINS = 90;

// Bell-shaped weights over fine bins: the silhouette shows modes, not the accidents of bin edges.
function silhouette(samples, range) {
  const bins = new Float64Array(BINS);
  const place = scale(range.low, range.high, 0, BINS - 1);
  for (const sample of samples) {
    const center = place(sample);
    if (center > BINS) continue;
    for (let bin = Math.max(0, Math.floor(center) - 4); bin <= Math.min(BINS - 1, Math.ceil(center) + 4); bin++) {
      bins[bin] += Math.exp(-((bin - center) ** 2) / 3);
    }
  }
  const most = Math.max(...bins) || 1;
  return Array.from(bins, (value) => value / most);
}

function silhouettePath(heights, x0, x1, base, height) {
  const at = scale(0, BINS - 1, x0, x1);
  const points = heights.map((value, bin) => `${at(bin).toFixed(1)} ${(base - value * height).toFixed(1)}`);
  return `M${x0} ${base}L${points.join("L")}L${x1} ${base}Z`;
}

function distributionNote(latency, beyond, width) {
  const middle = `median ${milliseconds(latency.median_ms)}`;
  if (!beyond) return middle;
  return width < 560 ? `${middle}, ${beyond} beyond` : `${middle}; ${beyond} slower than the axis, up to ${milliseconds(latency.max_ms)}`;
}

function distributionRow(profile, series, x, range, width, top) {
  const { latency, quartiles_ms } = profile;
  const samples = profile.runs.flat();
  const beyond = samples.filter((sample) => sample > range.high).length;
  const right = Math.min(x(latency.p95_ms), width);
  const middle = top + 62;
  const label = draw("text", { class: "strong", x: 0, y: top + 15 }, shortened(profile.label, 40));
  const row = draw("g", { class: `series series-${series}` },
    label,
    draw("path", { class: "area", d: silhouettePath(silhouette(samples, range), x(range.low), x(range.high), top + 52, 30) }),
    draw("line", { class: "whisker", x1: x(latency.min_ms), x2: right, y1: middle, y2: middle }),
    draw("rect", { class: "box", x: x(quartiles_ms[0]), y: middle - 5, width: Math.max(2, x(quartiles_ms[1]) - x(quartiles_ms[0])), height: 10, rx: 1 }),
    draw("line", { class: "middle", x1: x(latency.median_ms), x2: x(latency.median_ms), y1: middle - 5, y2: middle + 5 }));
  row.append(draw("text", { x: width, y: top + 15, "text-anchor": "end" }, distributionNote(latency, beyond, width)));
  return row;
}

function drawDistribution(host, profiles, width) {
  const range = commonRange(profiles);
  const { unit, factor } = axisUnit(range.high);
  const height = DISTRIBUTION_ROW * profiles.length + 36;
  const x = scale(range.low, range.high, 0, width);
  const marks = ticks(range.low, range.high, width / 110);
  const step = marks.length > 1 ? marks[1] - marks[0] : 1;
  const cursor = draw("line", { class: "cursor", y1: 0, y2: height - 30, visibility: "hidden" });
  const svg = draw("svg", {
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": `Latency: ${profiles.map((p) => `${shortened(p.label, 40)} median ${milliseconds(p.latency.median_ms)}`).join(", ")}`,
  });
  for (const mark of marks) {
    const at = x(mark);
    const anchor = at < 20 ? "start" : at > width - 30 ? "end" : "middle";
    svg.append(
      draw("line", { class: "grid", x1: at, x2: at, y1: 20, y2: height - 32 }),
      draw("text", { x: at, y: height - 14, "text-anchor": anchor }, `${tickText(mark, step, factor)} ${unit}`));
  }
  svg.append(...profiles.map((profile, place) =>
    distributionRow(profile, profile.series ?? place % SERIES, x, range, width, place * DISTRIBUTION_ROW)), cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = event.clientX - box.left;
    const value = range.low + (at / width) * (range.high - range.low);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.setAttribute("visibility", "visible");
    const lines = profiles.map((profile) => {
      const samples = profile.runs.flat();
      const within = samples.filter((sample) => sample <= value).length / samples.length;
      return `${shortened(profile.label, 40)}: ${share(within)} of passes`;
    });
    tooltip.show(event.clientX, event.clientY, [`within ${milliseconds(value)}`, ...lines].join("\n"));
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    tooltip.hide();
  });
  host.replaceChildren(make("figure", { class: "picture" }, svg));
}

function latencyDistribution(host, profiles) {
  drawAtWidth(host, (width) => drawDistribution(host, profiles, width));
}
