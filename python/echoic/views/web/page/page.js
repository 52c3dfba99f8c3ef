// The page: asks once per interval how the server is, and shows it.

import { BarChart, LineChart } from "./charts.js";
import { ItemBrowser } from "./items.js";
import { RolloutCard } from "./rollouts.js";
import { amount, duration, fill, make, numbers, percent, recent, size, whole } from "./words.js";

const place = (id) => document.getElementById(id);
const MOMENTS = 600;

// What is known of the server's present life.
let life = "";
let moments = [];

class TableCard {
  constructor(name) {
    this.numbers = numbers();
    this.fill = fill();
    this.state = make("span", { className: "pill" });
    this.rates = new LineChart("Per second", ["inserts", "samples"]);
    this.ratio = new LineChart("Samples for each insert", ["ratio"]);
    this.items = new LineChart("Items", ["items"]);
    this.histograms = {
      times_sampled: new BarChart("Items by how often they were sampled"),
      priorities: new BarChart("Items by priority"),
      lags: new BarChart("Samples by how many versions old they were"),
    };
    const charts = [this.rates, this.ratio, this.items, ...Object.values(this.histograms)];
    this.element = make(
      "article", { className: "card" },
      make("div", { className: "head" }, make("h2", { textContent: name }), make("span", { className: "quiet", textContent: "table" }), this.state),
      this.numbers.list, this.fill.element,
      make("div", { className: "charts" }, ...charts.map((chart) => chart.element)),
      new ItemBrowser(name).element,
    );
  }

  update(table) {
    const mine = moments.map((moment) => moment.tables.get(table.name) ?? null);
    const column = (name) => mine.map((one) => one?.[name] ?? null);
    const ages = moments.map((moment) => moment.age);
    const rate = (name) => recent(ages, column(name));
    const stuck = ["insert", "sample"].filter((side) => table[side].waiting && table[side].reason);
    this.state.className = stuck.length ? "pill stuck" : table.paused ? "pill slow" : "pill good";
    this.state.textContent = stuck.length
      ? stuck.map((side) => `${whole(table[side].waiting)} ${side}${table[side].waiting === 1 ? " waits" : "s wait"}: ${table[side].reason}`).join(", ")
      : table.paused ? "paused" : "nobody waits";
    this.numbers.update([
      ["items", amount(table.items), `of ${amount(table.max_items)} (${percent(table.fill)})`],
      ["inserts/s", amount(rate("inserts")), `${amount(table.inserts)} in all`],
      ["samples/s", amount(rate("samples")), `${amount(table.samples)} in all`],
      ["ratio", amount(table.ratio), table.target_ratio === null ? "" : `target ${amount(table.target_ratio)}`],
      ["waited, inserts", duration(table.insert.wait_seconds), table.insert.waiting ? `${table.insert.waiting} now` : ""],
      ["waited, samples", duration(table.sample.wait_seconds), table.sample.waiting ? `${table.sample.waiting} now` : ""],
      ["policy version", whole(table.version)],
      ["rows", size(table.row_bytes)],
    ]);
    this.fill.update(table.fill);
    this.rates.update(ages, [column("inserts"), column("samples")]);
    this.ratio.update(ages, [column("ratio")], { target: table.target_ratio });
    this.items.update(ages, [column("items")], { top: table.max_items });
    for (const [name, chart] of Object.entries(this.histograms)) chart.update(table[name]);
  }
}

class StreamCard {
  constructor() {
    this.numbers = numbers();
    this.fill = fill();
    this.rates = new LineChart("Samples per second", ["samples"]);
    this.batches = new LineChart("Batches per second", ["batches"]);
    this.stored = new LineChart("Samples in the ring", ["stored"]);
    const charts = [this.rates, this.batches, this.stored];
    this.element = make(
      "article", { className: "card" },
      make("div", { className: "head" }, make("h2", { textContent: "The stream" })),
      this.numbers.list, this.fill.element,
      make("div", { className: "charts" }, ...charts.map((chart) => chart.element)),
    );
  }

  update(stream) {
    const mine = moments.map((moment) => moment.stream);
    const column = (name) => mine.map((one) => one?.[name] ?? null);
    const ages = moments.map((moment) => moment.age);
    const rate = (name) => recent(ages, column(name));
    this.numbers.update([
      ["samples/s", amount(rate("samples")), `${size(rate("bytes"))}/s`],
      ["samples in all", amount(stream.samples), size(stream.bytes)],
      ["in the ring", amount(stream.stored), `of ${amount(stream.capacity)} (${percent(stream.fill)})`],
      ["batches ready", whole(stream.ready), `${whole(stream.free)} buffers free`],
      ["batches held", whole(stream.held), stream.held ? `one for ${duration(stream.oldest_hold)}` : ""],
      ["batches taken", amount(stream.delivered), `of ${whole(stream.batch_size)} samples`],
      ["waited, pushes", duration(stream.blocked_seconds)],
      ["waited, learner", duration(stream.starved_seconds)],
    ]);
    this.fill.update(stream.fill);
    this.rates.update(ages, [column("samples")]);
    this.batches.update(ages, [column("batches")]);
    this.stored.update(ages, [column("stored")], { top: stream.capacity });
  }
}

// What the server's program tells of itself, such as a training run.
class ToldCard {
  constructor() {
    this.numbers = numbers();
    this.element = make(
      "article", { className: "card" },
      make("div", { className: "head" }, make("h2", { textContent: "Told by the program" })),
      this.numbers.list,
    );
  }

  update(told) {
    const text = (value) => (value === null ? "-" : String(Number(value.toPrecision(6))));
    this.numbers.update(Object.entries(told).map(([name, value]) => [name, text(value)]));
  }
}

