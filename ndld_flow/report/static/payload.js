// The page's data: base64, gzip, JSON; columns hold positions in one table of texts.

function bytesOfBase64(text) {
  return Uint8Array.fromBase64 ? Uint8Array.fromBase64(text) : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

// A Response: ask it for json() or arrayBuffer().
export function unzipped(text) {
  return new Response(new Blob([bytesOfBase64(text)]).stream().pipeThrough(new DecompressionStream("gzip")));
}

export async function readPayload() {
  return await unzipped(document.getElementById("page-data").textContent).json();
}
