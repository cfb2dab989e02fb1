// The layers of each profile and engine: table, graph, timeline and charts, linked with each other.

/** @import { Column } from "../static/table.js" */
/** @import { GraphMode } from "../static/graph/colours.js" */

import { drawAtWidth } from "../static/charts.js";
import { download } from "../static/downloads.js";
import { all, live, make, required, shortened } from "../static/elements.js";
import { familyMode, heatMode, kindsMode } from "../static/graph/colours.js";
import { GraphView } from "../static/graph/view.js";
import { count, milliseconds, share } from "../static/quantities.js";
import { exactWord, Heat, TableModel, TableView } from "../static/table.js";
import { chromeTrace, TimelineData } from "../static/timeline/data.js";
import { Timeline } from "../static/timeline/view.js";
import { TypeChart } from "../static/type_chart.js";
import { makeSwitch, makeTabs } from "../static/widgets.js";
import { NestedPie, Roofline } from "../static/report/layer_charts.js";
import { LayerData } from "../static/report/layer_data.js";
import { fileName, layersJson, layersMarkdown } from "../static/report/layer_exports.js";
import { describeLayers, layerColumns, shareLabel, untimedColumns } from "../static/report/layer_table.js";

/** @typedef {"provider" | "precision" | "unit" | "role"} Kind */

class LayersPart {
  /**
   * @param {HTMLElement} section
   * @param {LayersData} layers
   * @param {{tensors: TensorRow[], graph: GraphShape | null}} shared
   */
  constructor(section, layers, { tensors, graph }) {
    /** @type {GraphView | null} */
    this.graphView = null;
    /** @type {Timeline | null} */
    this.timeline = null;
    /** True while a click on the timeline selects rows, so that it is not moved under the pointer. */
    this.fromTimeline = false;
    this.section = section;
    this.onlyCompute = layers.only_compute;
    this.graph = graph;
    this.data = new LayerData(layers, tensors);
    this.heat = new Heat("linear");
    this.basis = { of: "sum" };
    this.spans = layers.timeline ? new TimelineData(layers.timeline, this.data) : null;
    this.table = this.buildTable();
    this.build();
    this.buildGraph();
    this.buildLinks();
    this.buildExports();
  }

  // Columns, further parts, descriptions and colours of an engine without times, which a profile replaces.

  /** @returns {Column[]} */
  columns() {
    return untimedColumns(this.data, this.heat);
  }

  get sorting() {
    return "index";
  }

  /** @returns {Node[]} */
  tableTools() {
    return [];
  }

  build() {}

  /**
   * @param {number} row
   * @returns {string}
   */
  describe(row) {
    const nodes = this.data.onnx_nodes[row];
    return nodes.length ? `${nodes.length === 1 ? "ONNX node" : `${count(nodes.length)} ONNX nodes:`} ${shortened(nodes.join(", "), 160)}` : "";
  }

  /**
   * @param {GraphShape} graph
   * @returns {GraphMode[]}
   */
  modes(graph) {
    return [this.kinds("precision", "Precision"), this.kinds("role", "Role"), familyMode(graph, (row) => this.data.type[row])];
  }

  /**
   * The element that the template left for a part of this section.
   * @param {string} name
   */
  live(name) {
    return required(name, this.section);
  }

  buildTable() {
    const model = new TableModel(this.columns(), this.data.length);
    model.sortBy(this.sorting);
    return new TableView(this.live("layers"), model, {
      label: "layers",
      file: `layers-${fileName(this.data.step)}.csv`,
      tools: this.tableTools(),
      describe: (table) => describeLayers(table, this.data, (rows) => this.choose(rows)),
      selected: (rows) => {
        this.timeline?.mark(rows, !this.fromTimeline);
        this.graphView?.mark(rows);
      },
    });
  }

