// What cards are made of.

import { make, percent } from "./words.js";

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
