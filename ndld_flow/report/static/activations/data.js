// The captured tensors. Maps are unpacked when they are first shown, so that the page is ready soon.

/** @import { Side } from "./state.js" */
/** @import { Tensor } from "./values.js" */

import { unzipped } from "../unpack.js";
import { metricOf, namedFormat } from "./values.js";

export const LARGEST_CODE = 65532;
/** @type {Record<number, number>} */
const NOT_FINITE = { 65533: -Infinity, 65534: Infinity, 65535: NaN };
const MAPS_KEPT = 12; // of tensors and samples

/** @param {number} chunk */
export const chunkText = (chunk) => document.getElementById(`chunk-${chunk}`)?.textContent ?? "";

// The codes of one side of a tensor: channels x height x width.
export class SideMap {
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

  /** @param {number} place */
  value(place) {
    const code = this.codes[place];
    return code <= LARGEST_CODE ? this.low + this.step * code : NOT_FINITE[code];
  }
}

// The maps of a tensor for one sample, of one or both models. Channels of a single value each form one picture.
export class TensorMaps {
  /**
   * @param {MapData} about
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
    /** @type {number | undefined} the largest difference, computed when it is first needed */
    this.most = undefined;
    this.width = this.isStrip ? channels : width;
    this.height = height;
    this.count = this.isStrip ? 1 : channels;
    this.size = this.width * this.height;
    this.numbers = about.numbers;
  }

  get sides() {
    return [this.reference, this.candidate].filter((side) => side !== undefined);
  }

  // The least difference that the codes can represent.
  get resolution() {
    return (this.candidate ?? this.reference)?.step ?? 0;
  }

  /**
   * The largest finite difference, in all channels or in one.
   * @param {number} [channel]
   */
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

  /**
   * The ends of the middle part of all finite values: of all of them for 1.
   * @param {number} part
   * @param {number} [channel]
   * @returns {[number, number]}
   */
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
    /** @param {number[]} codes */
    const first = (codes) => {
      let seen = 0;
      return codes.find((code) => { seen += counts[code]; return seen > left; }) ?? 0;
    };
    const rising = Array.from(counts.keys());
    const { low, step } = this.sides[0];
    return [low + step * first(rising), low + step * first(rising.reverse())];
  }
}

export class ActivationsData {
  /** @param {DrawnActivations} drawn */
  constructor(drawn) {
    this.model = drawn.model;
    this.reference = drawn.reference;
    this.samples = drawn.samples;
    const format = namedFormat(drawn.format);
    /** @type {Tensor[]} */
    this.tensors = drawn.tensors.map((tensor) => ({ ...tensor, format }));
    /** @type {Map<string, Promise<TensorMaps | null>>} */
    this.kept = new Map();
    this.two = this.reference !== "";
  }

  // The tensor to show first: one that is not finite, otherwise the one with the largest error.
  get opening() {
    const broken = this.tensors.findIndex(({ range }) => range.nan_count + range.inf_count > 0);
    const noise = this.tensors.map((tensor) => metricOf(tensor, "snr_db"));
    const furthest = noise.reduce((best, db, place) => (db < (noise[best] ?? Infinity) ? place : best), -1);
    return Math.max(0, broken < 0 ? furthest : broken);
  }

  /** @param {string | null} name */
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
   * @param {number} sample
   */
  maps(tensor, sample) {
    const key = `${tensor} ${sample}`;
    const unpacked = this.kept.get(key) ?? this.unpack(tensor, sample);
    this.kept.delete(key);
    this.kept.set(key, unpacked);
    if (this.kept.size > MAPS_KEPT) this.kept.delete([...this.kept.keys()][0]);
    return unpacked;
  }

  /**
   * @param {number} tensor
   * @param {number} sample
   */
  async unpack(tensor, sample) {
    const held = this.tensors[tensor].maps.filter((candidate) => candidate.sample === sample);
    if (!held.length) return null;
    /** @type {Map<number, Uint16Array>} */
    const chunks = new Map();
    /** @type {Partial<Record<Side, SideMap>>} */
    const sides = {};
    const { channels, height, width } = held[0];
    for (const packed of held) {
      const codes = await this.codes(packed.chunk, chunks.get(packed.over));
      chunks.set(packed.chunk, codes);
      const same = packed.channels === channels && packed.height === height && packed.width === width;
      if (same) sides[/** @type {Side} */ (packed.side)] = new SideMap(codes, packed);
    }
    return new TensorMaps(held[0], sides);
  }

  /**
   * Unpack codes: low bytes, then high bytes, XORed with the codes of another map.
   * @param {number} chunk
   * @param {Uint16Array | undefined} over
   */
  async codes(chunk, over) {
    const bytes = new Uint8Array(await unzipped(chunkText(chunk)).arrayBuffer());
    const length = bytes.length >> 1;
    const codes = new Uint16Array(length);
    for (let place = 0; place < length; place++) codes[place] = bytes[place] | (bytes[length + place] << 8);
    if (over) for (let place = 0; place < length; place++) codes[place] ^= over[place];
    return codes;
  }
}
