// The layout of a graph from `graph_shape` in collect_graph.py: boxes, routes of edges, neighbours.
//
// Nodes 0 to layers - 1 are layers by position; inputs and outputs of the model follow.

/**
 * The position of the first corner of each edge, and of the end.
 * @param {number[]} counts
 */
function firstOf(counts) {
  let sum = 0;
  return Int32Array.from([0, ...counts], (many) => (sum += many));
}

export class GraphData {
  /** @param {GraphShape} graph */
  constructor(graph) {
    this.width = graph.width;
    this.height = graph.height;
    const [nodeWidth, nodeHeight] = graph.node;
    this.nodeWidth = nodeWidth;
    this.nodeHeight = nodeHeight;
    this.x = Int32Array.from(graph.x);
    this.y = Int32Array.from(graph.y);
    this.family = graph.family;
    this.layers = graph.family.length;
    this.terminals = [...graph.inputs, ...graph.outputs];
    this.inputs = graph.inputs.length;
    this.source = Int32Array.from(graph.source);
    this.target = Int32Array.from(graph.target);
    this.far = new Set(graph.far);
    this.back = new Set(graph.back);
    this.byOrder = graph.by_order;
    this.composite = new Set(graph.composite); // nodes that contain a graph
    this.constant = new Set(graph.constant);
    this.cornerX = Int32Array.from(graph.corner_x);
    this.cornerY = Int32Array.from(graph.corner_y);
    this.firstCorner = firstOf(graph.corners);
    /** @type {number[][]} the edges into each node */
    this.entering = Array.from(this.x, () => []);
    /** @type {number[][]} */
    this.leaving = Array.from(this.x, () => []);
    this.source.forEach((source, edge) => {
      this.leaving[source].push(edge);
      this.entering[this.target[edge]].push(edge);
    });
    /** @type {Map<string, number[]>} a coarse grid that finds the nodes near a point */
    this.cells = Map.groupBy(this.x.keys(), (node) => this.cellKey(this.x[node], this.y[node]));
  }

  get length() {
    return this.x.length;
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  cellKey(x, y) {
    return `${Math.floor(x / 256)},${Math.floor(y / 256)}`;
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  nodeAt(x, y) {
    for (const dx of [0, -1]) {
      for (const dy of [0, -1]) {
        for (const node of this.cells.get(this.cellKey(x + dx * 256, y + dy * 256)) ?? []) {
          const [right, down] = [x - this.x[node], y - this.y[node]];
          if (right >= 0 && down >= 0 && right <= this.nodeWidth && down <= this.nodeHeight) return node;
        }
      }
    }
    return -1;
  }

  /**
   * @param {number} node
   * @returns {[number, number]}
   */
  centre(node) {
    return [this.x[node] + this.nodeWidth / 2, this.y[node] + this.nodeHeight / 2];
  }

  /**
   * The nearest node in one direction; distance sideways counts three times.
   * @param {number} node
   * @param {number} dx
   * @param {number} dy
   */
  nearest(node, dx, dy) {
    const [x, y] = this.centre(node);
    let best = node;
    let least = Infinity;
    for (let other = 0; other < this.length; other++) {
      const [ox, oy] = this.centre(other);
      const along = (ox - x) * dx + (oy - y) * dy;
      const aside = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
      if (along > 1 && along + 3 * aside < least) [least, best] = [along + 3 * aside, other];
    }
    return best;
  }

  /**
   * Add the route of one edge to a Path2D: curves where two corners differ in x and y, otherwise lines.
   * @param {Path2D} path
   * @param {number} edge
   */
  trace(path, edge) {
    const first = this.firstCorner[edge];
    const end = this.firstCorner[edge + 1];
    if (end - first < 2) return;
    path.moveTo(this.cornerX[first], this.cornerY[first]);
    for (let place = first + 1; place < end; place++) {
      const [x, y] = [this.cornerX[place], this.cornerY[place]];
      const [fromX, fromY] = [this.cornerX[place - 1], this.cornerY[place - 1]];
      if (x === fromX || y === fromY) path.lineTo(x, y);
      else path.bezierCurveTo(fromX, (fromY + y) / 2, x, (fromY + y) / 2, x, y);
    }
  }

  /**
   * @param {Path2D} path
   * @param {number} edge
   */
  traceArrow(path, edge) {
    const last = this.firstCorner[edge + 1] - 1;
    if (last <= this.firstCorner[edge]) return;
    const [x, y] = [this.cornerX[last], this.cornerY[last]];
    const [dx, dy] = [Math.sign(x - this.cornerX[last - 1]), Math.sign(y - this.cornerY[last - 1])];
    const [ax, ay] = dy === 0 ? [dx, 0] : [0, dy];
    path.moveTo(x, y);
    path.lineTo(x - 6 * ax - 3 * ay, y - 6 * ay + 3 * ax);
    path.lineTo(x - 6 * ax + 3 * ay, y - 6 * ay - 3 * ax);
    path.closePath();
  }
}
