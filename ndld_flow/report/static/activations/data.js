// What was captured. Maps are unpacked when they are looked at: the page is ready before, however many it holds.

import { unzipped } from "../payload.js";
import { metricOf } from "./values.js";

export const LARGEST_CODE = 65532;
const NOT_FINITE = { 65533: -Infinity, 65534: Infinity, 65535: NaN };
const MAPS_KEPT = 12; // of tensors and samples

export const chunkText = (chunk) => document.getElementById(`chunk-${chunk}`).textContent;

// One side's codes of a tensor: channels x height x width.
class SideMap {
  constructor(codes, { low, high }) {
    // Halves: the difference of two large numbers may be infinite.
    this.codes = codes;
    this.low = low;
    this.step = 2 * (high / 2 / LARGEST_CODE - low / 2 / LARGEST_CODE);
  }

  value(place) {
    const code = this.codes[place];
    return code <= LARGEST_CODE ? this.low + this.step * code : NOT_FINITE[code];
  }
}

// A tensor's maps of one sample, of one or both models. What has a single row or column for each channel is one picture.
class TensorMaps {
  constructor(about, sides) {
    const { height, width, channels } = about;
    Object.assign(this, { about, ...sides, low: about.low, high: about.high, isStrip: height * width === 1 && channels > 1 });
    this.width = this.isStrip ? channels : width;
    this.height = height;
    this.count = this.isStrip ? 1 : channels;
    this.size = this.width * this.height;
    this.numbers = about.numbers;
  }

  get sides() {
    return [this.reference, this.candidate].filter(Boolean);
  }

  // What both sides can be told apart by, at the least.
  get resolution() {
    return this.candidate?.step ?? this.reference.step;
  }

  // The largest finite difference, in all channels or in one.
  largestDifference(channel = -1) {
    const { reference, candidate, size } = this;
    if (!reference || !candidate) return 0;
    const [from, to] = channel < 0 ? [0, candidate.codes.length] : [channel * size, (channel + 1) * size];
    let most = 0;
    for (let place = from; place < to; place++) {
      const [a, b] = [reference.codes[place], candidate.codes[place]];
      if (a <= LARGEST_CODE && b <= LARGEST_CODE) most = Math.max(most, Math.abs(reference.value(place) - candidate.value(place)));
    }
    return most;
  }

  // Between which values the middle part of all finite ones lies: all of them for 1.
  bounds(part, channel = -1) {
    const counts = new Uint32Array(LARGEST_CODE + 1);
    let total = 0;
    for (const { codes } of this.sides) {
      for (const code of channel < 0 ? codes : codes.subarray(channel * this.size, (channel + 1) * this.size)) {
        if (code > LARGEST_CODE) continue;
        counts[code] += 1;
        total += 1;
      }
    }
    if (!total) return [0, 0];
    const left = (total * (1 - part)) / 2;
    const first = (codes) => {
      let seen = 0;
      return codes.find((code) => { seen += counts[code]; return seen > left; });
    };
    const rising = Array.from(counts.keys());
    const ends = [first(rising), first(rising.reverse())];
    const { low, step } = this.sides[0];
    return ends.map((code) => low + step * code);
  }
}

export class ActivationsData {
  constructor(payload) {
    Object.assign(this, payload);
    this.kept = new Map();
    this.two = this.reference !== "";
  }

  // Where there is most to see: what is not finite, or else what is furthest off.
  get opening() {
    const broken = this.tensors.findIndex(({ range }) => range.nan + range.inf > 0);
    const noise = this.tensors.map((tensor) => metricOf(tensor, "snr_db"));
    const furthest = noise.reduce((best, one, place) => (one < (noise[best] ?? Infinity) ? place : best), -1);
    return Math.max(0, broken < 0 ? furthest : broken);
  }

  named(name) {
    return this.tensors.findIndex((tensor) => tensor.name === name);
  }

  // Samples that a tensor has maps of.
  samplesOf(tensor) {
    return [...new Set(this.tensors[tensor].maps.map(({ sample }) => sample))];
  }

  // null where there are none. What was looked at lately is at hand.
  maps(tensor, sample) {
    const key = `${tensor} ${sample}`;
    const found = this.kept.get(key) ?? this.unpack(tensor, sample);
    this.kept.delete(key);
    this.kept.set(key, found);
    if (this.kept.size > MAPS_KEPT) this.kept.delete(this.kept.keys().next().value);
    return found;
  }

  async unpack(tensor, sample) {
    const held = this.tensors[tensor].maps.filter((one) => one.sample === sample);
    if (!held.length) return null;
    const codes = new Map();
    const sides = {};
    for (const one of held) {
      codes.set(one.chunk, await this.codes(one, codes.get(one.over)));
      const same = ["channels", "height", "width"].every((name) => one[name] === held[0][name]);
      if (same) sides[one.side] = new SideMap(codes.get(one.chunk), one);
    }
    return new TensorMaps(held[0], sides);
  }

  // Low bytes, then high bytes, XORed with another map's.
  async codes({ chunk }, over) {
    const bytes = new Uint8Array(await unzipped(chunkText(chunk)).arrayBuffer());
    const length = bytes.length >> 1;
    const codes = new Uint16Array(length);
    for (let place = 0; place < length; place++) codes[place] = bytes[place] | (bytes[length + place] << 8);
    if (over) for (let place = 0; place < length; place++) codes[place] ^= over[place];
    return codes;
  }
}
