// Bring the page of a sweep to life.

async function start() {
  startConveniences();
  await readPayload();
  document.documentElement.dataset.ready = performance.now().toFixed(0);
}

start();
