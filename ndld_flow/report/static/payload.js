// Unpacking of the page's data: base64, gzip, JSON.

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
 * The data of this page; `page_data.d.ts` declares those of each kind of page.
 * @returns {Promise<any>}
 */
export async function readPayload() {
  return await unzipped(document.getElementById("page-data")?.textContent ?? "").json();
}
