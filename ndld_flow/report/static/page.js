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
  let showLayer;
  for (const [id, Part] of [["engines", EnginePart], ["layers", ProfilePart]]) {
    const whole = document.getElementById(id);
    if (whole) showLayer = layerTabs(payload, whole, Part);
  }
  searchTrials(payload);
  searchLinks(depthParts(payload), showLayer);
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}

start();
