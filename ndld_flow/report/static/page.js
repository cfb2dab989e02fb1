// Bring the page to life: fill what the template left room for.

async function start() {
  startConveniences();
  const payload = await readPayload();
  const live = (name) => document.querySelector(`[data-live="${name}"]`);
  if (payload.profiles.length) {
    latencyDistribution(live("distribution"), payload.profiles);
    new PassesPlot(live("passes"), payload.profiles);
  }
  if (payload.findings?.severity.length) findingsTable(live("findings"), payload.findings, payload.texts);
  diffTables(payload);
  for (const [id, Part] of [["engines", EnginePart], ["layers", ProfilePart]]) {
    const whole = document.getElementById(id);
    if (whole) layerTabs(payload, whole, Part);
  }
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}

start();
