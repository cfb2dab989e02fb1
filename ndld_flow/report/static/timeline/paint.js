// Paints a pass on a canvas: the ruler, lanes of spans, marks and measurements, and an overview.

/** @import { SpanKind, SpanRow, TimelineData, TimelineSight } from "./data.js" */

import { axisUnit, colorsAt, ticks, tickText } from "../charts.js";
import { shortened } from "../elements.js";
import { firstFrom, OVERVIEW, RULER, SPAN_ROW } from "./data.js";

/**
 * @typedef {object} Chosen
 * @property {number[]} marked spans
 * @property {number} cursor the span that has the keyboard's focus, or was found last, -1 for none
 * @property {string} [found] the result of a search
 * @property {[number, number] | null} measured times in ms
 */

/** @type {Record<SpanKind, string>} */
export const SPAN_TONES = { layer: "series", moving: "moving", overhead: "overhead", transfer: "transfer", pass: "before" };

export class TimelinePainter {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {TimelineData} data
   * @param {TimelineSight} sight
   * @param {number} series the colour of the report
   */
  constructor(canvas, data, sight, series) {
    this.canvas = canvas;
    this.data = data;
    this.sight = sight;
    this.series = series;
    this.dots = 1;
    /** @type {Record<string, string>} */
    this.colors = {};
    canvas.style.height = `${sight.height}px`;
  }

  // Called when the sight has its width, and when the theme changes.
  resize() {
    const { sight } = this;
    this.dots = globalThis.devicePixelRatio || 1;
    this.canvas.width = Math.round(sight.width * this.dots);
    this.canvas.height = Math.round(sight.height * this.dots);
    this.colors = colorsAt(this.canvas.parentElement ?? document.body, ["ink", "quiet", "line", "paper", "accent", "moving", "overhead", "transfer", "before", `series-${this.series}`]);
    this.colors.series = this.colors[`series-${this.series}`];
  }

  /** @param {Chosen} chosen */
  paint(chosen) {
    const { sight } = this;
    const paper = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    paper.setTransform(this.dots, 0, 0, this.dots, 0, 0);
    paper.clearRect(0, 0, sight.width, sight.height);
    paper.font = "12px system-ui, sans-serif";
    paper.textBaseline = "middle";
    this.paintRuler(paper);
    sight.rows.forEach((row, place) => this.paintRow(paper, row, RULER + place * SPAN_ROW));
    this.paintLabels(paper);
    this.paintMarks(paper, chosen);
    if (chosen.measured) this.paintMeasure(paper, chosen.measured);
    this.paintOverview(paper);
  }

