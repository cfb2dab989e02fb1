// The samples of a timing pass with what there is to say of each: its process run, when it began, whether it stands out.

// Tukey's far fence, within each process run: three times the middle half's width beyond it.
function farFence(samples) {
  const ordered = [...samples].sort((a, b) => a - b);
  const at = (part) => ordered[Math.min(ordered.length - 1, Math.floor(part * ordered.length))];
  return at(0.75) + 3 * (at(0.75) - at(0.25));
}

const middleOf = (values) => [...values].sort((a, b) => a - b)[(values.length - 1) >> 1];

// A moving median of each run, at most 60 points: where it is going, without its outliers.
function movingMedian(samples) {
  const reach = Math.max(6, Math.round(samples.length / 10));
  const step = Math.max(1, Math.floor(samples.length / 60));
  const found = [];
  for (let pass = 0; pass < samples.length; pass += step) {
    found.push({ pass, value: middleOf(samples.slice(Math.max(0, pass - reach), pass + reach + 1)) });
  }
  return found;
}

// From the first to the last tenth of a run, relative; null for a run too short to have tenths.
function driftOf(samples) {
  const tenth = Math.floor(samples.length / 10);
  return tenth < 3 ? null : middleOf(samples.slice(-tenth)) / middleOf(samples.slice(0, tenth)) - 1;
}

class LatencySamples {
  constructor(profile) {
    this.runs = profile.runs;
    this.values = profile.runs.flat();
    this.runOf = profile.runs.flatMap((run, place) => run.map(() => place));
    this.first = [];
    profile.runs.reduce((first, run, place) => ((this.first[place] = first), first + run.length), 0);
    const fences = profile.runs.map(farFence);
    this.standsOut = this.values.map((value, place) => value > fences[this.runOf[place]]);
    this.outliers = this.standsOut.filter(Boolean).length;
    this.times = this.timesOf(profile);
  }

  // When each pass began, in ms after the first run of all; null where it is not told.
  timesOf({ runs, gaps_ns: gaps, started_s: started }) {
    if (!gaps?.length || gaps.some((own, run) => own.length !== runs[run].length)) return null;
    return runs.flatMap((run, place) => {
      let now = started[place] * 1000;
      return run.map((took, pass) => {
        const start = now + gaps[place][pass] / 1e6;
        now = start + took;
        return start;
      });
    });
  }

  // How far runs drift within themselves: the middle one of them.
  get drift() {
    const found = this.runs.map(driftOf).filter((one) => one !== null);
    return found.length ? middleOf(found) : null;
  }
}