  // A graph may have thousands of nodes: it is built when it comes near the screen.
  buildGraph() {
    const { data, graph } = this;
    if (!graph) return;
    const host = this.live("graph");
    /** @type {HTMLElement} */ (host.previousElementSibling).hidden = false;
    host.classList.add("graph-room");
    drawAtWidth(host, () => {
      this.graphView ??= new GraphView(host, graph, {
        label: `layers of ${shortened(data.label, 60)}`,
        name: (row) => data.name[row],
        type: (row) => layerWord(data.type[row], data.name[row]),
        about: (row) => `${shortened(data.name[row], 120)}\n${shortened(data.type[row], 60)} ${data.dims[row]} ${shortened(data.precision[row], 40)} ${shortened(data.types(row), 60)} ${data.unit[row]}\n${this.describe(row)}`.trim(),
        search: (row) => `${data.name[row]} ${data.type[row]} ${data.onnx_nodes[row].join(" ")}`,
        modes: this.modes(graph),
        pick: (row) => this.table.choose(row < 0 ? [] : [row]),
      });
    });
  }

  // Buttons in the page's findings and summaries select the layers that they name.
  buildLinks() {
    for (const button of all("[data-rows]", this.section)) {
      const rows = (button.dataset.rows ?? "").split(",").map(Number).filter((row) => row >= 0 && row < this.data.length);
      button.addEventListener("click", () => this.choose(rows));
    }
    for (const button of all("[data-pick]", this.section)) {
      const { pick = "", value = "" } = button.dataset;
      button.addEventListener("click", () => this.only({ [pick]: value }));
    }
  }

  buildExports() {
    const name = fileName(this.data.step);
    const { spans } = this;
    /** @type {(text: string, file: string, type: string, content: () => string) => HTMLElement} */
    const button = (text, file, type, content) => make("button", { type: "button", onclick: () => download(file, type, content()) }, text);
    const buttons = [
      button("JSON", `${name}.json`, "application/json", () => layersJson(this.data, spans)),
      button("Markdown", `${name}.md`, "text/markdown;charset=utf-8", () => layersMarkdown(this.data)),
    ];
    if (spans) buttons.push(button("Chrome trace", `${name}-trace.json`, "application/json", () => chromeTrace(spans, this.data.label)));
    this.live("exports").replaceChildren(make("span", { class: "quiet small" }, "Save as"), ...buttons);
  }

  /**
   * @param {Kind} key
   * @param {string} title
   */
  kinds(key, title) {
    return kindsMode({ key, title, of: (row) => this.data[key][row], layers: this.data.length });
  }

  /** @param {number[]} rows */
  choose(rows) {
    this.table.choose(rows);
    this.toTable();
  }

  /**
   * Show only the layers that have these values; the same click again shows all.
   * @param {Record<string, string>} wanted
   */
  only(wanted) {
    const words = Object.entries(wanted).map(([key, value]) => exactWord(key, value)).join(" ");
    this.table.filter(this.table.field.value === words ? "" : words);
    this.toTable();
  }

  toTable() {
    this.live("layers").scrollIntoView({ block: "nearest" });
  }
}

// A profile has times, so it has a timeline and charts, too.
class ProfilePart extends LayersPart {
  columns() {
    return layerColumns(this.data, this.basis, this.heat);
  }

  get sorting() {
    return "ms";
  }

  build() {
    if (this.onlyCompute) this.table.filter(exactWord("role", "compute"));
    this.buildTimeline();
    this.buildCharts();
  }

  tableTools() {
    const heat = makeSwitch("Heat", { linear: "linear", log: "log", rank: "rank", none: "off" }, "linear", (scale) => {
      this.heat.use(scale);
      this.table.paint();
    });
    if (!this.data.passMs) return [heat];
    return [makeSwitch("% of", { sum: "layer sum", pass: "pass" }, "sum", (of) => {
      this.basis.of = of;
      const column = this.table.model.column("share");
      if (column) column.csvLabel = shareLabel(this.basis);
      this.table.refresh();
    }), heat];
  }

