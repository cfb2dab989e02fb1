// Rows of layers that do the same work: what each took in each report, and what changed from the base to the candidate.

const layerPlaces = (cell) => (Array.isArray(cell) ? cell : [cell]);

class ComparedRows {
  constructor(profile, texts, methods) {
    this.profile = profile;
    this.texts = texts;
    this.methods = methods;
    this.length = profile.rows.layers[0].length;
    this.times = profile.reports.map((report, place) => this.timesOf(report, place));
    this.sums = this.times.map((times) => times.reduce((sum, ms) => sum + (ms ?? 0), 0));
    this.verdicts = this.verdictsByRow();
  }

  // Milliseconds of each row; null where the report has no layer in it.
  timesOf({ layers }, place) {
    return this.profile.rows.layers[place].map((cell) => {
      const places = layerPlaces(cell);
      return places.length ? places.reduce((sum, layer) => sum + layers.ms[layer], 0) : null;
    });
  }

  // For each candidate a column of positions among the layer verdicts, which are against the first base.
  verdictsByRow() {
    const { row, candidate } = this.profile.layer_verdicts;
    const found = new Map();
    row.forEach((one, position) => {
      if (!found.has(candidate[position])) found.set(candidate[position], new Map());
      found.get(candidate[position]).set(one, position);
    });
    return found;
  }

  // The row that a layer of one report is in.
  rowOf(place, layer) {
    this.homes ??= this.profile.rows.layers.map((cells) => new Map(cells.flatMap((cell, row) => layerPlaces(cell).map((one) => [one, row]))));
    return this.homes[place].get(layer) ?? -1;
  }

  has(place, row) {
    return this.times[place][row] !== null;
  }

  // The texts of a row's layers in one report, each once.
  said(key, place, row) {
    const column = this.profile.reports[place].layers[key];
    const found = layerPlaces(this.profile.rows.layers[place][row]).map((layer) => this.texts[column[layer]]);
    return [...new Set(found)].join(" + ");
  }

  onnxNodes(place, row) {
    const { onnx } = this.profile.reports[place].layers;
    return [...new Set(layerPlaces(this.profile.rows.layers[place][row]).flatMap((layer) => onnx[layer]))].map((text) => this.texts[text]);
  }
}

// The rows as one report is held against another.
class RowPair {
  constructor(rows, base, candidate) {
    Object.assign(this, { rows, base, candidate });
    this.length = rows.length;
  }

  from(row) {
    return this.rows.times[this.base][row];
  }

  to(row) {
    return this.rows.times[this.candidate][row];
  }

  both(row) {
    return this.rows.has(this.base, row) && this.rows.has(this.candidate, row);
  }

  either(row) {
    return this.rows.has(this.base, row) || this.rows.has(this.candidate, row);
  }

  delta(row) {
    return (this.to(row) ?? 0) - (this.from(row) ?? 0);
  }

  // Infinity for what is new, 0 for what is gone.
  ratio(row) {
    if (!this.both(row)) return this.rows.has(this.candidate, row) ? Infinity : 0;
    return this.to(row) / this.from(row);
  }

  // Of whichever of the two has the row, the base first.
  said(key, row) {
    return this.rows.said(key, this.rows.has(this.base, row) ? this.base : this.candidate, row);
  }

  change(key, row) {
    if (!this.both(row)) return this.said(key, row);
    const [before, after] = [this.rows.said(key, this.base, row), this.rows.said(key, this.candidate, row)];
    return before === after ? before : `${before || "–"} → ${after || "–"}`;
  }

  // What one of the two does not record may be the same in both.
  changed(key, row) {
    if (!this.both(row)) return false;
    const [before, after] = [this.rows.said(key, this.base, row), this.rows.said(key, this.candidate, row)];
    return before !== after && ![before, after].includes("unknown");
  }

  // The weaker of the two ways in which both came into the row; who is not in it came in by none.
  method(row) {
    const { methods, profile } = this.rows;
    return methods[Math.max(profile.rows.methods[this.base][row], profile.rows.methods[this.candidate][row])];
  }

  // Each report's confidence is that of its match with the row's first report.
  confidence(row) {
    const { confidences } = this.rows.profile.rows;
    return Math.min(confidences[this.base][row], confidences[this.candidate][row]);
  }

  // Worked out against the first base only; undefined otherwise.
  verdict(row) {
    if (this.base !== 0) return undefined;
    const position = this.rows.verdicts.get(this.candidate)?.get(row);
    if (position === undefined) return undefined;
    const { verdict, q_value, p_value } = this.rows.profile.layer_verdicts;
    return { verdict: this.rows.texts[verdict[position]], q: q_value[position], p: p_value[position] };
  }

  // Types of one report as charts take them.
  types(place) {
    const { layers } = this.rows.profile.reports[place];
    const found = new Map();
    layers.ms.forEach((ms, layer) => {
      const type = this.rows.texts[layers.type[layer]];
      const one = found.get(type) ?? { type, count: 0, ms: 0 };
      found.set(type, { type, count: one.count + 1, ms: one.ms + ms });
    });
    return [...found.values()];
  }

  // Layer time of one of the two by a text of its layers.
  timeBy(key, place) {
    const { layers } = this.rows.profile.reports[place];
    const sums = new Map();
    layers.ms.forEach((ms, layer) => {
      const text = this.rows.texts[layers[key][layer]];
      sums.set(text, (sums.get(text) ?? 0) + ms);
    });
    return sums;
  }

  // Largest change first: {text, before, after, delta}.
  deltasBy(key) {
    const [before, after] = [this.timeBy(key, this.base), this.timeBy(key, this.candidate)];
    return [...new Set([...before.keys(), ...after.keys()])]
      .map((text) => ({ text, before: before.get(text) ?? 0, after: after.get(text) ?? 0 }))
      .map((one) => ({ ...one, delta: one.after - one.before }))
      .sort((a, b) => Math.abs(b.delta) - Math.abs(a.delta));
  }
}

const rowsOfProfile = new WeakMap();

// Rows are worked out when a profile is first looked at.
function pairOf(view) {
  const { profile, payload } = view;
  if (!rowsOfProfile.has(profile)) rowsOfProfile.set(profile, new ComparedRows(profile, payload.texts, payload.methods));
  return new RowPair(rowsOfProfile.get(profile), view.base, view.candidate);
}
