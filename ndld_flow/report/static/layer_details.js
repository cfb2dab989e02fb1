// What a table says about the layers that are selected in it.

function describeLayers(model, data, choose) {
  if (model.selected.size === 0) {
    return [make("p", {}, "Select layers to add them up: click, Shift or Ctrl and click, or the arrow keys and Space. ",
      make("kbd", {}, "1"), " to ", make("kbd", {}, "9"), " sort by a column.")];
  }
  return model.selected.size === 1 ? [describeLayer([...model.selected][0], data, choose)] : selectionSummary(model);
}

function layerTimes(row, data) {
  if (!data.isTimed) return "";
  const spread = `${milliseconds(data.median[row])} median, ${milliseconds(data.min[row])} to ${milliseconds(data.max[row])}, ${share(data.share(row))} of the layer sum`;
  return data.passMs ? `${spread}, ${share(data.median[row] / data.passMs)} of the pass` : spread;
}

function layerWork(row, data) {
  const speed = data.gmacs(row);
  const moved = data.bytes(row);
  return [
    data.macs[row] === null ? "" : `${amount(data.macs[row])} MACs${speed ? ` at ${threeDigits(speed)} GMAC/s` : ""}`,
    moved ? `${size(data.read_bytes[row])} read, ${size(data.written_bytes[row])} written${data.weight_bytes[row] ? `, ${size(data.weight_bytes[row])} of it weights` : ""}` : "",
  ].filter(Boolean).join("; ");
}

function askedWords(row, data) {
  if (data.missed.has(row)) return `${data.asked[row]}, but it computes in ${data.precision[row]}`;
  const nodes = data.onnxNodes[row].length;
  return data.asked[row] && nodes > 1 ? `${data.asked[row]}, within the ${count(nodes)} nodes that it holds` : data.asked[row];
}

const NEIGHBOURS_SHOWN = 12;

function neighbourButtons(rows, data, choose) {
  const shown = rows.slice(0, NEIGHBOURS_SHOWN).map((row) => make("button", { type: "button", class: "link mono", onclick: () => choose([row]) }, make("bdi", {}, shortened(data.name[row], 60) || `#${data.index[row]}`)));
  if (rows.length > NEIGHBOURS_SHOWN) shown.push(make("button", { type: "button", class: "link", onclick: () => choose(rows) }, `all ${count(rows.length)}`));
  return shown.flatMap((button, place) => (place ? [", ", button] : [button]));
}

function describeLayer(row, data, choose) {
  const list = make("dl");
  const tensors = (places) => places.map((place) => data.tensors.text(place)).join(", ");
  const lines = [
    ["Name", data.name[row]],
    ["Time", layerTimes(row, data)],
    ["Work", layerWork(row, data)],
    ["Precision", [data.precision[row], data.precision_basis[row]].filter(Boolean).join(": ")],
    ["Reads → writes", data.types(row)],
    ["Multiply unit", data.unit[row]],
    ["Channels", data.channels[row]],
    ["Asked for", askedWords(row, data)],
    ["Tactic", data.tactic[row]],
    ["Inputs", tensors(data.inputs[row])],
    ["Outputs", tensors(data.outputs[row])],
    ["ONNX nodes", data.onnxNodes[row].join(", ")],
  ];
  for (const [label, value] of lines) {
    if (value) list.append(make("dt", {}, label), make("dd", {}, make("bdi", {}, value)));
  }
  for (const [label, side] of [["Reads from", "producers"], ["Read by", "consumers"]]) {
    const rows = data.neighbours(row, side);
    if (rows.length) list.append(make("dt", {}, label), make("dd", {}, ...neighbourButtons(rows, data, choose)));
  }
  return list;
}