let streamCard = null;
let toldCard = null;
const tableCards = new Map();
const rolloutCards = new Map();

function showThings(told) {
  const cards = [];
  if (told.stream) {
    streamCard ??= new StreamCard();
    cards.push([streamCard, told.stream]);
  }
  for (const table of told.tables) {
    if (!tableCards.has(table.name)) tableCards.set(table.name, new TableCard(table.name));
    cards.push([tableCards.get(table.name), table]);
  }
  for (const table of told.rollouts) {
    if (!rolloutCards.has(table.name)) rolloutCards.set(table.name, new RolloutCard(table.name));
    cards.push([rolloutCards.get(table.name), table]);
  }
  if (Object.keys(told.told).length) {
    toldCard ??= new ToldCard();
    cards.push([toldCard, told.told]);
  }
  const wanted = cards.map(([card]) => card.element);
  const things = place("things");
  // Elements that stay where they are keep what is open and chosen in them.
  if (wanted.length !== things.children.length || wanted.some((one, at) => things.children[at] !== one)) {
    things.replaceChildren(...wanted);
  }
  for (const [card, what] of cards) card.update(what, moments);
}

let problemsShown = "";

function showProblems(told) {
  // Those who have the page read to them hear only changes.
  const away = told.away && {
    level: "stuck", subject: "the server", reason: "AWAY", text: `It does not answer: ${told.away.reason}`,
    advice: "see whether its process still runs; below is what was seen last, and this page goes on when it is back",
  };
  const problems = away ? [away] : told.problems;
  const wording = JSON.stringify([problems, told.age === null]);
  if (wording === problemsShown) return;
  problemsShown = wording;
  const shown = problems.map((problem) => make(
    "div", { className: `problem ${problem.level}` },
    make("span", { className: "level", textContent: problem.level }), make("strong", { textContent: problem.subject }),
    make("span", { className: "code", textContent: problem.reason }),
    make("p", { textContent: problem.text }), make("p", { className: "advice", textContent: `→ ${problem.advice}` }),
  ));
  if (told.age !== null && !problems.some((problem) => problem.level !== "note")) {
    shown.unshift(make("div", { className: "fine", textContent: "Nothing is stuck." }));
  }
  place("problems").replaceChildren(...shown);
}

function showConnections(told) {
  const { doors, connections } = told;
  if (doors === null) return;
  const totals = [
    `${whole(doors.connections)} now, ${whole(doors.accepted)} since the start`,
    doors.reconnects && `${whole(doors.reconnects)} came back`,
    `${size(doors.bytes)} received`,
    doors.malformed && `${whole(doors.malformed)} sent nonsense`,
    doors.silent && `${whole(doors.silent)} fell silent`,
  ].filter(Boolean).join(" · ");
  const rows = connections.map((one) => make(
    "tr", {}, make("td", { className: "code", textContent: one.name }),
    make("td", { className: "code quiet", textContent: one.peer }), make("td", { textContent: duration(one.age) }),
    make("td", { className: "right", textContent: amount(one.samples_rate) }),
    make("td", { className: "right", textContent: `${size(one.bytes_rate)}/s` }),
    make("td", { className: "right", textContent: amount(one.samples) }),
    make("td", { className: one.blocked_by ? "waits" : "", textContent: one.blocked_by }),
    make("td", { className: "code quiet", textContent: one.address }),
  ));
  const names = ["client", "from", "for", "samples/s", "received", "samples", "waits for", "at"];
  const head = names.map((name, at) => make("th", { className: at > 2 && at < 6 ? "right" : "", textContent: name }));
  const more = doors.connections - connections.length;
  place("connections").replaceChildren(make(
    "article", { className: "card" },
    make("div", { className: "head" }, make("h2", { textContent: "Connections" }), make("span", { className: "quiet", textContent: totals })),
    make("div", { className: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows))),
    ...(more > 0 ? [make("p", { className: "quiet", textContent: `and ${whole(more)} more` })] : []),
  ));
}

function showState(away, since, reason) {
  document.body.classList.toggle("away", away);
  place("state").className = away ? "stuck" : "good";
  place("state").textContent = away ? `away since ${since.toLocaleTimeString()}: ${reason}` : "live";
}

function show(told) {
  if (told.life !== life) {
    life = told.life;
    moments = [];
  }
  const named = (tables) => new Map(tables.map((table) => [table.name, table]));
  for (const { tables, rollouts, ...rest } of told.moments) {
    moments.push({ ...rest, tables: named(tables), rollouts: named(rollouts) });
  }
  moments = moments.slice(-MOMENTS);
  document.title = `${told.problems.some((problem) => problem.level === "stuck") ? "● " : ""}${told.address} – Echoic`;
  place("address").textContent = told.address;
  place("life").textContent = told.age === null ? "" : `Echoic ${told.release}, up ${duration(told.age)}`;
  showState(told.away !== null, new Date((told.away?.since ?? 0) * 1000), told.away?.reason);
  showProblems(told);
  showThings(told);
  showConnections(told);
}

let lost = null;

async function look() {
  let pause = 1;
  try {
    // A page that nobody sees asks for nothing; it catches up when it is seen again.
    if (!document.hidden) {
      const query = new URLSearchParams({ life, after: moments.at(-1)?.number ?? 0 });
      const answer = await fetch(`server?${query}`, { signal: AbortSignal.timeout(10_000) });
      const told = await answer.json();
      pause = told.interval;
      lost = null;
      show(told);
    }
  } catch (error) {
    lost ??= new Date();
    showState(true, lost, "the dashboard itself does not answer");
    console.warn(error);
  }
  setTimeout(look, pause * 1000);
}

look();
