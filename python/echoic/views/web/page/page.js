// The page: asks once per interval for the state of all servers, and shows it.

import { LineChart, make, table, whole } from "./charts.js";
import { ItemBrowser } from "./items.js";

const RANGES = { 60: "minute", 300: "5 minutes", 1800: "30 minutes", 10800: "3 hours" };

const place = (id) => document.getElementById(id);
const cards = new Map();
// In the address, so that it is the same after a reload.
const chosen = new URLSearchParams(location.hash.slice(1));
let problemsShown = "";
let timer = 0;

function choose(name, value) {
  chosen.set(name, value);
  location.hash = chosen;
  poll();
}

// Anything with numbers: a stream, a table of any kind, a server.
class Card {
  constructor(thing, server) {
    this.state = make("span");
    this.lines = make("dl");
    this.fill = make("progress");
    this.charts = thing.charts.map((chart) => new LineChart(chart));
    this.below = make("div", { className: "charts" });
    const items = thing.kind === "table" ? [new ItemBrowser(server, thing.name).element] : [];
    const kind = make("span", { className: "quiet" }, thing.name && thing.kind);
    const head = make("div", { className: "head" }, make("h2", {}, thing.title), kind, this.state);
    const charts = make("div", { className: "charts" }, ...this.charts.map((chart) => chart.element));
    this.element = make("article", { className: "card" }, head, this.lines, this.fill, charts, this.below, ...items);
  }

  update(thing, ages) {
    this.state.className = thing.state ? `pill ${thing.state[0]}` : "";
    this.state.textContent = thing.state?.[1] ?? "";
    this.lines.replaceChildren(...thing.lines.map(([label, value, note]) => make(
      "div", {}, make("dt", {}, label), make("dd", {}, value, " ", make("small", {}, note)),
    )));
    this.fill.hidden = thing.fill === null;
    this.fill.value = thing.fill ?? 0;
    thing.charts.forEach((chart, at) => this.charts[at]?.update(ages, chart));
    const sources = thing.sources.rows.length ? [table(thing.sources)] : [];
    this.below.replaceChildren(...thing.bars.map(([title, counts]) => bars(title, counts)), ...sources);
  }
}

// A histogram, one bar below the other, so that their names can be read on a phone.
export function bars(title, counts) {
  const max = Math.max(...counts.map(([, count]) => count), 1);
  const rows = counts.map(([name, count]) => [name, make("progress", { max, value: count }), whole(count)]);
  return make("div", { className: "bars" }, make("h3", {}, title), table({ head: [], rows }));
}

function showOverview({ chosen: server, overview }) {
  const shown = place("overview");
  // Buttons stay, so that they keep the focus.
  if (!shown.childElementCount) {
    const rows = overview.rows.map(({ address }, at) => [
      make("button", { type: "button", onclick: () => choose("server", at) }, address), make("span"),
      ...overview.head.slice(2).map(() => ""),
    ]);
    shown.replaceChildren(table({ head: overview.head, rows }));
  }
  shown.querySelectorAll("tbody tr").forEach((row, at) => {
    const { level, cells } = overview.rows[at];
    row.querySelector("button").ariaPressed = String(at === server);
    Object.assign(row.querySelector("span"), { className: `pill ${level}`, textContent: level });
    cells.forEach((cell, column) => { row.children[column + 2].textContent = cell; });
  });
  const { address, level } = overview.rows[server];
  const stuck = overview.rows.some((one) => one.level === "stuck" || one.level === "away");
  document.title = `${stuck ? "● " : ""}${address} – Echoic`;
  showState(level === "away" ? "away" : "live", level === "away" ? `${address} is away` : "live");
}

function showProblems({ problems, things }) {
  // Screen readers say only changes.
  const wording = JSON.stringify([problems, !things.length]);
  if (wording === problemsShown) return;
  problemsShown = wording;
  const shown = problems.map(({ level, subject, reason, text, advice }) => make(
    "div", { className: `problem ${level}` },
    make("b", { className: "level" }, level), " ", make("b", {}, subject), " ", make("code", {}, reason),
    make("p", {}, text), make("p", {}, `→ ${advice}`),
  ));
  if (things.length && problems.every(({ level }) => level === "note")) {
    shown.unshift(make("div", { className: "problem live" }, "Nothing is stuck."));
  }
  place("problems").replaceChildren(...shown);
}

function showThings({ chosen: server, things, ages }) {
  const wanted = things.map((thing) => {
    const key = JSON.stringify([server, thing.kind, thing.name, thing.charts.length]);
    if (!cards.has(key)) cards.set(key, new Card(thing, server));
    return cards.get(key);
  });
  const shown = place("things");
  // Elements that stay where they are keep what is open and chosen in them.
  if (wanted.length !== shown.children.length || wanted.some((card, at) => shown.children[at] !== card.element)) {
    shown.replaceChildren(...wanted.map((card) => card.element));
  }
  wanted.forEach((card, at) => card.update(things[at], ages));
}

function showConnections({ connections, connections_more: more }) {
  const rest = more ? `and ${whole(more)} more` : "";
  place("connections").replaceChildren(make("h2", {}, "Connections"), table(connections), rest);
}

function showState(level, text) {
  place("state").className = `pill ${level}`;
  place("state").textContent = text;
  document.body.classList.toggle("away", level === "away");
}

async function poll() {
  clearTimeout(timer);
  let pause = 1;
  try {
    // A page that is not visible asks for nothing; the server of the page remembers.
    if (!document.hidden) {
      const answer = await fetch(`state?${chosen}`, { signal: AbortSignal.timeout(10_000) });
      const found = await answer.json();
      if (found.error) throw new Error(found.error);
      pause = found.interval;
      for (const show of [showOverview, showProblems, showThings, showConnections]) show(found);
    }
  } catch (error) {
    showState("away", `the dashboard itself does not answer: ${error.message}`);
  }
  clearTimeout(timer);
  timer = setTimeout(poll, pause * 1000);
}

const options = Object.entries(RANGES).map(([value, name]) => make("option", { value }, name));
place("range").replaceChildren(...options);
place("range").value = chosen.get("seconds") in RANGES ? chosen.get("seconds") : "300";
place("range").onchange = () => choose("seconds", place("range").value);
poll();
