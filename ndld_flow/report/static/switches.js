// A choice of a few, all in sight: buttons of which one is pressed.

function makeSwitch(label, choices, chosen, changed) {
  const buttons = Object.entries(choices).map(([value, text]) => make("button", {
    type: "button",
    "aria-pressed": String(value === chosen),
    onclick: () => {
      for (const [place, key] of Object.keys(choices).entries()) buttons[place].setAttribute("aria-pressed", String(key === value));
      changed(value);
    },
  }, text));
  return make("span", { class: "switch", role: "group", "aria-label": label }, make("span", { class: "quiet", "aria-hidden": "true" }, label), ...buttons);
}
