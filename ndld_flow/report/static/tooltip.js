// One small note beside the pointer, or beside what the keyboard points at.

const tooltip = {
  element: document.querySelector(".tooltip"),

  show(x, y, text) {
    const { element } = this;
    element.textContent = text;
    element.hidden = false;
    const { width, height } = element.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - width - 14 : x + 14;
    const top = Math.min(Math.max(4, y - height / 2), innerHeight - height - 4);
    element.style.transform = `translate(${Math.max(4, left)}px, ${top}px)`;
  },

  hide() {
    this.element.hidden = true;
  },
};
