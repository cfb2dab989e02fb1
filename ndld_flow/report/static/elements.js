// Elements from text only: nothing here ever parses markup, so no name can become any.

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

export const make = (tag, properties = {}, ...children) =>
  fill(document.createElement(tag), properties, children);

export const draw = (tag, properties = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

// Both ends of a long name tell something; its middle can wait for the detail below.
export function shortened(text, limit) {
  if (text.length <= limit) return text;
  const tail = Math.floor(limit / 3);
  return `${text.slice(0, limit - tail - 1)}…${text.slice(-tail)}`;
}
