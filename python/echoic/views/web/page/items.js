// The browser of a table's items: keys, and the chosen item.

import { make, table, whole } from "./charts.js";

async function ask(path, query) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`);
  const found = await answer.json();
  if (found.error !== undefined) throw new Error(found.error);
  return found;
}

export class ItemBrowser {
  constructor(server, name) {
    this.query = { server, table: name };
    this.count = 50;
    this.keys = make("div", { className: "keys" });
    this.item = make("div", { className: "item" });
    this.above = make("p", { className: "quiet" });
    const more = make("button", { type: "button", onclick: () => this.list(this.count * 4) }, "List more");
    const left = make("div", {}, this.keys, more);
    this.element = make(
      "details", {}, make("summary", {}, "Items"), this.above, make("div", { className: "browser" }, left, this.item),
    );
    this.element.ontoggle = () => this.element.open && !this.keys.childElementCount && this.list(this.count);
  }

  async list(count) {
    this.count = count;
    try {
      const { items, total } = await ask("items", { ...this.query, count });
      this.above.textContent = total
        ? `${whole(items.length)} of ${whole(total)} items. Looking at one does not count as sampling it.`
        : "The table is empty.";
      const rows = items.map((item) => [
        make("button", { type: "button", onclick: (event) => this.open(item.key, event.target) }, item.key),
        Number(item.priority.toPrecision(4)), whole(item.times_sampled), whole(item.version),
      ]);
      this.keys.replaceChildren(table({ head: ["key", "priority", "sampled", "version"], rows }));
    } catch (error) {
      this.above.textContent = error.message;
    }
  }

  async open(key, button) {
    for (const one of this.keys.querySelectorAll("button")) one.ariaPressed = String(one === button);
    try {
      const { leaves, more_leaves: more } = await ask("item", { ...this.query, key });
      const rest = more ? [make("p", {}, `and ${whole(more)} more leaves`)] : [];
      this.item.replaceChildren(make("h3", {}, `Item ${key}`), ...leaves.map(leaf), ...rest);
    } catch (error) {
      this.item.replaceChildren(error.message);
    }
  }
}

function leaf(found) {
  const shape = `${found.dtype}[${found.shape.join(", ")}], ${whole(found.nbytes)} bytes`;
  const parts = [make("b", {}, found.path || "(the item itself)"), " ", make("code", {}, shape)];
  const pictures = (found.images ?? []).map(({ png, frame }) => make(
    "figure", {}, make("img", { src: png, alt: `${found.path}, picture ${frame}` }), `${frame + 1} of ${found.frames}`,
  ));
  parts.push(make("div", { className: "pictures" }, ...pictures));
  const words = [found.text, found.values].filter((text) => text !== undefined);
  parts.push(...words.map((text) => make("pre", {}, text)));
  const known = ["min", "max", "mean"].filter((name) => found[name] !== undefined);
  const sums = known.map((name) => `${name} ${found[name]}`);
  if (found.not_finite) sums.push(`${whole(found.not_finite)} are NaN or infinite`);
  if (found.of_elements) sums.push(`of ${whole(found.of_elements)} elements, evenly spread`);
  return make("div", { className: "leaf" }, ...parts, make("p", { className: "quiet" }, sums.join(" · ")));
}
