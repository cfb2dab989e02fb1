// Columns of the table of layers, and details of the selected ones.

/** @import { LayerData } from "./layer_data.js" */
/** @import { Column, Heat, TableModel } from "../table.js" */

import { make, shortened } from "../elements.js";
import { amount, count, counted, milliseconds, share, size, threeDigits } from "../quantities.js";
import { selectionSummary } from "../widgets.js";
import { tensorText } from "./layer_data.js";

/**
 * The whole that shares are of: `sum` of all layers, or the `pass`, including the time between them.
 * @typedef {{of: string}} Basis
 */

/** @typedef {(rows: number[]) => void} Choose */

// Columns of the layer table, from LayerData. Columns without information start hidden.

/** @param {Iterable<unknown>} values */
const saysMore = (values) => new Set(values).size > 1;

/** @type {(key: string, label: string, width: string, value: (row: number) => number | null, format: (value: number) => string, more: Partial<Column>) => Column} */
const numberColumn = (key, label, width, value, format, more) => ({
  key, label, width, numeric: true, right: true, value, format: (given) => (given === null ? "–" : format(given)), ...more,
});

/** @type {(key: string, label: string, width: string, value: (row: number) => string, more: Partial<Column>) => Column} */
const textColumn = (key, label, width, value, more) => ({ key, label, width, value, ...more });

/**
 * `int8 + float16 → float16` as `int8+fp16→fp16`.
 * @param {string} types
 */
const shortTypes = (types) => types.replaceAll("bfloat16", "bf16").replaceAll(/float(\d+)\w*/g, "fp$1").replaceAll(/ ?([+→]) ?/g, "$1");

/**
 * The requested precision, marked where the layer got another: `≠ fp16`.
 * @param {LayerData} data
 */
const askedColumn = (data) => textColumn("asked", "Asked", "76px", (row) => data.asked[row], {
  tally: true, hidden: false, longLabel: "Requested precision",
  format: (value, row) => `${data.missed.has(row) ? "≠ " : ""}${shortened(value, 40)}`,
  tone: (row) => (data.missed.has(row) ? "bad" : ""),
});

/** @param {LayerData} data */
function layerTextColumns(data) {
  /** @type {(key: "type" | "dims" | "provider" | "role" | "tactic", label: string, width: string, hidden: boolean) => Column} */
  const tallied = (key, label, width, hidden) =>
    textColumn(key, label, width, (row) => data[key][row], { tally: true, hidden });
  /** @param {number} row */
  const nodes = (row) => data.onnx_nodes[row].join(", ");
  // Conversions name both types already, and an operator of ONNX Runtime reads indices and scales besides.
  // A few layers that differ have it in their details: a column of blanks would take the names' room.
  const differing = data.role.filter((role, row) => role === "compute" && !data.provider[row] && data.types(row)).length;
  const differs = differing > data.length / 20;
  const named = data.onnx_nodes.filter((own, row) => own.length > 1 || (own.length === 1 && own[0] !== data.name[row])).length;
  return {
    name: textColumn("name", "Name", "minmax(170px, 2fr)", (row) => data.name[row], { mono: true, indent: (row) => Math.min(data.depth[row], 8), hidden: false }),
    type: tallied("type", "Type", "minmax(90px, 0.8fr)", false),
    dims: tallied("dims", "Dims", "138px", false),
    provider: tallied("provider", "Provider", "84px", !saysMore(data.provider)),
    precision: textColumn("precision", "Precision", "84px", (row) => data.precision[row], { tally: true, hidden: false, longLabel: "Precision of the computation", about: (row) => shortened(`${data.precision[row]} ${data.types(row)}: ${data.precision_basis[row]}`, 400) }),
    types: textColumn("types", "Reads → writes", "128px", (row) => shortTypes(data.types(row)), { tally: true, hidden: !differs, about: (row) => data.types(row) }),
    reads: textColumn("reads", "Reads", "92px", (row) => data.input_precision[row], { tally: true, hidden: true, longLabel: "Types of the inputs", csvLabel: "input precision" }),
    writes: textColumn("writes", "Writes", "76px", (row) => data.output_precision[row], { tally: true, hidden: true, longLabel: "Types of the outputs", csvLabel: "output precision" }),
    unit: textColumn("unit", "Unit", "88px", (row) => data.unit[row], { tally: true, about: (row) => data.unit[row], format: (value) => value.replace("tensor core", "TC"), hidden: !data.unit.some(Boolean), longLabel: "Multiply unit", csvLabel: "multiply unit" }),
    basis: textColumn("basis", "Precision by", "minmax(120px, 1fr)", (row) => data.precision_basis[row], { hidden: true, longLabel: "Evidence for the precision", csvLabel: "precision basis" }),
    channels: textColumn("channels", "Channels", "minmax(96px, 1fr)", (row) => data.channels[row], { hidden: true, longLabel: "Channels, marked if they are not a multiple of the granularity of tensor cores" }),
    asked: data.asked.some(Boolean) ? [askedColumn(data)] : [],
    format: textColumn("format", "Format", "84px", (row) => data.format(row), { tally: true, hidden: true, longLabel: "Format of the output" }),
    role: tallied("role", "Role", "84px", !saysMore(data.role)),
    tactic: tallied("tactic", "Tactic", "minmax(110px, 1fr)", !saysMore(data.tactic)),
    stream: textColumn("stream", "Stream", "68px", (row) => (data.stream[row] === null ? "" : String(data.stream[row])), { tally: true, hidden: !saysMore(data.stream) }),
    onnx: textColumn("onnx", "ONNX nodes", "minmax(140px, 1.2fr)", nodes, {
      mono: true,
      hidden: named < data.length / 2,
      format: (value, row) => (data.onnx_nodes[row].length > 1 ? `${data.onnx_nodes[row].length}: ${shortened(value, 120)}` : shortened(value, 120)),
    }),
  };
}

