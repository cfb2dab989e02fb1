// `/` goes to the filter nearest to what is being read.

function nearestFilter() {
  const fields = [...document.querySelectorAll(".tools input[type=search]")].filter((field) => field.offsetParent);
  const far = (field) => Math.abs(field.getBoundingClientRect().top - innerHeight / 3);
  return fields.sort((a, b) => far(a) - far(b))[0];
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, textarea, select")) return;
  const field = nearestFilter();
  if (!field) return;
  event.preventDefault();
  field.focus();
  field.select();
});
