// Painting of a graph onto its canvas, and of the overview map.

/** @import { GraphMode, GraphPalette } from "./colours.js" */
/** @import { GraphData } from "./data.js" */

import { shortened } from "../elements.js";

/** @typedef {{x: number, y: number, scale: number}} Sight of the upper left corner */

/**
 * @typedef {object} GraphState
 * @property {GraphMode} mode
 * @property {number} hover a node, -1 for none
 * @property {number} active
 * @property {Set<number>} marked
 * @property {Set<number> | null} found null without a search
 * @property {(node: number) => string[]} words
 * @property {(node: number) => string} [below]
 */

// Paints the visible part of a graph, with as much text as the scale permits.

export class GraphPainter {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {GraphData} data
   * @param {GraphPalette} palette
   */
  constructor(canvas, data, palette) {
    this.canvas = canvas;
    this.data = data;
    this.palette = palette;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.lines = new Path2D();
    this.faint = new Path2D();
    this.arrows = new Path2D();
    for (let edge = 0; edge < data.source.length; edge++) {
      data.trace(data.far.has(edge) || data.back.has(edge) ? this.faint : this.lines, edge);
      data.traceArrow(this.arrows, edge);
    }
  }

  /**
   * @param {Sight} view
   * @param {GraphState} state
   */
  paint(view, state) {
    const { context, canvas } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, canvas.width, canvas.height);
    const scale = view.scale * ratio;
    context.setTransform(scale, 0, 0, scale, -view.x * scale, -view.y * scale);
    this.edges(view.scale, state);
    const sight = { left: view.x, top: view.y, right: view.x + width / view.scale, bottom: view.y + height / view.scale };
    this.nodes(view.scale, state, sight);
  }

  /**
   * @param {number} scale
   * @param {GraphState} state
   */
  edges(scale, state) {
    const { context, palette } = this;
    const bright = state.hover >= 0 || state.active >= 0 || state.marked.size > 0;
    context.lineWidth = Math.max(1.3, 0.6 / scale);
    context.strokeStyle = palette.css("--graph-edge");
    context.stroke(this.lines);
    context.setLineDash([5, 4]);
    context.stroke(this.faint);
    context.setLineDash([]);
    if (scale > 0.3) {
      context.fillStyle = palette.css("--graph-edge");
      context.fill(this.arrows);
    }
    if (bright) this.brightEdges(scale, state);
  }

  /**
   * @param {number} scale
   * @param {GraphState} state
   */
  brightEdges(scale, state) {
    const { context, data, palette } = this;
    const path = new Path2D();
    const node = state.hover >= 0 ? state.hover : state.active;
    if (node < 0) return;
    for (const edge of [...data.entering[node], ...data.leaving[node]]) data.trace(path, edge);
    context.lineWidth = Math.max(2.2, 1.4 / scale);
    context.strokeStyle = palette.css("--accent");
    context.stroke(path);
  }

  /**
   * @param {number} scale
   * @param {GraphState} state
   * @param {{left: number, top: number, right: number, bottom: number}} sight
   */
  nodes(scale, state, sight) {
    const { data, context, palette } = this;
    const [wide, high] = [data.nodeWidth, data.nodeHeight];
    
    for (let node = 0; node < data.length; node++) {
      const [x, y] = [data.x[node], data.y[node]];
      if (x > sight.right || y > sight.bottom || x + wide < sight.left || y + high < sight.top) continue;
      const layer = node < data.layers;
      context.globalAlpha = state.found && !state.found.has(node) ? 0.28 : 1;
      const colour = layer ? state.mode.colour(node, palette) : palette.css("--paper");
      context.fillStyle = colour;
      context.strokeStyle = palette.css("--graph-border");
      context.lineWidth = 1;
      if (data.composite.has(node)) this.sheet(x, y, scale);
      if (data.constant.has(node)) context.setLineDash([3, 2]);
      context.beginPath();
      if (scale < 0.16) context.rect(x, y, wide, Math.max(high, 2 / scale));
      else context.roundRect(x, y, wide, high, layer ? 6 : high / 2);
      context.fill();
      if (scale > 0.16) context.stroke();
      context.setLineDash([]);
      this.outline(node, state, scale);
      if (scale > 0.34) this.words(node, state, colour, scale);
    }
    context.globalAlpha = 1;
  }

  /**
   * A second outline marks a node that contains a graph.
   * @param {number} x
   * @param {number} y
   * @param {number} scale
   */
  sheet(x, y, scale) {
    const { context, data } = this;
    context.beginPath();
    context.roundRect(x + 4, y + 4, data.nodeWidth, data.nodeHeight, 6);
    context.fill();
    if (scale > 0.16) context.stroke();
  }

  /**
   * @param {number} node
   * @param {GraphState} state
   * @param {number} scale
   */
  outline(node, state, scale) {
    const { context, palette } = this;
    const strong = node === state.active;
    if (!strong && node !== state.hover && !state.marked.has(node)) return;
    context.strokeStyle = palette.css(strong ? "--ink" : "--accent");
    context.lineWidth = Math.max(strong ? 3 : 2.5, 2 / scale);
    context.stroke();
  }

  /**
   * @param {number} node
   * @param {GraphState} state
   * @param {string} colour
   * @param {number} scale
   */
  words(node, state, colour, scale) {
    const { context, data, palette } = this;
    const [x, y] = data.centre(node);
    const [first, ...rest] = state.words(node).filter(Boolean);
    context.fillStyle = inkOn(colour);
    if (node >= data.layers) context.fillStyle = palette.css("--ink");
    context.textAlign = "center";
    context.textBaseline = "middle";
    if (state.below && scale > 0.6) this.below(node, x, state.below(node));
    const room = data.nodeWidth - 10;
    const lines = scale > 0.5 ? rest : [];
    const top = y + 0.5 - 7.5 * lines.length;
    context.font = "600 12px system-ui, sans-serif";
    context.fillText(this.cut(first ?? "", room), x, top);
    context.font = "11px system-ui, sans-serif";
    lines.forEach((line, place) => context.fillText(this.cut(line, room), x, top + 15 * (place + 1)));
  }

  /**
   * @param {number} node
   * @param {number} x
   * @param {string} text
   */
  below(node, x, text) {
    const { context, data, palette } = this;
    const ink = context.fillStyle;
    context.font = "10px system-ui, sans-serif";
    context.fillStyle = palette.css("--quiet");
    const y = data.y[node] + data.nodeHeight + (data.composite.has(node) ? 13 : 9);
    context.fillText(this.cut(text, data.nodeWidth + 20), x, y);
    context.fillStyle = ink;
  }

  /**
   * @param {string} text
   * @param {number} room
   */
  cut(text, room) {
    const short = shortened(text, 40);
    if (this.context.measureText(short).width <= room) return short;
    let length = short.length;
    while (length > 3 && this.context.measureText(shortened(text, length)).width > room) length--;
    return shortened(text, length);
  }
}

