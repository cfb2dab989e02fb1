// What is chosen on the axes of the parallel coordinates: for some of them a part, between 0 and 1, that points must be in.

class Brushes {
  constructor(changed) {
    Object.assign(this, { changed, parts: new Map() });
  }

  of(one) {
    return this.parts.get(one) ?? [0, 1];
  }

  set(one, low, high) {
    const [from, to] = [Math.max(0, Math.min(low, high)), Math.min(1, Math.max(low, high))];
    if (from <= 0 && to >= 1) this.parts.delete(one);
    else this.parts.set(one, [from, to]);
    this.changed();
  }

  clear(one) {
    if (one ? !this.parts.delete(one) : this.parts.size === 0) return;
    if (!one) this.parts.clear();
    this.changed();
  }

  keeps(row) {
    for (const [one, [low, high]] of this.parts) {
      const place = one.fraction(row);
      if (place === null || place < low - 1e-9 || place > high + 1e-9) return false;
    }
    return true;
  }

  // `from 2 to 8`, as a screen reader says it.
  words(one) {
    const [low, high] = this.of(one);
    if (!this.parts.has(one)) return "every value";
    const [from, to] = [one.at(low), one.at(high)];
    return from === to ? from : `${from} to ${to}`;
  }

  // Up and down move the upper end, with Shift the lower one: by a value of the axis, or a twentieth of it.
  key(one, event) {
    const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (["Escape", "Delete", "Backspace"].includes(event.key)) this.clear(one);
    else if (by) {
      const step = one.isText ? 1 / Math.max(1, one.texts.length - 1) : 0.05;
      const [low, high] = this.of(one);
      const move = (end) => Math.round((end + by * step) * 1e6) / 1e6;
      if (event.shiftKey) this.set(one, Math.min(move(low), high), high);
      else this.set(one, low, Math.max(move(high), low));
    } else return;
    event.preventDefault();
  }
}
