// The captured tensors. Maps are unpacked when they are first shown, so that the page is ready soon.

import { unzipped } from "../payload.js";
import { metricOf, namedFormat, unpackTensor } from "./values.js";

export const LARGEST_CODE = 65532;
const NOT_FINITE = { 65533: -Infinity, 65534: Infinity, 65535: NaN };
const MAPS_KEPT = 12; // of tensors and samples

export const chunkText = (chunk) => document.getElementById(`chunk-${chunk}`).textContent;

// The codes of one side of a tensor: channels x height x width.
class SideMap {
  /**
   * @param {Uint16Array} codes
   * @param {{low: number, high: number}} ends
   */
  constructor(codes, { low, high }) {
    // Halves, because the difference of two large numbers may be infinite.
    this.codes = codes;
    this.low = low;
    this.step = 2 * (high / 2 / LARGEST_CODE - low / 2 / LARGEST_CODE);
  }

  value(place) {
    const code = this.codes[place];
    return code <= LARGEST_CODE ? this.low + this.step * code : NOT_FINITE[code];
  }
}

// The maps of a tensor for one sample, of one or both models. Channels of a single value each form one picture.
export class TensorMaps {
  /**
   * @param {MapPayload} about
   * @param {{reference?: SideMap, candidate?: SideMap}} sides
   */
  constructor(about, { reference, candidate }) {
    const { height, width, channels } = about;
    this.about = about;
    this.reference = reference;
    this.candidate = candidate;
    this.low = about.low;
    this.high = about.high;
    this.isStrip = height * width === 1 && channels > 1;
    /** The largest difference, computed when it is first needed. */
    this.most = /** @type {number | undefined} */ (undefined);
    this.width = this.isStrip ? channels : width;
    this.height = height;
    this.count = this.isStrip ? 1 : channels;
    this.size = this.width * this.height;
    this.numbers = about.numbers;
  }

  get sides() {
    return [this.reference, this.candidate].filter(Boolean);
  }

  // The least difference that the codes can represent.
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

  // The ends of the middle part of all finite values: of all of them for 1.
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
  /** @param {ActivationsPayload} payload */
  constructor(payload) {
    this.model = payload.model;
    this.reference = payload.reference;
    this.samples = payload.samples;
    const format = namedFormat(payload.format);
    this.tensors = payload.tensors.map((tensor) => unpackTensor(tensor, format));
    this.kept = new Map();
    this.two = this.reference !== "";
  }

  // The tensor to show first: one that is not finite, otherwise the one with the largest error.
  get opening() {
    const broken = this.tensors.findIndex(({ range }) => range.nan + range.inf > 0);
    const noise = this.tensors.map((tensor) => metricOf(tensor, "snr_db"));
    const furthest = noise.reduce((best, db, place) => (db < (noise[best] ?? Infinity) ? place : best), -1);
    return Math.max(0, broken < 0 ? furthest : broken);
  }

  named(name) {
    return this.tensors.findIndex((tensor) => tensor.name === name);
  }

  /**
   * The samples for which a tensor has maps.
   * @param {number} tensor
   */
  samplesOf(tensor) {
    return [...new Set(this.tensors[tensor].maps.map(({ sample }) => sample))];
  }

  /**
   * The maps of a tensor; null where there are none. The latest ones are cached.
   * @param {number} tensor
   */
  maps(tensor, sample) {
    const key = `${tensor} ${sample}`;
    const unpacked = this.kept.get(key) ?? this.unpack(tensor, sample);
    this.kept.delete(key);
    this.kept.set(key, unpacked);
    if (this.kept.size > MAPS_KEPT) this.kept.delete(this.kept.keys().next().value);
    return unpacked;
  }

  /** @param {number} tensor */
  async unpack(tensor, sample) {
    const held = this.tensors[tensor].maps.filter((candidate) => candidate.sample === sample);
    if (!held.length) return null;
    const codes = new Map();
    const sides = {};
    for (const packed of held) {
      codes.set(packed.chunk, await this.codes(packed, codes.get(packed.over)));
      const same = ["channels", "height", "width"].every((name) => packed[name] === held[0][name]);
      if (same) sides[packed.side] = new SideMap(codes.get(packed.chunk), packed);
    }
    return new TensorMaps(held[0], sides);
  }

  // Unpack codes: low bytes, then high bytes, XORed with the codes of another map.
  async codes({ chunk }, over) {
    const bytes = new Uint8Array(await unzipped(chunkText(chunk)).arrayBuffer());
    const length = bytes.length >> 1;
    const codes = new Uint16Array(length);
    for (let place = 0; place < length; place++) codes[place] = bytes[place] | (bytes[length + place] << 8);
    if (over) for (let place = 0; place < length; place++) codes[place] ^= over[place];
    return codes;
  }
}