/** @param {Basis} basis */
export const shareLabel = (basis) => (basis.of === "pass" ? "percent of pass" : "percent of layer sum");

/**
 * @param {LayerData} data
 * @param {Basis} basis
 * @param {Heat} heat
 */
function layerNumberColumns(data, basis, heat) {
  const whole = () => (basis.of === "pass" ? data.passMs : data.sumMs) || 1;
  const rows = Array.from({ length: data.length }, (_, row) => row);
  /** @type {(key: string, value: (row: number) => number | null) => (row: number) => number} */
  const heated = (key, value) => {
    const values = rows.map(value);
    return (row) => heat.of(key, values)(values[row]);
  };
  /** @type {Record<string, (row: number) => number | null>} */
  const plain = {
    ms: (row) => data.median[row], macs: (row) => data.macs[row], tflops: (row) => data.tflops(row), bytes: (row) => data.bytes(row),
  };
  const worked = data.macs.some((value) => value);
  const moved = rows.some((row) => data.bytes(row));
  /** @param {number} row */
  const percent = (row) => data.median[row] / whole();
  return {
    index: numberColumn("index", "#", "56px", (row) => data.index[row], String, { position: true, hidden: false }),
    share: numberColumn("share", "%", "68px", percent, share, {
      longLabel: "% of the layers' time", measure: "sum", hidden: false, csv: (row) => Number((percent(row) * 100).toPrecision(5)),
      csvLabel: shareLabel(basis),
    }),
    ms: numberColumn("ms", "Median", "86px", plain.ms, milliseconds, { csvLabel: "median ms", summaryLabel: "Median time", measure: "sum", hidden: false, heat: heated("ms", plain.ms) }),
    min: numberColumn("min", "Min", "80px", (row) => data.min[row], milliseconds, { csvLabel: "min ms", hidden: true }),
    max: numberColumn("max", "Max", "80px", (row) => data.max[row], milliseconds, { csvLabel: "max ms", hidden: true }),
    macs: numberColumn("macs", "MACs", "78px", plain.macs, amount, { measure: "sum", hidden: true, heat: heated("macs", plain.macs) }),
    tflops: numberColumn("tflops", "TFLOP/s", "78px", plain.tflops, threeDigits, {
      measure: "mean", hidden: !worked, csv: (row) => { const value = data.tflops(row); return value === null ? "" : Number(value.toPrecision(5)); },
    }),
    bytes: numberColumn("bytes", "Moved", "84px", plain.bytes, size, { longLabel: "Bytes read and written", csvLabel: "bytes", measure: "sum", hidden: !moved, heat: heated("bytes", plain.bytes) }),
    weights: numberColumn("weights", "Weights", "84px", (row) => data.weight_bytes[row], size, { csvLabel: "weight bytes", measure: "sum", hidden: true }),
  };
}

/**
 * @param {LayerData} data
 * @param {Basis} basis
 * @param {Heat} heat
 */
export function layerColumns(data, basis, heat) {
  const texts = layerTextColumns(data);
  const numbers = layerNumberColumns(data, basis, heat);
  return [
    numbers.index, texts.name, texts.type, texts.dims, texts.provider, texts.precision, texts.types, texts.unit, ...texts.asked,
    numbers.share, numbers.ms, numbers.min, numbers.max, texts.tactic, texts.stream, texts.role, texts.format, texts.reads, texts.writes, texts.basis, texts.channels,
    numbers.macs, numbers.tflops, numbers.bytes, numbers.weights, texts.onnx,
  ];
}

/**
 * Without times there are none to show; formats and ONNX nodes are what people look for.
 * @param {LayerData} data
 * @param {Heat} heat
 */
