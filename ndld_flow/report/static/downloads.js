// CSV after RFC 4180: CRLF, quotes doubled. Text that a spreadsheet would take for a formula gets an apostrophe, as in
// csv_tables.py.

import { make } from "./elements.js";

/** @param {string | number} value */
function csvField(value) {
  if (typeof value === "number") return String(value);
  const text = /^\s*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** @param {(string | number)[][]} rows */
export const csvText = (rows) => rows.map((row) => `${row.map(csvField).join(",")}\r\n`).join("");

/**
 * Save a text as a file.
 * @param {string} name
 * @param {string} type the media type
 * @param {string} text
 */
export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
