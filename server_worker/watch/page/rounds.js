// One round in full: which updates were excluded and why, which messages were refused, how long it took.
import { outcomeNamed, outcomeOf, seriesWords, siteOf } from "./display.js";
import { byId, make, put, set, table } from "./dom.js";
import { brief, clock, count, duration, known, percent, signed } from "./numbers.js";
import { look, onView, view } from "./view.js";
import { SECONDS } from "./words.js";

const MOST_ROWS = 200;
const EVERY_MS = 1000;

export class RoundPanel {
  constructor() {
    this.shown = null;
    this.all = false;
    byId("round-back").addEventListener("click", () => this.step(-1));
    byId("round-on").addEventListener("click", () => this.step(1));
    byId("round-latest").addEventListener("click", () => look({ chosen: null }));
    byId("round-number").addEventListener("change", (event) => this.choose(Number(event.target.value)));
    onView((changed) => {
      if (changed.includes("chosen") && this.run) this.show(this.run);
    });
  }

  step(by) {
    this.choose((view.chosen ?? this.last()) + by);
  }

  choose(number) {
    if (Number.isInteger(number))
      look({ chosen: Math.max(this.run.rounds[0].round, Math.min(this.last(), number)) });
  }

  last() {
    return this.run.rounds.at(-1).round;
  }

  show(run) {
    this.run = run;
    byId("round-panel").hidden = !run.rounds.length;
    if (!run.rounds.length) return;
    const number = Math.min(view.chosen ?? this.last(), this.last());
    const input = byId("round-number");
    if (document.activeElement !== input) input.value = number;
    set(input, "min", run.rounds[0].round);
    set(input, "max", this.last());
    set(byId("round-latest"), "aria-pressed", view.chosen === null);
    put(byId("round-title"), `Round ${number}${view.chosen === null ? ", the latest" : ""}`);
    const key = `${run.life}/${number}`;
    if (this.wanted !== key) {
      this.wanted = key;
      this.fetchSoon(number, key);
    }
  }

  /** The latest round may change several times a second: it is fetched once a second. */
  fetchSoon(number, key) {
    clearTimeout(this.timer);
    const wait =
      view.chosen === null ? Math.max(0, EVERY_MS - (performance.now() - (this.fetched ?? -EVERY_MS))) : 0;
    this.timer = setTimeout(() => this.fetch(number, key), wait);
  }

  async fetch(number, key) {
    this.fetched = performance.now();
    const { run } = this;
    const row = run.rounds.find((one) => one.round === number);
    try {
      const reply = await fetch(new URL(`api/round?number=${number}`, document.baseURI), {
        cache: "no-store",
      });
      if (!reply.ok) throw new Error();
      const record = await reply.json();
      if (this.wanted === key) this.draw(record);
    } catch {
      // Without the server there are no details.
      if (this.wanted === key && row) this.draw(recordOf(row, run.outcomes));
    }
  }

  draw(record) {
    const { about } = this.run;
    this.record = record;
    const excluded = record.outcomes.filter((outcome) => outcome.outcome !== "accepted");
    byId("round-body").dataset.round = record.round;
    byId("round-body").replaceChildren(
      facts(record, about),
      make(
        "div",
        { class: "two" },
        this.clients(excluded, record.outcomes),
        refusals(record.refused, about.reasons),
      ),
    );
  }

  clients(excluded, all) {
    const shown = this.all ? all : excluded;
    const button = make(
      "button",
      { class: "plain small", type: "button", "aria-pressed": String(this.all) },
      this.all ? "only exclusions" : `all ${count(all.length)} clients`,
    );
    button.addEventListener("click", () => {
      this.all = !this.all;
      this.draw(this.record);
    });
    const title = this.all ? "All clients that were asked" : "Excluded or changed, and why";
    const body = shown.length
      ? outcomeTable(title, shown, this.run)
      : make("p", { class: "quiet" }, "None: every update counted as it came.");
    const rest =
      shown.length > MOST_ROWS &&
      make("p", { class: "quiet" }, `${count(shown.length - MOST_ROWS)} more are in history.jsonl.`);
    return make(
      "div",
      {},
      make("div", { class: "panel-head" }, make("h3", {}, title), button),
      make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title }, body),
      rest,
    );
  }
}

/** From a row of the charts. */
function recordOf(row, outcomes) {
  const clients = row.clients.map((client, index) => ({
    client,
    outcome: outcomeOf(outcomes, row.outcomes[index]).name,
    values: Object.fromEntries(Object.entries(row.values).map(([name, numbers]) => [name, numbers[index]])),
    detail: "",
    staleness: row.staleness?.[index] ?? null,
  }));
  return { ...row, outcomes: clients, delta_norm: row.delta, finished_at: row.at };
}

function facts(record, { display: { models, charts }, evaluated }) {
  const accuracy = models
    .filter((model) => known(record.accuracy[model.name]))
    .map((model) => `${model.label} ${percent(record.accuracy[model.name], 2)}`);
  const phases = SECONDS.filter((phase) => known(record.seconds[phase.key])).map(
    (phase) => `${phase.name} ${duration(record.seconds[phase.key])}`,
  );
  if (known(record.seconds.evaluate))
    phases.push(`evaluation, beside the next round, ${duration(record.seconds.evaluate)}`);
  const lines = [
    ["closed", clock(record.finished_at)],
    ["counted", `${count(record.accepted)} of ${count(record.selected)}`],
    ["accuracy", accuracy.join(", ") || evaluated || "not evaluated"],
    ["update size ‖Δθ‖", brief(record.delta_norm)],
    ...charts.map((chart) => [chart.title, seriesWords(chart, record.series).join(", ")]),
    ["took", `${duration(record.seconds.total)}: ${phases.join(", ")}`],
  ];
  return make(
    "dl",
    { class: "facts" },
    ...lines.filter(([, value]) => value).map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
}

function outcomeTable(caption, outcomes, { about, outcomes: kinds }) {
  const stale = outcomes.some((outcome) => known(outcome.staleness));
  const sites = about.sites.length > 1;
  const values = about.display.client_values;
  const head = [
    "client",
    ...(sites ? ["site"] : []),
    "outcome",
    ...values.map((value) => value.title),
    ...(stale ? ["behind"] : []),
    "why",
  ];
  const rows = outcomes.slice(0, MOST_ROWS).map((outcome) => {
    const kind = outcomeNamed(kinds, outcome.outcome);
    return [
      outcome.client,
      ...(sites ? [siteOf(about, outcome.client)] : []),
      make("span", { class: `tag mark-${kind.key}` }, kind.title),
      ...values.map((value) => signed(outcome.values[value.name], 4)),
      ...(stale ? [known(outcome.staleness) ? outcome.staleness : "–"] : []),
      outcome.detail || kind.help,
    ];
  });
  return table(caption, head, rows);
}

function refusals(refused, reasons) {
  const entries = Object.entries(refused ?? {}).sort((a, b) => b[1] - a[1]);
  const body = entries.length
    ? make(
        "ul",
        { class: "reasons" },
        ...entries.map(([reason, times]) =>
          make(
            "li",
            {},
            make("b", {}, `${count(times)} × `),
            make("bdi", {}, reason),
            make("span", { class: "quiet" }, reasons[reason] ? ` ${reasons[reason]}` : ""),
          ),
        ),
      )
    : make("p", { class: "quiet" }, "None.");
  return make("div", {}, make("div", { class: "panel-head" }, make("h3", {}, "Messages refused")), body);
}
