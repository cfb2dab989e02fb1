// Sets the theme before the first paint. Without storage (file://, private windows) a choice lasts as long as the page.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const remembered = () => {
    try { return localStorage.getItem("ndld-flow-theme"); } catch { return null; }
  };
  /** @param {string} theme */
  const remember = (theme) => {
    try { localStorage.setItem("ndld-flow-theme", theme); } catch { /* not remembered */ }
  };
  const chosen = remembered();
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  document.addEventListener("click", (event) => {
    if (!(event.target instanceof Element && event.target.closest("#theme"))) return;
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
    remember(root.dataset.theme);
  });
})();
