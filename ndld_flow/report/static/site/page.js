// The table of runs on the pages of a site: filter, order, details, and the links to reports.

/** @import { Column } from "../table.js" */

import { startConveniences } from "../conveniences.js";
import { byId, make, required } from "../elements.js";
import { readPayload } from "../payload.js";
import { TableModel, TableView } from "../table.js";

const SIGNS = /** @type {Record<string, string>} */ ({ passed: "✓", failed: "✕", inconclusive: "?" });

/** @param {number} seconds */
const time = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ");

/** @type {(href: string, text: string) => string | Node} */
const link = (href, text) => (href ? make("a", { href }, text) : text);

/**
 * @param {SiteRunsPayload} data
 * @returns {Column[]}
 */
function columns(data) {
  /** @type {(name: "recipe" | "outcome" | "model" | "machine" | "user" | "host" | "tags" | "metric" | "others") => (row: number) => string} */
  const text = (name) => (row) => data.texts[data[name][row]];
  /** @type {(name: "model" | "machine" | "user" | "host" | "tags", label: string, width: string, hidden: boolean) => Column} */
  const column = (name, label, width, hidden) => ({ key: name, label, width, value: text(name), hidden, about: text(name) });
  const some = (/** @type {number[]} */ places) => places.some((place) => data.texts[place] !== "");
  return [
    {
      key: "run", label: "Run", width: "minmax(194px, 1fr)", value: (row) => data.id[row], mono: true, hidden: false,
      element: (value, row) => link(data.report[row], value),
      about: (row) => (data.report[row] ? null : "The site does not have its report"),
    },
    {
      key: "recipe", label: "Recipe", width: "minmax(110px, 1fr)", value: text("recipe"), hidden: false,
      element: (value, row) => link(data.texts[data.page[row]], value),
    },
    {
      key: "outcome", label: "Outcome", width: "minmax(110px, 0.9fr)", value: text("outcome"), hidden: false,
      format: (value, row) => `${row < 0 ? "" : SIGNS[data.texts[data.tone[row]]]} ${value}`,
      tone: (row) => data.texts[data.tone[row]], about: text("outcome"),
    },
    {
      key: "metric", label: "Main metric", width: "minmax(150px, 1.1fr)", value: text("metric"), hidden: false,
      about: (row) => [`${text("metric")(row)} ${data.value[row]}`, text("others")(row)].filter((part) => part.trim()).join("\n"),
    },
    { key: "value", label: "Value", width: "minmax(84px, 0.5fr)", value: (row) => data.value[row], right: true, hidden: false },
    column("model", "Model", "minmax(110px, 1fr)", false),
    column("machine", "Machine", "minmax(120px, 1.2fr)", !some(data.machine)),
    column("user", "User", "minmax(70px, 0.5fr)", true),
    column("host", "Host", "minmax(90px, 0.6fr)", true),
    column("tags", "Tags", "minmax(80px, 0.6fr)", !some(data.tags)),
    { key: "commit", label: "Commit", width: "minmax(92px, 0.5fr)", value: (row) => data.commit[row], mono: true, hidden: true },
    {
      key: "started", label: "Started, UTC", width: "140px", value: (row) => data.started_s[row], numeric: true, hidden: false,
      format: (value) => time(value), csvLabel: "started (s since 1970)",
    },
    {
      key: "wall", label: "Took", width: "84px", value: (row) => data.wall_s[row], numeric: true, right: true, hidden: true,
      format: (value) => `${value} s`, csvLabel: "took (s)",
    },
  ];
}

/** @type {(data: SiteRunsPayload, model: TableModel) => (Node | string)[]} */
function describe(data, model) {
  const [row] = model.selected;
  if (model.selected.size !== 1) return [];
  const texts = (/** @type {number} */ place) => data.texts[place];
  const facts = [
    ["Run", make("span", {}, link(data.report[row], data.id[row]), data.report[row] ? "" : " (the site does not have its report)")],
    ["Outcome", texts(data.outcome[row])],
    ["Metrics", [`${texts(data.metric[row])} ${data.value[row]}`.trim(), texts(data.others[row])].filter(Boolean).join(", ")],
    ["Sweep", data.points[row] ? `${data.points[row]} points` : ""],
    ["Model", texts(data.model[row])],
    ["Machine", texts(data.machine[row])],
    ["By", [texts(data.user[row]), texts(data.host[row])].filter(Boolean).join("@")],
    ["Commit", data.commit[row]],
    ["Tags", texts(data.tags[row])],
  ].filter(([, value]) => value);
  return [make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]))];
}

// The filter that the address names: `#runs=recipe="detector"`.
function askedFilter() {
  const match = location.hash.match(/^#runs=(.+)$/);
  try {
    return match ? decodeURIComponent(match[1]) : "";
  } catch {
    return "";
  }
}

export async function start() {
  startConveniences();
  document.documentElement.classList.add("js");
  /** @type {SiteRunsPayload} */
  const data = await readPayload();
  const model = new TableModel(columns(data), data.id.length);
  const view = new TableView(required("runs"), model, {
    label: "runs", file: "runs.csv", describe: (selected) => describe(data, selected),
  });
  const show = () => {
    const filter = askedFilter();
    if (!filter) return;
    view.filter(filter);
    byId("runs").scrollIntoView();
  };
  addEventListener("hashchange", show);
  show();
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}
