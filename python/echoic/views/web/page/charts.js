// Charts over time and bars of histograms.

import { amount, duration, make, whole } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 120;
// Room for the names of both axes.
const LEFT = 48;
const BOTTOM = 18;
const TOP = 8;

function draw(parent, tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  parent.append(element);
  return element;
}

// The next of 1, 2, 5, 10, 20, … at or above a value.
function rounded(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value * 0.999);
}

// Lines over time. `lines` has a name for each, whose class is "first" or "second".
export class LineChart {
  constructor(title, lines) {
    this.names = lines;
    this.legend = make("div", { className: "legend" });
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", title);
    this.element = make(
      "div", { className: "chart" }, make("h3", { textContent: title }), this.legend, this.svg,
    );
    this.ages = [];
    this.values = lines.map(() => []);
    this.limits = {};
    this.pointed = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => {
      this.pointed = null;
      this.draw();
    });
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  // `ages` are seconds, `values` a list of numbers for each line; `limits` may have a `target`,
  // which is a dashed line, and a `top`, the end of the axis.
  update(ages, values, limits = {}) {
    Object.assign(this, { ages, values, limits });
    this.draw();
  }

  point(event) {
    const first = this.ages[0];
    const share = (event.clientX - this.svg.getBoundingClientRect().left - LEFT) / (this.width - LEFT);
    const age = first + share * (this.ages.at(-1) - first);
    // The nearest moment.
    let nearest = 0;
    this.ages.forEach((one, index) => {
      if (Math.abs(one - age) < Math.abs(this.ages[nearest] - age)) nearest = index;
    });
    this.pointed = this.ages.length ? nearest : null;
    this.draw();
  }

  draw() {
    const { svg, ages } = this;
    this.width = svg.clientWidth;
    if (!this.width) return;
    svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    svg.replaceChildren();
    const target = this.limits.target ?? null;
    const all = this.values.flat().filter((value) => value !== null);
    const top = this.limits.top ?? rounded(Math.max(...all, target ?? 0, 0));
    const first = ages[0] ?? 0;
    const span = Math.max((ages.at(-1) ?? 0) - first, 1e-9);
    const x = (age) => LEFT + ((age - first) / span) * (this.width - LEFT - 2);
    const y = (value) => TOP + (1 - Math.min(value / top, 1)) * (HEIGHT - TOP - BOTTOM);
    for (const value of [0, top / 2, top]) {
      draw(svg, "line", { class: "grid", x1: LEFT, x2: this.width, y1: y(value), y2: y(value) });
      const label = draw(svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" });
      label.textContent = amount(value);
    }
    const begin = draw(svg, "text", { x: LEFT, y: HEIGHT - 4 });
    begin.textContent = ages.length > 1 ? `${duration(span)} ago` : "";
    const end = draw(svg, "text", { x: this.width, y: HEIGHT - 4, "text-anchor": "end" });
    end.textContent = "now";
    if (target !== null) draw(svg, "path", { class: "target", d: `M${LEFT} ${y(target)}H${this.width}` });
    // Where nothing was seen for a while there is no line.
    const usual = span / Math.max(ages.length - 1, 1);
    this.values.forEach((values, line) => {
      let path = "";
      let pen = "M";
      values.forEach((value, index) => {
        if (value === null) {
          pen = "M";
          return;
        }
        if (index && ages[index] - ages[index - 1] > 5 * usual) pen = "M";
        path += `${pen}${x(ages[index]).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = "L";
      });
      draw(svg, "path", { class: ["first", "second"][line], d: path || "M0 0" });
    });
    if (this.pointed !== null && this.pointed < ages.length) {
      const at = x(ages[this.pointed]);
      draw(svg, "line", { class: "cursor", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM });
    }
    this.tell(target);
  }

  // The values of the moment that is pointed at, or of the last one.
  tell(target) {
    const at = this.pointed !== null && this.pointed < this.ages.length ? this.pointed : this.ages.length - 1;
    const words = this.names.map((name, line) => make("span", {
      className: `key ${["first", "second"][line]}`,
      textContent: `${name} ${amount(this.values[line][at])}`,
    }));
    if (target !== null) words.push(make("span", { className: "key", textContent: `target ${amount(target)}` }));
    if (this.pointed !== null && at >= 0) {
      const ago = duration(this.ages.at(-1) - this.ages[at]);
      words.push(make("span", { className: "moment", textContent: `${ago} ago` }));
    }
    this.legend.replaceChildren(...words);
  }
}

// Bars, one below the other, so that their names can be read on a phone.
export class BarChart {
  constructor(title) {
    this.bars = make("div", { className: "bars" });
    this.element = make("div", { className: "chart" }, make("h3", { textContent: title }), this.bars);
    this.element.hidden = true;
  }

  // `counts` are pairs of a name and a count.
  update(counts) {
    this.element.hidden = !counts.length;
    const most = Math.max(...counts.map(([, count]) => count), 1);
    this.bars.replaceChildren(...counts.flatMap(([name, count]) => {
      const bar = make("div", { className: "bar" });
      bar.style.width = `${(count / most) * 100}%`;
      return [make("span", { className: "bound", textContent: name }), bar, make("span", { textContent: whole(count) })];
    }));
  }
}
