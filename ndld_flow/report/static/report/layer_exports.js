// Exports of one profile's layers as JSON and Markdown. CSV is exported by the table.

/** @import { TimelineData } from "../timeline/data.js" */
/** @import { LayerData } from "./layer_data.js" */

import { shortened } from "../elements.js";
import { count, counted, milliseconds, share } from "../quantities.js";
import { tensorText } from "./layer_data.js";

const UNTIMED = new Set(["sum_ms", "pass_ms", "median_ms", "min_ms", "max_ms", "timeline"]);

/**
 * @param {LayerData} data
 * @param {TimelineData | null} timeline
 */
export function layersJson(data, timeline) {
  const layers = Array.from({ length: data.length }, (_, row) => ({
    index: data.index[row], name: data.name[row], type: data.type[row], dims: data.dims[row],
    provider: data.provider[row], precision: data.precision[row], precision_basis: data.precision_basis[row], input_precision: data.input_precision[row], output_precision: data.output_precision[row],
    multiply_unit: data.unit[row] || undefined, channels: data.channels[row] || undefined, asked_precision: data.asked[row] || undefined, role: data.role[row], tactic: data.tactic[row],
    stream: data.stream[row], depth: data.depth[row], median_ms: data.median[row], min_ms: data.min[row], max_ms: data.max[row],
    macs: data.macs[row], read_bytes: data.read_bytes[row], written_bytes: data.written_bytes[row], weight_bytes: data.weight_bytes[row],
    inputs: data.inputs[row].map((place) => tensorText(data.tensors[place])), outputs: data.outputs[row].map((place) => tensorText(data.tensors[place])),
    onnx_nodes: data.onnx_nodes[row],
  }));
  const spans = timeline && timeline.start.map((start, span) => ({
    lane: timeline.lanes[timeline.lane[span]], name: timeline.name[span], kind: timeline.kind[span], depth: timeline.depth[span],
    layer: timeline.layer[span] < 0 ? null : timeline.layer[span], start_ms: start, duration_ms: timeline.duration[span],
  }));
  const whole = { label: data.label, step: data.step, sum_ms: data.sumMs, pass_ms: data.passMs, layers, timeline: spans };
  return JSON.stringify(whole, (key, value) => (!data.isTimed && UNTIMED.has(key) ? undefined : value), 1);
}

/**
 * Names come from models: none may become a link, a tag or another column of the table.
 * @param {string} text
 */
const markdownText = (text) => shortened(text, 80)
  .replaceAll(/[\r\n]+/g, " ")
  .replaceAll(/[\\`*_{}[\]()#+!|~:@]/g, "\\$&")
  .replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/**
 * @param {string[]} heads
 * @param {string[][]} rows
 */
function markdownTable(heads, rows) {
  /** @param {string[]} cells */
  const line = (cells) => `| ${cells.join(" | ")} |`;
  return [line(heads), line(heads.map((_, place) => (place ? "--:" : ":--"))), ...rows.map(line)].join("\n");
}

/** @param {LayerData} data */
export function layersMarkdown(data) {
  if (!data.isTimed) return untimedMarkdown(data);
  const order = Array.from({ length: data.length }, (_, row) => row).sort((a, b) => data.median[b] - data.median[a]).slice(0, 20);
  const types = data.byType().slice(0, 12);
  const asked = data.asked.some(Boolean), units = data.unit.some(Boolean), mixed = order.some((row) => data.types(row));
  return [
    `### ${markdownText(data.label)}`, "",
    `${counted(data.length, "layer")}, ${milliseconds(data.sumMs)} together.`, "",
    markdownTable(["Type", "Layers", "Time", "%"], types.map((type) => [markdownText(type.type), count(type.count), milliseconds(type.ms), share(type.ms / (data.sumMs || 1))])), "",
    markdownTable(["Layer", "Type", "Precision", ...(mixed ? ["Reads → writes"] : []), ...(units ? ["Multiply unit"] : []), ...(asked ? ["Asked"] : []), "Median", "%"], order.map((row) =>
      [markdownText(data.name[row]), markdownText(data.type[row]), markdownText(data.precision[row]), ...(mixed ? [markdownText(data.types(row))] : []), ...(units ? [markdownText(data.unit[row])] : []), ...(asked ? [markdownText(data.asked[row])] : []), milliseconds(data.median[row]), share(data.share(row))])), "",
  ].join("\n");
}

/** @param {LayerData} data */
function untimedMarkdown(data) {
  /** @typedef {"precision" | "type" | "role"} Field */
  /**
   * @param {Field} key
   * @returns {[string, number][]}
   */
  const counts = (key) => [...Map.groupBy(data[key], (value) => value)].map(([value, all]) => /** @type {[string, number]} */ ([value, all.length])).sort((a, b) => b[1] - a[1]).slice(0, 12);
  /**
   * @param {string} title
   * @param {Field} key
   */
  const table = (title, key) => [markdownTable([title, "Layers", "%"], counts(key).map(([value, times]) =>
    [markdownText(value) || "not recorded", count(times), share(times / data.length)])), ""];
  return [
    `### ${markdownText(data.label)}`, "", `${counted(data.length, "layer")}, not timed.`, "",
    ...table("Precision", "precision"), ...table("Type", "type"), ...table("Role", "role"),
  ].join("\n");
}

/** @param {string} text */
export const fileName = (text) => text.replaceAll(/[^\w.-]+/g, "_").slice(0, 60) || "profile";
