// How numbers are written, and how elements and parts of cards are made. All that came from the server
// becomes text of an element here, never HTML.

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function scaled(value, units) {
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit + 1 < units.length) {
    value /= 1000;
    unit += 1;
  }
  return `${Number(value.toPrecision(3))} ${units[unit]}`.trimEnd();
}

export function amount(value) {
  return value === null || value === undefined ? "–" : scaled(value, ["", "k", "M", "G", "T"]);
}

export function size(value) {
  return scaled(value, ["B", "kB", "MB", "GB", "TB"]);
}

export function whole(value) {
  return value.toLocaleString("en");
}

export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

export function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// A rate as a person reads it: of the last three seconds, since single moments jump.
export function recent(ages, values) {
  const last = values.filter((value, at) => value !== null && ages[at] > ages.at(-1) - 3);
  return last.length ? last.reduce((sum, value) => sum + value) / last.length : 0;
}

export function numbers() {
  const list = make("dl", { className: "numbers" });
  return {
    list,
    update(pairs) {
      list.replaceChildren(...pairs.map(([name, value, more]) => make(
        "div", {}, make("dt", { textContent: name }),
        make("dd", {}, value, ...(more ? [" ", make("small", { textContent: more })] : [])),
      )));
    },
  };
}

export function fill() {
  const inner = make("div");
  return { element: make("div", { className: "fill" }, inner), update: (share) => { inner.style.width = percent(share).replace(" ", ""); } };
}