  buildTimeline() {
    if (!this.spans) return;
    this.timeline = new Timeline(this.live("timeline"), this.spans, {
      label: this.data.label,
      pick: (row) => {
        this.fromTimeline = true;
        this.table.choose([row]);
        this.fromTimeline = false;
      },
    });
    // An engine may be enqueued long before its first kernel: the kernels are what is read here.
    const first = this.spans.firstOf("kernel") ?? 0;
    if (first > 0.2 * this.spans.total) this.timeline.show(first, this.spans.total);
  }

  buildCharts() {
    const types = this.data.byType();
    const report = { label: this.data.label, series: 0, types, wholeMs: this.data.sumMs };
    new TypeChart(this.live("types"), [report], { pick: (type) => this.only({ type }) });
    new NestedPie(this.live("pie"), types, { label: this.data.label, pick: (wanted) => this.only(wanted) });
    const roofline = live("roofline", this.section);
    if (roofline) new Roofline(roofline, [{ label: this.data.label, layers: this.data }], { pick: (row) => this.choose([row]) });
  }

  /** @param {number} row */
  describe(row) {
    return `${milliseconds(this.data.median[row])}, ${share(this.data.share(row))} of the layer sum`;
  }

  /** @param {GraphShape} graph */
  modes(graph) {
    const { data } = this;
    return [
      heatMode({ value: (row) => data.median[row], layers: data.length }),
      this.kinds("precision", "Precision"),
      ...(data.unit.some(Boolean) ? [this.kinds("unit", "Multiply unit")] : []),
      familyMode(graph, (row) => data.type[row]),
    ];
  }
}

/**
 * Kernels of Myelin are named by the operations fused into them, layers of unknown type by their name.
 * @param {string} type
 * @param {string} name
 */
const layerWord = (type, name) => /^__myl_(\w+?)_myl\d+_\d+$/.exec(name)?.[1] ?? (type === "unknown" ? name : type);

/**
 * A part is built when its tab is first opened: ten of 5,000 layers cost no more than one.
 * @param {ReportData} data
 * @param {HTMLElement} whole
 * @param {typeof LayersPart} Part
 * @returns {(place: number, rows: number[]) => void} shows layers of a part
 */
function layerTabs({ layers, graphs, graph_of, tensors }, whole, Part) {
  const sections = all("[data-layers]", whole);
  /** @type {Map<number, LayersPart>} */
  const parts = new Map();
  const places = sections.map((section) => Number(section.dataset.layers));
  /** @param {number} number */
  const build = (number) => {
    // An engine may have no recorded layers.
    if (parts.has(number) || layers[places[number]].columns.name.length === 0) return;
    const graph = graphs[graph_of[places[number]] ?? -1] ?? null;
    parts.set(number, new Part(sections[number], layers[places[number]], { tensors, graph }));
  };
  const open = makeTabs(required("profiles", whole), sections, places.map((place) => shortened(layers[place].label, 40)), build);
  const views = all("[data-view]", whole);
  const bar = live("views", whole);
  const view = bar ? makeTabs(bar, views, views.map((shown) => shown.dataset.view ?? "")) : () => {};
  return (place, rows) => {
    const number = places.indexOf(place);
    if (number < 0) return;
    view(0);
    open(number);
    parts.get(number)?.choose(rows);
  };
}

/**
 * Layers named elsewhere on the page are shown in the profiles where there are any, otherwise in the engines.
 * @param {ReportData} data
 */
export function show(data) {
  /** @type {((place: number, rows: number[]) => void) | undefined} */
  let showLayer;
  for (const [id, Part] of /** @type {[string, typeof LayersPart][]} */ ([["engines", LayersPart], ["layers", ProfilePart]])) {
    const whole = document.getElementById(id);
    if (whole) showLayer = layerTabs(data, whole, Part);
  }
  for (const button of all("[data-layer]")) {
    const [place, ...rows] = (button.dataset.layer ?? "").split(",").map(Number);
    button.addEventListener("click", () => showLayer?.(place, rows));
  }
}
