// The page's data: base64, gzip, JSON; columns hold positions in one table of texts.

async function readPayload() {
  const text = document.getElementById("page-data").textContent;
  const bytes = Uint8Array.fromBase64
    ? Uint8Array.fromBase64(text)
    : Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return await new Response(plain).json();
}
