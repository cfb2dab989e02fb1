// The sections of a page: each folds at its heading, and the contents mark the one that is read.

import { all, make } from "./elements.js";

const CLOSED = "until-found"; // searching in the page opens a section that holds the text

/** A section whose content is in a box that can be hidden. */
class Section {
  /** @param {HTMLElement} element */
  constructor(element) {
    this.element = element;
    const heading = /** @type {HTMLElement} */ (element.querySelector(":scope > h2"));
    this.link = document.querySelector(`.bar nav a[href="#${CSS.escape(element.id)}"]`);
    this.body = make("div", { class: "section-body", id: `${element.id}-body` });
    this.body.append(...[...element.childNodes].filter((node) => node !== heading));
    element.append(this.body);
    this.button = make("button", { type: "button", class: "fold", "aria-controls": this.body.id, onclick: () => this.show(!this.isOpen) });
    this.button.append(...heading.childNodes);
    heading.append(this.button);
    this.body.addEventListener("beforematch", () => this.show(true));
    this.show(!this.link?.hasAttribute("data-closed"));
  }

  get isOpen() {
    return !this.body.hasAttribute("hidden");
  }

  /** @param {boolean} open */
  show(open) {
    if (open) this.body.removeAttribute("hidden");
    else this.body.setAttribute("hidden", CLOSED);
    this.button.setAttribute("aria-expanded", String(open));
  }
}

export class Sections {
  constructor() {
    const elements = all("main > section[id]").filter((element) => element.querySelector(":scope > h2"));
    this.sections = elements.map((element) => new Section(element));
    for (const { link, element } of this.sections) {
      link?.addEventListener("click", () => this.reveal(element));
    }
    this.markRead();
  }

  /**
   * Open the section and the tabs that hold an element.
   * @param {Element} element
   */
  reveal(element) {
    for (let pane = element.closest("[role=tabpanel]"); pane; pane = pane.parentElement?.closest("[role=tabpanel]") ?? null) pane.dispatchEvent(new Event("beforematch"));
    this.sections.find((section) => section.element.contains(element))?.show(true);
  }

  /**
   * Open all sections.
   * @returns {() => void} closes them again
   */
  openAll() {
    const closed = this.sections.filter((section) => !section.isOpen);
    for (const section of closed) section.show(true);
    return () => {
      for (const section of closed) section.show(false);
    };
  }

  // The section just below the bar, where a link of the contents scrolls to, is marked in the contents.
  markRead() {
    /** @type {Set<Element>} */
    const visible = new Set();
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) visible.add(target);
        else visible.delete(target);
      }
      const read = this.sections.find(({ element }) => visible.has(element));
      for (const section of this.sections) {
        if (section === read) section.link?.setAttribute("aria-current", "location");
        else section.link?.removeAttribute("aria-current");
      }
    }, { rootMargin: "-110px 0px -84% 0px" });
    for (const { element } of this.sections) observer.observe(element);
  }
}
