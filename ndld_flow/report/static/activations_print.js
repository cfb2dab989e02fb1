// On paper: the statistics of the tensor that is looked at, as a plain table.

const CHANNELS_ON_PAPER = 64;

function channelsOnPaper(tensor) {
  const { channels } = tensor;
  const columns = channelColumns(tensor);
  const rows = [...channels.number.keys()].slice(0, CHANNELS_ON_PAPER);
  const text = (column, row) => String(column.format ? column.format(column.value(row), row) : column.value(row));
  return [
    make("h3", {}, `Channels${channels.number.length > CHANNELS_ON_PAPER ? `, the first ${CHANNELS_ON_PAPER} of ${channels.number.length}` : ""}`),
    make("table", { class: "dense" }, make("thead", {}, make("tr", {}, ...columns.map(({ label }) => make("th", { class: "n", scope: "col" }, label)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...columns.map((column) => make("td", { class: "n" }, text(column, row))))))),
  ];
}

function preparePaper(host, tensorNow) {
  beforePrinting.push(() => host.replaceChildren(...(tensorNow().channels.number.length ? channelsOnPaper(tensorNow()) : [])));
  afterPrinting.push(() => host.replaceChildren());
}
