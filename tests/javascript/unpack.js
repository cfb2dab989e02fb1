// A page without anything. Tests find `readPageData` in its global scope.

import { readPageData } from "../../ndld_flow/report/static/unpack.js";

export function start() {
  Object.assign(globalThis, { readPageData });
}