  /** @param {CanvasRenderingContext2D} paper */
  paintRuler(paper) {
    const { sight, colors } = this;
    const { unit, factor } = axisUnit(sight.to - sight.from < 1 ? sight.to - sight.from : sight.to);
    const marks = ticks(sight.from, sight.to, (sight.width - sight.left) / 96);
    const step = marks.length > 1 ? marks[1] - marks[0] : 1;
    paper.textAlign = "left";
    for (const mark of marks) {
      const x = Math.round(sight.x(mark)) + 0.5;
      paper.fillStyle = colors.line;
      paper.fillRect(x - 0.5, 16, 1, sight.height - OVERVIEW - 16);
      paper.fillStyle = colors.quiet;
      const text = `${tickText(mark, step, factor)} ${unit}`;
      if (x + 4 + paper.measureText(text).width < sight.width) paper.fillText(text, x + 4, 9);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} paper
   * @param {SpanRow} row
   * @param {number} top
   */
  paintRow(paper, row, top) {
    const { sight } = this;
    const { start, kind, name } = this.data;
    let painted = -1;
    let tone = "";
    for (let place = firstFrom(row.spans, start, sight.from - row.longest); place < row.spans.length; place++) {
      const span = row.spans[place];
      if (start[span] > sight.to) break;
      const x0 = Math.max(sight.left, sight.x(start[span]));
      const x1 = Math.min(sight.width, sight.x(this.data.end(span)));
      if (x1 < sight.left) continue;
      const wide = Math.max(1, x1 - x0 - (x1 - x0 > 4 ? 1 : 0));
      const pixel = Math.floor(x0);
      // Spans within one pixel are drawn as one stroke.
      if (wide <= 1 && pixel === painted && tone === kind[span]) continue;
      [painted, tone] = [pixel, kind[span]];
      paper.fillStyle = this.colors[SPAN_TONES[kind[span]]];
      paper.fillRect(wide <= 1 ? pixel : x0, top + 3, wide, SPAN_ROW - 6);
      if (wide > 44) this.paintName(paper, name[span], kind[span], x0, wide, top);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} paper
   * @param {string} name
   * @param {SpanKind} kind
   * @param {number} x
   * @param {number} wide
   * @param {number} top
   */
  paintName(paper, name, kind, x, wide, top) {
    const letters = Math.floor((wide - 10) / 6.4);
    paper.fillStyle = kind === "overhead" || kind === "pass" ? this.colors.ink : this.colors.paper; // on grey
    paper.textAlign = "left";
    paper.save();
    paper.beginPath();
    paper.rect(x, top, wide - 4, SPAN_ROW);
    paper.clip();
    paper.fillText(shortened(name, Math.max(letters, 4)), x + 5, top + SPAN_ROW / 2);
    paper.restore();
  }

  /** @param {CanvasRenderingContext2D} paper */
  paintLabels(paper) {
    const { sight, colors } = this;
    paper.fillStyle = colors.paper;
    paper.fillRect(0, RULER, sight.left - 1, sight.height - RULER - OVERVIEW);
    paper.textAlign = "left";
    const letters = sight.left < 70 ? 8 : 13;
    sight.rows.forEach((row, place) => {
      paper.fillStyle = row.depth ? colors.quiet : colors.ink;
      const text = row.depth && sight.rows[place - 1]?.lane === row.lane ? `  depth ${row.depth}` : this.data.lanes[row.lane];
      paper.fillText(shortened(text, letters), 0, RULER + place * SPAN_ROW + SPAN_ROW / 2);
    });
  }

  /**
   * @param {CanvasRenderingContext2D} paper
   * @param {number} span
   * @param {string} color
   * @param {number} thick
   */
  outline(paper, span, color, thick) {
    const { sight } = this;
    const top = sight.top(span);
    const x0 = Math.max(sight.left, sight.x(this.data.start[span]));
    const x1 = Math.min(sight.width, sight.x(this.data.end(span)));
    if (x1 < sight.left || x0 > sight.width) return;
    paper.strokeStyle = color;
    paper.lineWidth = thick;
    paper.strokeRect(x0 - 1, top + 1.5, Math.max(2, x1 - x0) + 1, SPAN_ROW - 3);
    // A span that is too thin to be visible has a pointer above its lane.
    if (x1 - x0 > 6) return;
    paper.fillStyle = color;
    paper.beginPath();
    paper.moveTo(x0 - 4, top - 3);
    paper.lineTo(x0 + 5, top - 3);
    paper.lineTo(x0 + 0.5, top + 3);
    paper.fill();
  }

  /**
   * @param {CanvasRenderingContext2D} paper
   * @param {Chosen} chosen
   */
  paintMarks(paper, { marked, cursor, found }) {
    const { colors } = this;
    for (const span of marked.slice(0, 2000)) this.outline(paper, span, colors.ink, 2);
    if (cursor >= 0 && (found || document.activeElement === this.canvas)) {
      paper.setLineDash([3, 2]);
      this.outline(paper, cursor, colors.accent, 2);
      paper.setLineDash([]);
    }
  }

  /**
   * @param {CanvasRenderingContext2D} paper
   * @param {[number, number]} times
   */
  paintMeasure(paper, [low, high]) {
    const { sight } = this;
    const [x0, x1] = [Math.max(sight.left, sight.x(low)), Math.min(sight.width, sight.x(high))];
    if (x1 < sight.left || x0 > sight.width) return;
    paper.globalAlpha = 0.22;
    paper.fillStyle = this.colors.accent;
    paper.fillRect(x0, 16, Math.max(1, x1 - x0), sight.height - OVERVIEW - 16);
    paper.globalAlpha = 1;
    paper.fillRect(x0, 16, 1, sight.height - OVERVIEW - 16);
    paper.fillRect(x1 - 1, 16, 1, sight.height - OVERVIEW - 16);
  }

  /** @param {CanvasRenderingContext2D} paper */
  paintOverview(paper) {
    const { sight, colors } = this;
    const top = sight.height - OVERVIEW + 4;
    const wide = sight.width - sight.left;
    paper.fillStyle = colors.line;
    paper.fillRect(sight.left, top, wide, 4);
    paper.fillStyle = colors.quiet;
    paper.fillRect(sight.left + (sight.from / this.data.total) * wide, top, Math.max(3, ((sight.to - sight.from) / this.data.total) * wide), 4);
  }
}
