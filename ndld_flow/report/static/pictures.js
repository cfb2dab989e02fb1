// Pictures are drawn when they come near the screen, or when the browser has nothing else to do, and all before printing.

const pictures = new Set();

// Calls `drawing(width)` when the host is near, and again whenever its width or the theme changes.
class Picture {
  constructor(host, drawing) {
    Object.assign(this, { host, drawing, width: 0, wanted: false });
    new ResizeObserver(() => this.wanted && this.draw()).observe(host);
    const sight = new IntersectionObserver((seen) => {
      if (!seen.some((one) => one.isIntersecting)) return;
      sight.disconnect();
      this.want();
    }, { rootMargin: "400px" });
    sight.observe(host);
    pictures.add(this);
    pictureQueue();
  }

  want() {
    this.wanted = true;
    this.draw();
  }

  draw() {
    const width = Math.round(this.host.clientWidth);
    if (width === 0 || width === this.width) return;
    this.width = width;
    this.drawing(width);
  }

  again() {
    if (!this.wanted) return;
    this.width = 0;
    this.draw();
  }
}

let pictureTurn = 0;

function pictureQueue() {
  const later = globalThis.requestIdleCallback ?? ((act) => setTimeout(act, 200));
  if (!pictureTurn) pictureTurn = later(drawOneWaiting, { timeout: 5000 });
}

// One at a time, so that scrolling never waits for more. What is hidden waits until it is shown.
function drawOneWaiting() {
  pictureTurn = 0;
  const waiting = [...pictures].find((picture) => !picture.wanted && picture.host.clientWidth);
  if (!waiting) return;
  waiting.want();
  pictureQueue();
}

const drawAtWidth = (host, drawing) => new Picture(host, drawing);

function drawAllPictures() {
  for (const picture of pictures) picture.want();
}

// A canvas holds colours, not names of colours.
function redrawPictures() {
  for (const picture of pictures) picture.again();
}

new MutationObserver(redrawPictures).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawPictures);

// The colours of this place, as a canvas takes them.
function colorsAt(host, names) {
  const probe = make("span", { hidden: true });
  host.append(probe);
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}
