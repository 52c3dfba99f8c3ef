// Elements, and charts over time. All that came from the server becomes text of an element, never HTML.

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

// A table; cells are texts or elements.
export function table({ head, rows }) {
  const row = (tag, cells) => make("tr", {}, ...cells.map((cell) => make(tag, {}, cell)));
  const body = make("tbody", {}, ...rows.map((cells) => row("td", cells)));
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, row("th", head)), body));
}

export const whole = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
const short = { notation: "compact", maximumSignificantDigits: 3 };
const amount = (value) => value?.toLocaleString("en", short) ?? "–";
const ago = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`);

function draw(svg, tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  svg.append(element);
  return element;
}

// The next of 1, 2, 5, 10, 20, … at or above a value.
function rounded(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value * 0.999);
}

// One line or two over time, with a dashed target where there is one.
export class LineChart {
  constructor({ title }) {
    this.legend = make("div", { className: "legend" });
    this.axis = make("div", { className: "axis" });
    this.begin = make("span");
    const plot = make("div", { className: "plot" }, this.axis);
    this.svg = draw(plot, "svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img" });
    this.svg.setAttribute("aria-label", title);
    const caption = make("figcaption", {}, this.begin, "now");
    this.element = make("figure", {}, make("h3", {}, title), this.legend, plot, caption);
    this.share = null;
    this.svg.onpointermove = (event) => this.point(event.offsetX / this.svg.clientWidth);
    this.svg.onpointerleave = () => this.point(null);
  }

  // `ages` are how many seconds ago the values were.
  update(ages, chart) {
    Object.assign(this, { ages, chart });
    this.draw();
  }

  point(share) {
    this.share = share;
    this.draw();
  }

  draw() {
    const { ages, share, svg } = this;
    const { lines, target, top } = this.chart;
    const known = lines.flatMap((line) => line.values).filter((value) => value !== null);
    this.element.hidden = !known.length;
    const highest = top || rounded(Math.max(...known, target ?? 0));
    const span = Math.max(ages[0] ?? 0, 1e-9);
    const x = (age) => (1 - age / span) * 100;
    const y = (value) => (1 - Math.min(value / highest, 1)) * 98 + 1;
    this.axis.replaceChildren(...[highest, highest / 2, 0].map((value) => make("span", {}, amount(value))));
    this.begin.textContent = ages.length > 1 ? ago(span) : "";
    svg.replaceChildren();
    for (const value of [0, highest / 2, highest]) draw(svg, "path", { class: "grid", d: `M0 ${y(value)}H100` });
    if (target !== null) draw(svg, "path", { class: "target", d: `M0 ${y(target)}H100` });
    // Where the server did not answer for a while there is a gap.
    const usual = span / Math.max(ages.length - 1, 1);
    lines.forEach(({ values }, line) => {
      const steps = values.map((value, at) => {
        const joined = at && values[at - 1] !== null && ages[at - 1] - ages[at] < 5 * usual;
        return value === null ? "" : `${joined ? "L" : "M"}${x(ages[at]).toFixed(2)} ${y(value).toFixed(1)}`;
      });
      draw(svg, "path", { class: ["first", "second"][line], d: steps.join("") || "M0 0" });
    });
    // The legend has the values of the moment that is pointed at, or of the last one.
    let at = ages.length - 1;
    if (share !== null && at >= 0) {
      at = Math.max(ages.findLastIndex((age) => x(age) <= share * 100), 0);
      draw(svg, "path", { class: "target", d: `M${x(ages[at])} 0V100` });
    }
    const words = lines.map(({ name, values }, line) => make(
      "span", { className: ["first", "second"][line] }, `${name} ${amount(values[at])}`,
    ));
    if (target !== null) words.push(make("span", {}, `target ${amount(target)}`));
    if (share !== null && at >= 0) words.push(make("span", {}, ago(ages[at])));
    this.legend.replaceChildren(...words);
  }
}
