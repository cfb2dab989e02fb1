// Layers of one profile as the page's parts read them: texts in place, times in ms, tensors by position.
// A row is a layer's position in execution order.

import { Fields } from "../unpack.js";

/** @param {TensorRow} tensor */
export const tensorText = ({ name, dtype, dims, format }) => [name, dtype, dims, format].join(" ").trim();

export class LayerData extends /** @type {new (columns: LayerColumns) => LayerColumns} */ (Fields) {
  /**
   * @param {LayersData} layers
   * @param {TensorRow[]} tensors
   */
  constructor({ step, label, is_timed, sum_ms, pass_ms, columns, roofs, missed }, tensors) {
    super(columns);
    this.length = columns.name.length;
    this.step = step;
    this.label = label;
    this.roofs = roofs;
    this.tensors = tensors;
    this.isTimed = is_timed; // layers of an engine that nobody ran have no times
    this.sumMs = sum_ms;
    this.passMs = pass_ms;
    /** @type {(apart: number[], sign: number) => number[]} */
    const milliseconds = (apart, sign) => columns.median_ns.map((value, row) => (value + sign * apart[row]) / 1e6);
    this.median = columns.median_ns.map((value) => value / 1e6);
    this.min = milliseconds(columns.below_ns, -1);
    this.max = milliseconds(columns.above_ns, 1);
    this.missed = new Set(missed);
    /** @type {Record<"producers" | "consumers", Map<string, number[]>> | null} rows that write and that read a tensor, by its name; found when they are first needed */
    this.ends = null;
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
    return this.outputs[row].length ? this.tensors[this.outputs[row][0]].format : "";
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
    const rows = new Set(own.flatMap((tensor) => ends.get(this.tensors[tensor].name) ?? []));
    rows.delete(row);
    return [...rows];
  }

  /** @param {number[][]} lists */
  byTensor(lists) {
    const ends = lists.flatMap((tensors, row) => tensors.map((tensor) => ({ name: this.tensors[tensor].name, row })));
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
