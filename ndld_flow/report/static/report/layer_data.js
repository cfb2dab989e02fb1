// Layers of one profile as the page's parts read them: texts in place, times in ms, tensors by position.
// A row is a layer's position in execution order.

/**
 * Numbers from the differences between neighbours.
 * @param {Steps[]} steps
 */
export function fromSteps(steps) {
  let at = 0;
  return steps.map((step) => (at += step));
}

export class TensorTable {
  /**
   * @param {TensorColumns} columns
   * @param {string[]} texts
   */
  constructor({ name, dtype, dims, format }, texts) {
    this.names = fromSteps(name);
    this.dtypes = dtype;
    this.dims = dims;
    this.formats = format;
    this.texts = texts;
  }

  /** @param {number} place */
  name(place) {
    return this.texts[this.names[place]];
  }

  /** @param {number} place */
  format(place) {
    return this.formats ? this.texts[this.formats[place]] : "";
  }

  /** @param {number} place */
  text(place) {
    return [this.name(place), this.texts[this.dtypes[place]], this.texts[this.dims[place]], this.format(place)].join(" ").trim();
  }
}

export class LayerData {
  /**
   * @param {LayersPayload} packed
   * @param {string[]} texts
   * @param {TensorTable} tensors
   */
  constructor({ step, label, sum_ms, pass_ms, columns, roofs, missed }, texts, tensors) {
    this.length = columns.name.length;
    // Layers of an engine that nobody ran have no times.
    this.step = step;
    this.label = label;
    this.roofs = roofs;
    this.tensors = tensors;
    this.isTimed = sum_ms !== undefined;
    this.sumMs = sum_ms ?? 0;
    this.passMs = pass_ms ?? 0;
    /** @type {<T>(fallback: T) => T[]} */
    const absent = (fallback) => new Array(this.length).fill(fallback);
    const milliseconds = (/** @type {number[]} */ values) => values.map((value) => value / 1e6);
    const median = columns.median_ns ?? absent(0);
    /** @type {(values: number[] | undefined, sign: number) => number[]} */
    const apart = (values, sign) => milliseconds(median.map((value, row) => value + sign * (values?.[row] ?? 0)));
    this.index = columns.index ? fromSteps(columns.index) : absent(0);
    this.median = milliseconds(median);
    this.min = apart(columns.below_ns, -1);
    this.max = apart(columns.above_ns, 1);
    this.name = fromSteps(columns.name).map((place) => texts[place]);
    // A column that was left out has the same text everywhere, which is the first of all.
    const text = (/** @type {TextPlace[] | undefined} */ column) => column?.map((place) => texts[place]) ?? absent(texts[0] ?? "");
    this.type = text(columns.type);
    this.dims = text(columns.dims);
    this.provider = text(columns.provider);
    this.precision = text(columns.precision);
    this.role = text(columns.role);
    this.tactic = text(columns.tactic);
    this.input_precision = text(columns.input_precision);
    this.output_precision = text(columns.output_precision);
    this.precision_basis = text(columns.precision_basis);
    this.channels = text(columns.channels);
    // Precisions that were asked for, and the rows that did not get theirs.
    this.asked = columns.asked?.map((place) => texts[place]) ?? absent("");
    this.missed = new Set(missed);
    // Empty for profiles that reveal the multiply unit of no layer.
    this.unit = columns.unit?.map((place) => texts[place]) ?? absent("");
    this.depth = columns.depth ?? absent(0);
    /** @type {(number | null)[]} */
    this.stream = columns.stream ?? absent(null);
    /** @type {(number | null)[]} */
    this.macs = columns.macs ?? absent(null);
    this.read_bytes = columns.read_bytes ?? absent(0);
    this.written_bytes = columns.written_bytes ?? absent(0);
    this.weight_bytes = columns.weight_bytes ?? absent(0);
    /** @type {Record<"producers" | "consumers", Map<string, number[]>> | null} rows that write and that read a tensor, by its name; found when they are first needed */
    this.ends = null;
    this.inputs = this.lists(columns.inputs);
    this.outputs = this.lists(columns.outputs);
    this.onnxNodes = this.lists(columns.onnx_nodes).map((places) => places.map((place) => texts[place]));
  }

  /** @param {RaggedColumn} column */
  lists({ counts, places }) {
    const all = fromSteps(places);
    let at = 0;
    return counts.map((many) => all.slice(at, (at += many)));
  }

  /**
   * `int8 + float16 → float16`; empty where both are the type that the layer computes in.
   * @param {number} row
   */
  types(row) {
    const ends = [this.input_precision[row], this.output_precision[row]];
    return ends.every((end) => !end || end === this.precision[row]) ? "" : ends.map((end) => end || "unknown").join(" → ");
  }

  /**
   * The format of its first output.
   * @param {number} row
   */
  format(row) {
    return this.outputs[row].length ? this.tensors.format(this.outputs[row][0]) : "";
  }

  /** @param {number} row */
  bytes(row) {
    return this.read_bytes[row] + this.written_bytes[row];
  }

  /**
   * Operations in a second, two for each multiply-accumulate, in units of 10^12; null where they are not known.
   * @param {number} row
   */
  tflops(row) {
    const macs = this.macs[row];
    return macs === null || !this.median[row] ? null : (2 * macs) / this.median[row] / 1e9;
  }

  /** @param {number} row */
  share(row) {
    return this.sumMs ? this.median[row] / this.sumMs : 0;
  }

  /**
   * Layers before and after this one, by the tensors that lead from one to the other.
   * @param {number} row
   * @param {"producers" | "consumers"} side
   */
  neighbours(row, side) {
    this.ends ??= { producers: this.byTensor(this.outputs), consumers: this.byTensor(this.inputs) };
    const ends = this.ends[side];
    const own = side === "producers" ? this.inputs[row] : this.outputs[row];
    const rows = new Set(own.flatMap((tensor) => ends.get(this.tensors.name(tensor)) ?? []));
    rows.delete(row);
    return [...rows];
  }

  /** @param {number[][]} lists */
  byTensor(lists) {
    const ends = lists.flatMap((tensors, row) => tensors.map((tensor) => ({ name: this.tensors.name(tensor), row })));
    const groups = Map.groupBy(ends, ({ name }) => name);
    return new Map([...groups].map(([name, group]) => [name, group.map(({ row }) => row)]));
  }

  // Time, layers and precisions by type, the longest first.
  byType() {
    /** @type {Map<string, {type: string, count: number, ms: number, precisions: Map<string, {precision: string, count: number, ms: number}>}>} */
    const groups = new Map();
    for (let row = 0; row < this.length; row++) {
      const type = this.type[row];
      const group = groups.get(type) ?? { type, count: 0, ms: 0, precisions: new Map() };
      groups.set(type, group);
      const part = group.precisions.get(this.precision[row]) ?? { precision: this.precision[row], count: 0, ms: 0 };
      for (const counted of [group, part]) {
        counted.count += 1;
        counted.ms += this.median[row];
      }
      group.precisions.set(this.precision[row], part);
    }
    return [...groups.values()].sort((a, b) => b.ms - a.ms);
  }
}