/**
 * Black or white, whichever is easier to read on a colour of a palette.
 * @param {string} colour
 */
function inkOn(colour) {
  const [red, green, blue] = (colour.match(/[\d.]+/g) ?? []).map((value) => (Number(value) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#15171a" : "#f4f5f6";
}

// A small picture of the whole graph with a frame around the visible part. Hidden while the whole graph is visible.

const GRAPH_MAP_WIDTH = 180;
const GRAPH_MAP_HEIGHT = 110;

export class GraphMap {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {GraphData} data
   * @param {GraphPalette} palette
   * @param {(x: number, y: number) => void} go centre the view on a point of the graph
   */
  constructor(canvas, data, palette, go) {
    this.canvas = canvas;
    this.palette = palette;
    this.data = data;
    this.scale = 1;
    /** @type {HTMLCanvasElement | null} all nodes, kept until the colours change */
    this.whole = null;
    this.show(data);
    /** @param {PointerEvent} event */
    const move = (event) => event.buttons & 1 && go(event.offsetX / this.scale, event.offsetY / this.scale);
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      move(event);
    });
    canvas.addEventListener("pointermove", move);
  }

  /** @param {GraphData} data */
  show(data) {
    this.data = data;
    this.scale = Math.min(GRAPH_MAP_WIDTH / data.width, GRAPH_MAP_HEIGHT / data.height);
    this.canvas.style.width = `${Math.ceil(data.width * this.scale)}px`;
    this.canvas.style.height = `${Math.ceil(data.height * this.scale)}px`;
    this.forget();
  }

  forget() {
    this.whole = null;
  }

  /** @param {GraphMode} mode */
  picture(mode) {
    const { data, palette } = this;
    const ratio = devicePixelRatio || 1;
    const whole = document.createElement("canvas");
    whole.width = Math.max(1, Math.ceil(data.width * this.scale * ratio));
    whole.height = Math.max(1, Math.ceil(data.height * this.scale * ratio));
    const context = /** @type {CanvasRenderingContext2D} */ (whole.getContext("2d"));
    context.scale(this.scale * ratio, this.scale * ratio);
    for (let node = 0; node < data.layers; node++) {
      context.fillStyle = mode.colour(node, palette);
      context.fillRect(data.x[node], data.y[node], data.nodeWidth, Math.max(data.nodeHeight, 1 / this.scale));
    }
    return whole;
  }

  /**
   * @param {Sight} view
   * @param {{width: number, height: number}} size of the window onto the graph
   * @param {GraphMode} mode
   */
  paint(view, { width, height }, mode) {
    const [wide, high] = [width / view.scale, height / view.scale];
    const all = view.x <= 0 && view.y <= 0 && view.x + wide >= this.data.width && view.y + high >= this.data.height;
    this.canvas.hidden = all;
    if (all) return;
    this.whole ??= this.picture(mode);
    const ratio = devicePixelRatio || 1;
    this.canvas.width = this.whole.width;
    this.canvas.height = this.whole.height;
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    context.drawImage(this.whole, 0, 0);
    const scale = this.scale * ratio;
    context.strokeStyle = this.palette.css("--accent");
    context.lineWidth = 2 * ratio;
    context.strokeRect(view.x * scale, view.y * scale, wide * scale, high * scale);
  }
}
