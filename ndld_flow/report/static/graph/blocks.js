// A graph folded into blocks, from `fold` in collect_graph.py: the options of a view whose nodes are blocks.

/** @import { GraphMode } from "./colours.js" */
/** @import { GraphOptions } from "./view.js" */

import { shortened } from "../elements.js";
import { count, counted } from "../quantities.js";

export class Blocks {
  /**
   * @param {BlockShapes} shapes
   * @param {{of: number[], head: number[]} | null} inner the blocks that these are made of; null for blocks of layers
   */
  constructor(shapes, inner) {
    this.of = shapes.of;
    this.head = shapes.head;
    if (inner) {
      const [of, head] = [this.of, this.head];
      this.of = inner.of.map((block) => of[block]);
      this.head = head.map((block) => inner.head[block]);
    }
    this.titles = shapes.titles;
    /** @type {number[][]} the layers of each block */
    this.members = shapes.titles.map(() => []);
    this.of.forEach((block, layer) => this.members[block].push(layer));
  }

  /**
   * The layers and terminals of a graph -> blocks and terminals.
   * @param {Iterable<number>} nodes
   */
  around(nodes) {
    const layers = this.of.length;
    return new Set(Array.from(nodes, (node) => (node < layers ? this.of[node] : node - layers + this.members.length)));
  }

  /**
   * @param {GraphOptions & {about: (layer: number) => string}} options of the whole graph
   * @param {(block: number) => void} open
   * @returns {Pick<GraphOptions, "name" | "type" | "about" | "second" | "pick" | "open" | "below">}
   */
  options(options, open) {
    /** @param {number} block */
    const title = (block) => this.titles[block] || options.type(this.head[block]);
    return {
      name: title,
      type: title,
      second: (block) => this.operators(block, options.type),
      about: (block) => this.members[block].length === 1 ? options.about(this.head[block])
        : `${shortened(title(block), 80)}\n${counted(this.members[block].length, "node")}: ${this.counted(block, options.type)}`,
      pick: (block) => (block < 0 ? options.pick?.(-1) : open(block)),
      open: (block) => {
        if (block < 0 || block >= this.members.length) return false;
        open(block);
        return true;
      },
      below: undefined,
    };
  }

  /**
   * The operators of a block, each once, without the one that is its title.
   * @param {number} block
   * @param {(layer: number) => string} type
   */
  operators(block, type) {
    const types = [...new Set(this.members[block].map(type))];
    return types.filter((name) => this.titles[block] || name !== type(this.head[block])).join(" · ");
  }

  /**
   * @param {number} block
   * @param {(layer: number) => string} type
   */
  counted(block, type) {
    const groups = Map.groupBy(this.members[block], type);
    return Array.from(groups, ([name, layers]) => (layers.length > 1 ? `${name} ×${count(layers.length)}` : name)).join(", ");
  }

  /**
   * The modes of a graph for its blocks; none if one of them cannot be added up.
   * @param {GraphMode[]} modes
   * @returns {GraphMode[]}
   */
  modes(modes) {
    const folded = modes.map((mode) => mode.ofBlocks?.(this));
    return folded.every((mode) => mode !== undefined) ? folded : [];
  }
}
