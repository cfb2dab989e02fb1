// Layers with their errors on each curve, in the order of execution. A row is a layer's place in that order.

const NOT_FINITE = -1; // stands for an error that is NaN or infinite

// What a curve can be drawn by. `distance` is 1 - cosine.
const ERROR_SCALES = {
  error: { title: "relative error", of: "error", text: plainNumber },
  snr: { title: "SNR", of: "error", text: (value) => `${(-20 * Math.log10(value)).toFixed(1)} dB` },
  distance: { title: "1 − cosine", of: "distance", text: plainNumber },
};

class DepthData {
  constructor(packed, texts) {
    Object.assign(this, packed, { length: packed.node.length, kept: new Set(packed.kept), keptRows: packed.kept });
    for (const key of ["node", "op_type", "tensor", "dims"]) this[key] = packed[key].map((place) => texts[place]);
    this.position = fromSteps(packed.position);
  }

  // Which scales there is anything to draw for.
  scales() {
    const there = (of) => this[of].some((curve) => curve.some((value) => value !== null));
    return Object.entries(ERROR_SCALES).filter(([, { of }]) => there(of)).map(([key]) => key);
  }

  called(row) {
    return `${this.op_type[row]} ${this.node[row] || this.tensor[row]}`.trim();
  }

  // How a range stands to the format: `over` what it can hold, `under` it by more than one value in a hundred.
  rangeKind(row) {
    const { ranges, limits } = this;
    if (!ranges || ranges.largest_abs[row] === null) return "";
    if (ranges.nonfinite[row]) return "over";
    if (!limits) return "within";
    if (ranges.beyond_share[row] > 0 || ranges.largest_abs[row] > limits[2]) return "over";
    return ranges.vanishing_share[row] >= 0.01 || (ranges.largest_abs[row] > 0 && ranges.largest_abs[row] < limits[1]) ? "under" : "within";
  }

  rangeWords(row) {
    const { ranges } = this;
    if (!ranges || ranges.largest_abs[row] === null) return "";
    const parts = [`|values| ${plainNumber(ranges.smallest_abs[row])} to ${plainNumber(ranges.largest_abs[row])}`];
    for (const [key, words] of [["beyond_share", `beyond ${this.precision}'s largest`], ["vanishing_share", "become 0"], ["subnormal_share", "subnormal"]]) {
      const part = ranges[key][row];
      if (part > 0) parts.push(`${part < 0.001 ? "< 0.1 %" : share(part)} ${words}`);
    }
    if (ranges.nonfinite[row]) parts.push(`${count(ranges.nonfinite[row])} NaN or infinite`);
    return parts.join(", ");
  }

  errorWords(curve, row, scale = "error") {
    const value = this[ERROR_SCALES[scale].of][curve][row];
    if (value === null) return "not measured";
    if (value !== NOT_FINITE) return value === 0 ? "equal" : ERROR_SCALES[scale].text(value);
    const elements = this.nonfinite?.[curve][row];
    return elements ? `${count(elements)} NaN or infinite` : "not finite";
  }

  about(row, scale) {
    const lines = this.curves.map((label, curve) => `${label}: ${this.errorWords(curve, row, scale)}`);
    const marks = [this.kept.has(row) ? "kept at higher precision" : "", row === this.first ? "divergence starts here" : ""].filter(Boolean);
    return [`#${this.position[row]} ${shortened(this.called(row), 100)}`, this.dims[row], ...lines, this.rangeWords(row), marks.join(", ")].filter(Boolean).join("\n");
  }
}
