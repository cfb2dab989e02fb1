// Bring the page of a diff to life.

async function start() {
  startConveniences();
  diffTables(await readPayload());
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}

start();
