// What is looked at: which profile, which report is the base, which one is held against it. Kept in the address.

const WORST_FIRST = ["incomparable", "regressed", "inconclusive", "improved", "unchanged"];

class Choice {
  constructor(payload) {
    this.payload = payload;
    this.profile = 0;
    this.base = 0;
    this.candidate = Math.min(1, payload.subjects.length - 1);
    this.followers = [];
  }

  follow(follower) {
    this.followers.push(follower);
  }

  // Base and candidate are never the same: who takes the other's place gives up its own.
  set({ profile = this.profile, base = this.base, candidate = this.candidate }) {
    if (base === candidate) {
      if (base !== this.base) candidate = this.base;
      else base = this.candidate;
    }
    Object.assign(this, { profile, base, candidate });
    this.remember();
    this.tell();
  }

  tell() {
    for (const follower of this.followers) follower(this);
  }

  nextBase(by) {
    const { length } = this.payload.subjects;
    this.set({ base: (this.base + by + length) % length });
  }

  // The address: `#layers&base=B&against=C&profile=2`, what goes without saying left out.
  remember() {
    const { subjects } = this.payload;
    const section = location.hash.slice(1).split("&").find((part) => !part.includes("="));
    const usual = this.base === 0 && this.candidate === 1 && this.profile === 0;
    const parts = [section, !usual && `base=${subjects[this.base].letter}`,
      !usual && subjects.length > 2 && `against=${subjects[this.candidate].letter}`,
      this.profile > 0 && `profile=${this.profile + 1}`];
    try {
      const fragment = parts.filter(Boolean).join("&");
      history.replaceState(null, "", fragment ? `#${fragment}` : location.href.split("#")[0]);
    } catch { /* an address that may not change forgets */ }
  }

  recall() {
    const given = new Map(location.hash.slice(1).split("&").map((part) => part.split("=")));
    const { subjects, profiles } = this.payload;
    const place = (key, usual) => {
      const found = subjects.findIndex((subject) => subject.letter === given.get(key));
      return found < 0 ? usual : found;
    };
    const base = place("base", 0);
    const profile = Math.min(Math.max(Number(given.get("profile") ?? 1) - 1 || 0, 0), Math.max(profiles.length - 1, 0));
    this.set({ profile, base, candidate: place("against", base === 0 ? 1 : 0) });
    const section = [...given.keys()].find((key) => key && given.get(key) === undefined);
    if (section && given.size > 1) document.getElementById(section)?.scrollIntoView();
  }
}

// One profile as it is looked at. Positions count within the profile, which may lack some of the reports.
class View {
  constructor(choice) {
    const { payload } = choice;
    this.payload = payload;
    this.texts = payload.texts;
    this.profile = payload.profiles[choice.profile];
    const at = (subject) => this.profile.subjects.indexOf(subject);
    this.base = Math.max(at(choice.base), 0);
    const wanted = at(choice.candidate);
    this.candidate = wanted < 0 || wanted === this.base ? Number(this.base === 0) : wanted;
    this.candidates = this.profile.subjects.map((_, place) => place).filter((place) => place !== this.base);
    this.first = this.base === 0; // the base that the comparison was made against
  }

  subject(place) {
    return this.payload.subjects[this.profile.subjects[place]];
  }

  report(place) {
    return this.profile.reports[place];
  }

  get deciding() {
    return this.profile.metrics.findIndex((metric) => metric.key === this.profile.decided_by);
  }

  verdict(metric, candidate) {
    return verdictOf(this.profile, this.texts, metric, this.base, candidate);
  }
}

const verdictPlaces = new WeakMap();

// One of the verdicts of a profile, found by metric, base and candidate; undefined where there is none.
function verdictOf(profile, texts, metric, base, candidate) {
  const columns = profile.verdicts;
  if (!verdictPlaces.has(profile)) {
    verdictPlaces.set(profile, new Map(columns.base.map((_, row) =>
      [`${columns.metric[row]}/${columns.base[row]}/${columns.candidate[row]}`, row])));
  }
  const row = verdictPlaces.get(profile).get(`${metric}/${base}/${candidate}`);
  if (row === undefined) return undefined;
  const numbers = Object.fromEntries(["base_value", "candidate_value", "ratio", "low", "high", "threshold"].map((key) => [key, columns[key][row]]));
  return {
    ...numbers,
    verdict: texts[columns.verdict[row]],
    why: texts[columns.why[row]].replaceAll("->", "→"),
  };
}
