// Links from one part of a model to another: real ones, so that they can be copied and opened beside.

class ModelLinks {
  constructor(data, places) {
    Object.assign(this, { data, places, scope: 0 }); // scope: the one that is shown
  }

  to(place, text, title = "") {
    return make("a", { href: this.places.write(place), title: title || null }, make("bdi", {}, shortened(text, 80)));
  }

  node(node) {
    const { data } = this;
    const scope = data.scopeOf[node];
    const link = this.to({ scope, node }, data.nameOf(node), data.nameOf(node));
    const where = scope === this.scope ? [] : [" in ", make("bdi", {}, shortened(data.scopes[scope].address || "the model", 60))];
    return make("span", {}, link, " ", make("span", { class: "quiet" }, make("bdi", {}, data.nodes.operator[node]), ...where));
  }

  tensor(tensor) {
    const { data } = this;
    const link = this.to({ scope: this.scope, tensor }, data.tensors.name[tensor] || "(no name)", data.tensors.name[tensor]);
    return make("span", {}, link, " ", make("span", { class: "quiet" }, make("bdi", {}, data.tensorText(tensor))));
  }

  scopeLink(scope, text = this.data.scopes[scope].address || "model") {
    return this.to({ scope }, text);
  }

  // At most so many at once, the rest on demand.
  list(items, item, most = 12) {
    const list = make("ul", {}, ...items.slice(0, most).map((one) => make("li", {}, item(one))));
    if (items.length <= most) return list;
    const more = make("button", { type: "button", onclick: () => {
      more.remove();
      list.append(...items.slice(most, 2000).map((one) => make("li", {}, item(one))));
    } }, `${count(items.length - most)} more`);
    return make("div", {}, list, more);
  }
}

const factRow = (name, ...value) => make("tr", {}, make("th", { scope: "row" }, make("bdi", {}, name)), make("td", {}, ...value));

const factTable = (...rows) => make("table", { class: "facts" }, make("tbody", {}, ...rows));

// All of a long text when it is asked for.
function longText(text, limit = 140) {
  if (text.length <= limit) return make("bdi", {}, text);
  const shown = make("bdi", {}, `${text.slice(0, limit)}…`);
  const more = make("button", { type: "button", onclick: () => {
    shown.textContent = text;
    more.remove();
  } }, "all of it");
  return make("span", {}, shown, " ", more);
}
