// Lines to copy, made where they are needed.

let copyBoxes = 0;

function copyBox(text) {
  const id = `copied-${copyBoxes++}`;
  const button = make("button", { type: "button", "data-copy": id, onclick: () => copy(button) }, "Copy");
  return make("div", { class: "with-copy" }, make("pre", { id }, make("bdi", {}, text)), button);
}

// As a POSIX shell takes it for one word.
const shellWord = (text) => (/^[\w@%+=:,./-]+(#\d+)?$/.test(text) ? text : `'${text.replaceAll("'", "'\"'\"'")}'`);
