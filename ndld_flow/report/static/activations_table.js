// Statistics of a tensor's channels: sorted, filtered, saved; a row opens its channel.

const CHANNEL_NUMBERS = [
  ["minimum", "Least"], ["maximum", "Most"], ["mean", "Mean"], ["rms", "RMS"], ["difference", "RMS difference"],
];

function channelColumns({ channels }) {
  const tones = { nonfinite: "bad" };
  const most = (name) => Math.max(...channels[name].filter(Number.isFinite).map(Math.abs), 0);
  const measured = CHANNEL_NUMBERS.filter(([name]) => channels[name].some((value) => value !== null)).map(([key, label]) => {
    const top = most(key);
    const heat = ["rms", "difference"].includes(key) && top > 0 ? (row) => (Number.isFinite(channels[key][row]) ? channels[key][row] / top : 0) : undefined;
    return { key, label, width: key === "difference" ? "minmax(132px, 1fr)" : "minmax(104px, 1fr)", numeric: true, right: true, heat, measure: "mean", value: (row) => channels[key][row], format: (value) => (value === null ? "–" : valueText(value, 5)), csv: (row) => channels[key][row] ?? "" };
  });
  const counted = [["nonfinite", "Not finite"], ["saturated", "Saturated"]].map(([key, label]) => ({
    key, label, width: "minmax(96px, 0.8fr)", numeric: true, right: true, measure: "sum", value: (row) => channels[key][row], format: count, tone: (row) => (channels[key][row] ? tones[key] : ""),
  }));
  return [{ key: "channel", label: "Channel", width: "96px", numeric: true, position: true, right: true, value: (row) => channels.number[row] }, ...measured, ...counted];
}

class ChannelTable {
  // `pick(channel)` hears of a row that was chosen here.
  constructor(host, pick) {
    Object.assign(this, { host, pick });
  }

  show(tensor) {
    if (this.tensor === tensor) return;
    this.tensor = tensor;
    this.table = null;
    const { number } = tensor.channels;
    if (!number.length) {
      this.host.replaceChildren(make("p", { class: "quiet small" }, "This tensor has no channels to tell apart."));
      return;
    }
    const model = new TableModel(channelColumns(tensor), number.length);
    const file = `${tensor.name.replace(/[^\w.-]+/g, "-").slice(0, 80) || "tensor"}-channels.csv`;
    this.table = new TableView(this.host, model, {
      label: "channels", file, describe: () => (model.selected.size > 1 ? selectionSummary(model) : []),
      selected: (rows) => !this.following && rows.length === 1 && this.pick(number[rows[0]]),
    });
  }

  // A channel was opened elsewhere; -1 for none.
  follow(channel) {
    if (!this.table) return;
    const row = this.tensor.channels.number.indexOf(channel);
    const { selected } = this.table.model;
    if (row < 0 ? selected.size !== 1 : selected.size === 1 && selected.has(row)) return;
    this.following = true;
    if (row < 0) {
      this.table.model.clear();
      this.table.refresh();
    } else this.table.choose([row]);
    this.following = false;
  }
}
