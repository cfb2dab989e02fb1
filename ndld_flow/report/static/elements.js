// Elements are made from text only: nothing parses markup, so no name of a model can become markup.

/**
 * Sets attributes, adds listeners (`onclick`) and children. null, undefined and false leave an attribute out.
 * @template {Element} T
 * @param {T} element
 * @param {Record<string, unknown>} properties
 * @param {(Node | string)[]} children
 * @returns {T}
 */
function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), /** @type {EventListener} */ (value));
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

/**
 * An HTML element.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, unknown>} [properties]
 * @param {...(Node | string)} children
 */
export const make = (tag, properties = {}, ...children) =>
  fill(document.createElement(tag), properties, children);

/**
 * An SVG element.
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, unknown>} [properties]
 * @param {...(Node | string)} children
 */
export const draw = (tag, properties = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

/**
 * The element that the template left for a part of the page, null where it left none.
 * @param {string} name
 * @param {ParentNode} [root]
 * @returns {HTMLElement | null}
 */
export const live = (name, root = document) => root.querySelector(`[data-live="${name}"]`);

/**
 * The element that the template always leaves for a part of the page.
 * @param {string} name
 * @param {ParentNode} [root]
 */
export function required(name, root = document) {
  const element = live(name, root);
  if (!element) throw new Error(`the page has no element for ${name}`);
  return element;
}

/**
 * The element with an id that the template always has.
 * @param {string} id
 */
export function byId(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page has no element #${id}`);
  return element;
}

/**
 * All elements that a selector matches.
 * @param {string} selector
 * @param {ParentNode} [root]
 * @returns {HTMLElement[]}
 */
export const all = (selector, root = document) => [.../** @type {NodeListOf<HTMLElement>} */ (root.querySelectorAll(selector))];

/**
 * The element that an event happened in, or the nearest one around it that a selector matches.
 * @param {Event} event
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
export const around = (event, selector) => (event.target instanceof Element ? event.target.closest(selector) : null);

/**
 * A long text without its middle: both ends of a name carry more.
 * @param {string} text
 * @param {number} limit
 */
export function shortened(text, limit) {
  if (text.length <= limit) return text;
  const tail = Math.floor(limit / 3);
  return `${text.slice(0, limit - tail - 1)}…${text.slice(-tail)}`;
}