export function untimedColumns(data, heat) {
  const texts = layerTextColumns(data);
  const numbers = layerNumberColumns(data, { of: "sum" }, heat);
  const rows = Array.from({ length: data.length }, (_, row) => row);
  texts.format.hidden = !rows.some((row) => data.format(row));
  Object.assign(texts.dims, { width: "112px" });
  Object.assign(texts.type, { width: "minmax(112px, 0.9fr)" });
  Object.assign(texts.tactic, { width: "minmax(130px, 1.1fr)" });
  texts.onnx.hidden = !data.onnx_nodes.some((nodes) => nodes.length);
  const worked = rows.some((row) => data.macs[row]) ? [numbers.macs] : [];
  // With free dimensions, few layers have known work.
  numbers.bytes.hidden = rows.filter((row) => data.bytes(row)).length < data.length / 2;
  const weighed = rows.some((row) => data.weight_bytes[row]) ? [numbers.weights] : [];
  return [
    numbers.index, texts.name, texts.type, texts.precision, texts.types, texts.unit, ...texts.asked, texts.dims, texts.format, texts.tactic,
    texts.stream, texts.role, texts.reads, texts.writes, texts.basis, texts.channels, ...worked, numbers.bytes, ...weighed, texts.onnx,
  ];
}

// Details of the selected layers of a table.

/**
 * @param {TableModel} model
 * @param {LayerData} data
 * @param {Choose} choose
 */
export function describeLayers(model, data, choose) {
  if (model.selected.size === 0) {
    return [make("p", {}, "Select layers to add them up: click, Shift or Ctrl and click, or the arrow keys and Space. ",
      make("kbd", {}, "1"), " to ", make("kbd", {}, "9"), " sort by a column.")];
  }
  return model.selected.size === 1 ? [describeLayer([...model.selected][0], data, choose)] : selectionSummary(model);
}

/**
 * @param {number} row
 * @param {LayerData} data
 */
function layerTimes(row, data) {
  if (!data.isTimed) return "";
  const spread = `${milliseconds(data.median[row])} median, ${milliseconds(data.min[row])} to ${milliseconds(data.max[row])}, ${share(data.share(row))} of the layer sum`;
  return data.passMs ? `${spread}, ${share(data.median[row] / data.passMs)} of the pass` : spread;
}

/**
 * @param {number} row
 * @param {LayerData} data
 */
function layerWork(row, data) {
  const speed = data.tflops(row);
  const moved = data.bytes(row);
  const macs = data.macs[row];
  return [
    macs === null ? "" : `${amount(macs)} MACs${speed ? ` at ${threeDigits(speed)} TFLOP/s` : ""}`,
    moved ? `${size(data.read_bytes[row])} read, ${size(data.written_bytes[row])} written${data.weight_bytes[row] ? `, ${size(data.weight_bytes[row])} of it weights` : ""}` : "",
  ].filter(Boolean).join("; ");
}

/**
 * @param {number} row
 * @param {LayerData} data
 */
function askedWords(row, data) {
  if (data.missed.has(row)) return `${data.asked[row]}, but it computes in ${data.precision[row]}`;
  const nodes = data.onnx_nodes[row].length;
  return data.asked[row] && nodes > 1 ? `${data.asked[row]}, within the ${counted(nodes, "node")} that it holds` : data.asked[row];
}

const NEIGHBOURS_SHOWN = 12;

/**
 * @param {number[]} rows
 * @param {LayerData} data
 * @param {Choose} choose
 */
function neighbourButtons(rows, data, choose) {
  const shown = rows.slice(0, NEIGHBOURS_SHOWN).map((row) => make("button", { type: "button", class: "link mono", onclick: () => choose([row]) }, make("bdi", {}, shortened(data.name[row], 60) || `#${data.index[row]}`)));
  if (rows.length > NEIGHBOURS_SHOWN) shown.push(make("button", { type: "button", class: "link", onclick: () => choose(rows) }, `all ${count(rows.length)}`));
  return shown.flatMap((button, place) => (place ? [", ", button] : [button]));
}

/**
 * @param {number} row
 * @param {LayerData} data
 * @param {Choose} choose
 */
function describeLayer(row, data, choose) {
  const list = make("dl");
  /** @param {number[]} places */
  const tensors = (places) => places.map((place) => tensorText(data.tensors[place])).join(", ");
  const lines = [
    ["Name", data.name[row]],
    ["Time", layerTimes(row, data)],
    ["Work", layerWork(row, data)],
    ["Precision", [data.precision[row], data.precision_basis[row]].filter(Boolean).join(": ")],
    ["Reads → writes", data.types(row)],
    ["Multiply unit", data.unit[row]],
    ["Channels", data.channels[row]],
    ["Requested", askedWords(row, data)],
    ["Tactic", data.tactic[row]],
    ["Inputs", tensors(data.inputs[row])],
    ["Outputs", tensors(data.outputs[row])],
    ["ONNX nodes", data.onnx_nodes[row].join(", ")],
  ];
  for (const [label, value] of lines) {
    if (value) list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, value)));
  }
  /** @type {[string, "producers" | "consumers"][]} */
  const sides = [["Reads from", "producers"], ["Read by", "consumers"]];
  for (const [label, side] of sides) {
    const rows = data.neighbours(row, side);
    if (rows.length) list.append(make("dt", {}, label), make("dd", {}, ...neighbourButtons(rows, data, choose)));
  }
  return list;
}
