// Unpacking of the page's data, which `encoding.py` packs: base64, gzip, JSON, and lists in the form that compresses best.

/** @param {string} text */
function bytesOfBase64(text) {
  return Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/**
 * A response: ask it for `json()` or `arrayBuffer()`.
 * @param {string} text base64 of gzip
 */
export function unzipped(text) {
  return new Response(new Blob([bytesOfBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip")));
}

/**
 * A list of objects from a list for each of their fields.
 * @param {Record<string, any[]>} columns
 */
function rowsOf(columns) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, row) => {
    /** @type {Record<string, any>} */
    const object = {};
    for (const name of names) object[name] = columns[name][row];
    return object;
  });
}

/**
 * @param {number[]} counts
 * @param {any[]} items
 */
function listsOf(counts, items) {
  let at = 0;
  return counts.map((many) => items.slice(at, (at += many)));
}

/** @param {(number | null)[]} steps */
function sumsOf(steps) {
  let sum = 0;
  return steps.map((step) => (step === null ? null : (sum += step)));
}

/**
 * The value of a packed one; a list begins with the name of its form.
 * @param {any} packed
 * @param {string[]} texts
 * @returns {any}
 */
function unpacked(packed, texts) {
  if (packed === null || typeof packed !== "object") return packed;
  const inner = (/** @type {any} */ value) => unpacked(value, texts);
  if (!Array.isArray(packed)) return Object.fromEntries(Object.entries(packed).map(([name, value]) => [name, inner(value)]));
  const [form, ...parts] = packed;
  switch (form) {
    case "number": return Number(parts[0]);
    case "repeated": return new Array(parts[0]).fill(inner(parts[1]));
    case "sums": return sumsOf(parts);
    case "texts": return inner(parts[0]).map((/** @type {number | null} */ place) => (place === null ? null : texts[place]));
    case "lists": return listsOf(inner(parts[0]), inner(parts[1]));
    case "rows": return rowsOf(inner(parts[0]));
    default: return parts.map(inner);
  }
}

/**
 * The data of this page; `page_data.d.ts` declares those of each kind of page.
 * @returns {Promise<any>}
 */
export async function readPageData() {
  const [texts, data] = await unzipped(document.getElementById("page-data")?.textContent ?? "").json();
  return unpacked(data, texts);
}

// The base of a class whose objects have all fields of a view, beside its own methods. Its user declares the fields:
// `extends /** @type {new (view: V) => V} */ (Fields)`.
export class Fields {
  /** @param {object} view */
  constructor(view) {
    Object.assign(this, view);
  }
}
