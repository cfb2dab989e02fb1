// The verdict in words, and for every profile and candidate the interval that led to it, against the chosen base.

function deciding(choice) {
  const { payload } = choice;
  return payload.profiles.flatMap((profile) => {
    const base = profile.subjects.indexOf(choice.base);
    const metric = profile.metrics.findIndex((one) => one.key === profile.decided_by);
    if (base < 0) return [];
    return profile.subjects.flatMap((subject, candidate) => {
      const verdict = verdictOf(profile, payload.texts, metric, base, candidate);
      return verdict ? [{ ...verdict, profile: profile.name, subject: payload.subjects[subject] }] : [];
    });
  });
}

const worstOf = (decisions) => WORST_FIRST.find((word) => decisions.some((one) => one.verdict === word));

// `half and tuned against main`, as the page was called, whichever report is the base.
function comparedTitle(choice) {
  const { subjects } = choice.payload;
  const others = subjects.filter((_, place) => place !== choice.base).map((one) => one.label);
  const listed = others.length > 3 ? `${others.length} reports` : others.length > 1 ? `${others.slice(0, -1).join(", ")} and ${others.at(-1)}` : others.join("");
  return `${listed} against ${subjects[choice.base].label}`;
}

function drawHeadline(host, choice) {
  const { payload } = choice;
  document.querySelector(".compared-head h1 bdi").textContent = comparedTitle(choice);
  const capital = (word) => word[0].toUpperCase() + word.slice(1);
  if (choice.base === 0) {
    const why = payload.why.replaceAll("->", "→");
    host.replaceChildren(verdictWord(payload.verdict, capital(payload.verdict)), " ", make("span", { class: "said" }, make("bdi", {}, why)));
    return;
  }
  const decisions = deciding(choice);
  const word = worstOf(decisions) ?? "incomparable";
  const why = decisions.length === 1 ? decisions[0].why : `the worst of ${decisions.length} verdicts`;
  host.replaceChildren(verdictWord(word, capital(word)), " ",
    make("span", { class: "said" }, make("bdi", {}, why)),
    make("span", { class: "quiet decided" }, "Looked at against ", named(payload.subjects[choice.base]),
      "; it was decided against ", named(payload.subjects[0]), ": ", verdictWord(payload.verdict), "."));
}

function drawDecision(host, choice) {
  const decisions = deciding(choice);
  const several = choice.payload.profiles.length > 1;
  const ratios = new RatioScale(decisions);
  const heads = [several && make("th", { scope: "col" }, "Profile"), make("th", { scope: "col" }, "Against ", named(choice.payload.subjects[choice.base])),
    make("th", { scope: "col" }, "Verdict"), make("th", { scope: "col", class: "n" }, "Ratio"), make("th", { scope: "col", class: "n" }, "Change"),
    make("th", { scope: "col", class: "plot" }, intervalAxis(ratios))];
  const rows = decisions.flatMap((one) => [
    make("tr", {}, ...[
      several && make("th", { scope: "row", class: "clip" }, make("bdi", {}, one.profile)),
      make("td", {}, named(one.subject)), make("td", {}, verdictWord(one.verdict)),
      make("td", { class: "n" }, make("b", {}, ratioText(one.ratio))), make("td", { class: "n" }, changeText(one.ratio)),
      make("td", { class: "plot" }, intervalBar(one, ratios)),
    ].filter(Boolean)),
    make("tr", { class: "why" }, make("td", { colspan: several ? 6 : 5 }, make("bdi", {}, one.why))),
  ]);
  host.replaceChildren(make("div", { class: "scroll" }, make("table", { class: "decisions" },
    make("thead", {}, make("tr", {}, ...heads.filter(Boolean))), make("tbody", {}, ...rows))));
}
