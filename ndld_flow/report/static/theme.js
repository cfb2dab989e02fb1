// Light or dark, before the first paint. Storage may be refused (file://, private windows): then the choice lasts as long as the page.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const remembered = () => {
    try { return localStorage.getItem("ndld-flow-theme"); } catch { return null; }
  };
  const remember = (theme) => {
    try { localStorage.setItem("ndld-flow-theme", theme); } catch { /* not remembered */ }
  };
  const chosen = remembered();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#theme")) return;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
    remember(root.dataset.theme);
  });
})();
