// The browser of a table's items: keys on the left, the chosen item on the right.

import { amount, make, size, whole } from "./words.js";

const PAGE = 50;

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  const told = await answer.json();
  if (told.error !== undefined) throw new Error(told.error);
  return told;
}

export class ItemBrowser {
  constructor(table) {
    this.table = table;
    this.count = PAGE;
    this.chosen = null;
    this.keys = make("div", { className: "keys scroll" });
    this.item = make("div", { className: "item" });
    this.above = make("div", { className: "quiet" });
    const again = make("button", { type: "button", textContent: "List again", onclick: () => this.list() });
    const more = make("button", {
      type: "button",
      textContent: "List more",
      onclick: () => {
        this.count *= 4;
        this.list();
      },
    });
    this.element = make(
      "details", {}, make("summary", { textContent: "Items" }), this.above,
      make("div", { className: "browser" }, make("div", {}, this.keys, again, " ", more), this.item),
    );
    this.element.addEventListener("toggle", () => {
      if (this.element.open && !this.keys.childElementCount) this.list();
    });
  }

  async list() {
    try {
      this.show(await ask("items", { table: this.table, count: this.count }));
    } catch (error) {
      this.above.replaceChildren(make("p", { className: "error", textContent: error.message }));
    }
  }

  show(told) {
    this.above.textContent = told.total
      ? `${whole(told.items.length)} of ${whole(told.total)} items. Looking at one does not count as sampling it.`
      : "The table is empty.";
    const rows = told.items.map((item) => {
      const button = make("button", {
        type: "button", textContent: item.key, ariaPressed: String(item.key === this.chosen),
        onclick: () => this.open(item.key, button),
      });
      return make(
        "tr", {}, make("td", {}, button), make("td", { className: "right", textContent: amount(item.priority) }),
        make("td", { className: "right", textContent: whole(item.times_sampled) }),
        make("td", { className: "right", textContent: whole(item.version) }),
      );
    });
    const names = ["key", "priority", "sampled", "version"];
    const head = names.map((name, at) => make("th", { className: at ? "right" : "", textContent: name }));
    this.keys.replaceChildren(make(
      "table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows),
    ));
  }

  async open(key, button) {
    for (const other of this.keys.querySelectorAll("button")) other.ariaPressed = "false";
    button.ariaPressed = "true";
    this.chosen = key;
    try {
      const told = await ask("item", { table: this.table, key });
      if (this.chosen !== key) return;
      const parts = told.leaves.map(leaf);
      if (told.more_leaves) parts.push(make("p", { textContent: `and ${whole(told.more_leaves)} more leaves` }));
      this.item.replaceChildren(make("h3", { textContent: `Item ${key}` }), ...parts);
    } catch (error) {
      this.item.replaceChildren(make("p", { className: "error", textContent: error.message }));
    }
  }
}

function leaf(told) {
  const shape = `${told.dtype}[${told.shape.join(", ")}]`;
  const parts = [
    make("strong", { className: "code", textContent: told.path || "(the item itself)" }), " ",
    make("span", { className: "code quiet", textContent: shape }), " ",
    make("span", { className: "quiet", textContent: size(told.nbytes) }),
  ];
  if (told.images) {
    parts.push(make("div", { className: "pictures" }, ...told.images.map((image) => make(
      "figure", {}, make("img", { src: image.png, alt: `${told.path}, picture ${image.frame}` }),
      told.frames > 1 ? `${image.frame + 1} of ${told.frames}` : "",
    ))));
  }
  if (told.text !== undefined) {
    const cut = told.text_length ? "\n…" : "";
    parts.push(make("pre", { className: "code", textContent: told.text + cut }));
  }
  if (told.values !== undefined) parts.push(make("pre", { className: "code", textContent: told.values }));
  const sums = ["min", "max", "mean"].filter((name) => told[name] !== undefined).map((name) => `${name} ${told[name]}`);
  if (told.not_finite) sums.push(`${whole(told.not_finite)} are NaN or infinite`);
  if (told.of_elements) sums.push(`of ${whole(told.of_elements)} elements, evenly spread`);
  if (sums.length) parts.push(make("div", { className: "quiet", textContent: sums.join(" · ") }));
  return make("div", { className: "leaf" }, ...parts);
}
