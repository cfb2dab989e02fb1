// How much of the layer time of both has a partner in the other, and how it was found.

function coverageOf(pair, place) {
  const sums = new Map([...pair.rows.methods].map((method) => [method, 0]));
  for (let row = 0; row < pair.length; row++) {
    const ms = pair.rows.times[place][row];
    if (ms !== null) sums.set(pair.method(row), sums.get(pair.method(row)) + ms);
  }
  return sums;
}

function coverageBar(view, pair, place, pick) {
  const sums = coverageOf(pair, place);
  const total = pair.rows.sums[place] || 1;
  const bar = make("div", { class: "coverage-bar" });
  for (const [number, method] of pair.rows.methods.entries()) {
    const part = sums.get(method) / total;
    if (part === 0) continue;
    const text = `${method}: ${share(part)}, ${milliseconds(sums.get(method))}`;
    const piece = make("button", {
      type: "button", class: `method-${number}`, "aria-label": `Show ${text}`, onclick: () => pick(method),
      onpointermove: (event) => tooltip.show(event.clientX, event.clientY, text), onpointerleave: () => tooltip.hide(),
    }, part > 0.16 ? `${method} ${share(part)}` : "");
    piece.style.flexGrow = part.toFixed(5);
    bar.append(piece);
  }
  const matched = 1 - sums.get("unmatched") / total;
  return make("tr", {}, make("th", { scope: "row" }, named(view.subject(place))),
    make("td", { class: "n" }, share(matched)), make("td", { class: "track" }, bar));
}

function coverageKeys(pair) {
  const [base, candidate] = [coverageOf(pair, pair.base), coverageOf(pair, pair.candidate)];
  const keys = [...pair.rows.methods.entries()].filter(([, method]) => base.get(method) || candidate.get(method));
  return make("p", { class: "small quiet coverage-keys" }, ...keys.map(([number, method]) =>
    make("span", { class: `method-${number}` }, method === "unmatched" ? method : `matched by ${method}`)));
}

function drawCoverage(host, view, pair, pick) {
  host.replaceChildren(make("h4", {}, "Layer time that has a partner in the other"),
    make("table", { class: "bars coverage" }, make("tbody", {},
      coverageBar(view, pair, view.base, pick), coverageBar(view, pair, view.candidate, pick))),
    coverageKeys(pair));
}
