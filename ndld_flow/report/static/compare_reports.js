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

const signedMs = (value) => (value === 0 ? "±0" : `${value < 0 ? "−" : "+"}${milliseconds(Math.abs(value))}`);
