// Numbers as people read them; the same rules as quantities.py.

function threeDigits(value) {
  const magnitude = Math.abs(value);
  if (magnitude >= 99.95) return Math.round(value).toLocaleString("en-US");
  if (magnitude >= 9.995) return value.toFixed(1);
  if (magnitude >= 0.9995 || magnitude === 0) return value.toFixed(2);
  return String(Number(value.toPrecision(3)));
}

function milliseconds(value) {
  const magnitude = Math.abs(value);
  if (magnitude > 0 && magnitude < 0.9995) return `${threeDigits(value * 1000)} µs`;
  return magnitude < 10000 ? `${threeDigits(value)} ms` : `${(value / 1000).toFixed(1)} s`;
}

const share = (fraction) => `${(fraction * 100).toFixed(1)} %`;

const count = (value) => value.toLocaleString("en-US");

function signedShare(fraction) {
  const percent = Math.abs(fraction * 100).toFixed(1);
  return `${fraction < 0 ? "−" : "+"}${percent} %`;
}

// Bytes in the binary unit that fits.
function size(value) {
  let power = 0;
  while (Math.abs(value) >= 1024 && power < 4) {
    value /= 1024;
    power += 1;
  }
  return power === 0 ? `${count(Math.round(value))} B` : `${threeDigits(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

// A count of operations: `1.20 G`, `340 M`.
function amount(value) {
  for (const [factor, sign] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= factor) return `${threeDigits(value / factor)} ${sign}`;
  }
  return count(value);
}
