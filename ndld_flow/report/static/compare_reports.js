// How a report is shown wherever it occurs: its letter in its colour, and its name.

const badge = (subject) =>
  make("b", { class: `badge series series-${subject.series}`, title: subject.label }, subject.letter);

const named = (subject) =>
  make("span", { class: "report" }, badge(subject), " ", make("bdi", {}, shortened(subject.label, 40)));

const verdictWord = (word, text = word) => make("span", { class: `outcome verdict ${word}` }, text);

// Buttons of which one is chosen: arrow keys move, as in any radio group.
function chooser(name, label, options, choose) {
  const inputs = options.map(({ content, value }) => {
    const input = make("input", { type: "radio", name, value, onchange: () => choose(value) });
    return { input, element: make("label", {}, input, content) };
  });
  const element = make("fieldset", { class: "choice", role: "radiogroup", "aria-label": label }, make("span", { class: "quiet" }, label),
    ...inputs.map((one) => one.element));
  const show = (value) => {
    for (const { input } of inputs) input.checked = input.value === String(value);
  };
  return { element, show };
}

// What a metric is worth with its unit; the same rules as quantities.py.
function quantityText(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "ms") return milliseconds(value);
  if (unit === "bytes") return size(value);
  return `${threeDigits(value)} ${unit === "1/s" ? "/s" : unit}`.trim();
}

const signedMs = (value) => (value === 0 ? "±0" : `${value < 0 ? "−" : "+"}${milliseconds(Math.abs(value))}`);

function ratioText(ratio) {
  if (ratio === null || ratio === undefined) return "–";
  return `${ratio >= 0.9 && ratio <= 1.1 ? ratio.toFixed(3) : threeDigits(ratio)}×`;
}

function changeText(ratio) {
  if (ratio === null || ratio === undefined) return "";
  const percent = (ratio - 1) * 100;
  if (Math.abs(percent) < 0.05) return "±0 %";
  const digits = Math.abs(percent) >= 9.95 ? count(Math.round(Math.abs(percent))) : Math.abs(percent).toFixed(1);
  return `${percent < 0 ? "−" : "+"}${digits} %`;
}
