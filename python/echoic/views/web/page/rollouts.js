// The card of a rollout table.

import { BarChart, LineChart } from "./charts.js";
import { amount, duration, fill, make, numbers, recent, whole } from "./words.js";

const SIDES = ["producers", "consumers"];

export class RolloutCard {
  constructor(name) {
    this.name = name;
    this.numbers = numbers();
    this.fill = fill();
    this.state = make("span", { className: "pill" });
    this.tokens = new LineChart("Tokens per second", ["came", "delivered"]);
    this.groups = new LineChart("Groups per second", ["reserved", "delivered"]);
    this.now = new LineChart("Groups", ["being made", "ready"]);
    this.lags = new LineChart("Versions old when delivered", ["oldest", "mean"]);
    this.idle = new LineChart("Calls that wait", SIDES);
    this.waits = {
      producers: new BarChart("Seconds that producers waited, by reason"),
      consumers: new BarChart("Seconds that consumers waited, by reason"),
    };
    this.sources = make("div", { className: "scroll" });
    const charts = [this.tokens, this.groups, this.now, this.lags, this.idle, ...Object.values(this.waits)];
    this.element = make(
      "article", { className: "card" },
      make("div", { className: "head" }, make("h2", { textContent: name }), make("span", { className: "quiet", textContent: "rollout table" }), this.state),
      this.numbers.list, this.fill.element,
      make("div", { className: "charts" }, ...charts.map((chart) => chart.element)),
      make("details", {}, make("summary", { textContent: "Sources" }), this.sources),
    );
  }

  update(table, moments) {
    const mine = moments.map((moment) => moment.rollouts.get(this.name) ?? null);
    const column = (name) => mine.map((one) => one?.[name] ?? null);
    const ages = moments.map((moment) => moment.age);
    const rate = (name) => amount(recent(ages, column(name)));
    this.showState(table);
    this.numbers.update([
      ["version", whole(table.version), `next batch for ${whole(table.target)}`],
      ["being made", whole(table.running), table.suspended ? `${whole(table.suspended)} left` : `${whole(table.room)} more may begin`],
      ["ready", whole(table.ready), `a batch takes ${whole(table.batch_groups)}`],
      ["with learners", whole(table.leased), table.redelivered ? `${whole(table.redelivered)} delivered again` : ""],
      ["tokens/s", rate("tokens"), `${rate("delivered_tokens")} delivered`],
      ["groups/s", rate("reserved"), `${rate("delivered")} delivered`],
      ["accepted", amount(table.accepted), `of ${amount(table.submitted)} submitted`],
      ["rejected", amount(table.rejected), table.expired ? `${amount(table.expired)} with their reservation` : ""],
      ["filtered", amount(table.filtered)],
      ["too old", amount(table.stale), table.max_lag === null ? "no bound" : `over max_lag ${table.max_lag}`],
      ["oldest ready", table.ready_lag === null ? "–" : whole(table.ready_lag), "versions old"],
      ["delivered lag", table.lag_oldest === null ? "–" : `${table.lag_newest} to ${table.lag_oldest}`, `mean ${amount(table.lag_mean)}`],
    ]);
    this.fill.update(table.fill);
    this.tokens.update(ages, [column("tokens"), column("delivered_tokens")]);
    this.groups.update(ages, [column("reserved"), column("delivered")]);
    this.now.update(ages, [column("running"), column("ready")]);
    this.lags.update(ages, [column("lag_oldest"), column("lag_mean")], { target: table.max_lag });
    this.idle.update(ages, SIDES.map(column));
    for (const side of SIDES) {
      const seconds = Object.entries(table[side]).map(([reason, waits]) => [reason, Math.round(waits.seconds)]);
      this.waits[side].update(seconds);
    }
    this.showSources(table.sources);
  }

  showState(table) {
    const calls = SIDES.flatMap((side) => Object.entries(table[side])
      .filter(([, waits]) => waits.waiting)
      .map(([reason, { waiting }]) => `${whole(waiting)} ${waiting === 1 ? `${side.slice(0, -1)} waits` : `${side} wait`}: ${reason}`));
    this.state.className = table.paused ? "pill slow" : calls.length ? "pill stuck" : "pill good";
    this.state.textContent = [table.paused && "paused", ...calls].filter(Boolean).join(", ") || "nobody waits";
  }

  showSources(sources) {
    const columns = ["submitted", "running", "accepted", "rejected", "filtered", "tokens"];
    const head = ["source", ...columns, "waits"].map((name, at) => make("th", { className: at ? "right" : "", textContent: name }));
    const rows = sources.map((source) => make(
      "tr", {}, make("td", { className: "code", textContent: source.name || "(no name)" }),
      ...columns.map((name) => make("td", { className: "right", textContent: amount(source[name]) })),
      make("td", {
        className: source.is_starving ? "right waits" : "right",
        textContent: source.waiting ? `${whole(source.waiting)} for ${duration(source.waited)}` : "",
      }),
    ));
    this.sources.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
  }
}
