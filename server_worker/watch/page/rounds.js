// One round in full: who was excluded and why, what was turned away, how long it took.
import { byId, make, put, set, table } from "./dom.js";
import { brief, clock, count, duration, known, percent, signed } from "./numbers.js";
import { siteOf } from "./panels.js";
import { look, onView, view } from "./view.js";
import { LETTER_OF, MODELS, OUTCOMES, REFUSALS, SECONDS } from "./words.js";

const MOST_ROWS = 200;
const EVERY_MS = 1000;

export class RoundPanel {
  constructor() {
    this.shown = null;
    this.everybody = false;
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

  /** The latest round may change several times a second; nobody reads that fast. */
  fetchSoon(number, key) {
    clearTimeout(this.timer);
    const wait =
      view.chosen === null ? Math.max(0, EVERY_MS - (performance.now() - (this.fetched ?? -EVERY_MS))) : 0;
    this.timer = setTimeout(() => this.fetch(number, key), wait);
  }

  async fetch(number, key) {
    this.fetched = performance.now();
    const row = this.run.rounds.find((one) => one.round === number);
    try {
      const reply = await fetch(new URL(`api/round?number=${number}`, document.baseURI), {
        cache: "no-store",
      });
      if (!reply.ok) throw new Error();
      const record = await reply.json();
      if (this.wanted === key) this.draw(record, row);
    } catch {
      // What is known of it without the server: no details.
      if (this.wanted === key && row) this.draw(recordOf(row), row);
    }
  }

  draw(record, row) {
    this.record = record;
    const excluded = record.outcomes.filter((outcome) => outcome.outcome !== "accepted");
    byId("round-body").dataset.round = record.round;
    byId("round-body").replaceChildren(
      facts(record, row),
      make("div", { class: "two" }, this.who(excluded, record.outcomes), turnedAway(record.refused)),
    );
  }

  who(excluded, all) {
    const shown = this.everybody ? all : excluded;
    const button = make(
      "button",
      { class: "plain small", type: "button", "aria-pressed": String(this.everybody) },
      this.everybody ? "only exclusions" : `all ${count(all.length)} clients`,
    );
    button.addEventListener("click", () => {
      this.everybody = !this.everybody;
      this.draw(this.record, null);
    });
    const title = this.everybody ? "Everybody who was asked" : "Excluded or projected, and why";
    const body = shown.length
      ? outcomeTable(title, shown, this.run.about)
      : make("p", { class: "quiet" }, "Nobody: every update counted as it came.");
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

/** As far as the strip knows it. */
function recordOf(row) {
  const names = Object.fromEntries(Object.entries(LETTER_OF).map(([name, letter]) => [letter, name]));
  const outcomes = row.clients.map((client, index) => ({
    client,
    outcome: names[row.outcomes[index]] ?? "other",
    cosine: row.cosines[index],
    detail: "",
    staleness: row.staleness?.[index] ?? null,
  }));
  return { ...row, outcomes, delta_norm: row.delta, finished_at: row.at };
}

function facts(record, row) {
  const accuracy = MODELS.filter((model) => known(record.accuracy[model.key])).map(
    (model) => `${model.name} ${percent(record.accuracy[model.key], 2)}`,
  );
  const phases = SECONDS.filter((phase) => known(record.seconds[phase.key])).map(
    (phase) => `${phase.name} ${duration(record.seconds[phase.key])}`,
  );
  if (known(record.seconds.evaluate))
    phases.push(`evaluation, beside the next round, ${duration(record.seconds.evaluate)}`);
  const lines = [
    ["closed", clock(record.finished_at)],
    ["counted", `${count(record.accepted)} of ${count(record.selected)}`],
    ["accuracy", accuracy.join(", ") || "not evaluated"],
    [
      "‖Δθ‖",
      `${brief(record.delta_norm)}, server's own step ${brief(record.reference_norm ?? row?.reference)}`,
    ],
    [
      "pseudo-labels",
      `${count(record.pseudo_labels)} held, ${count(record.credible)} credible, ${count(record.promoted)} new`,
    ],
    ["took", `${duration(record.seconds.total)}: ${phases.join(", ")}`],
  ];
  return make(
    "dl",
    { class: "facts" },
    ...lines.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
}

function outcomeTable(caption, outcomes, about) {
  const stale = outcomes.some((outcome) => known(outcome.staleness));
  const sites = about && about.sites.length > 1;
  const head = [
    "client",
    ...(sites ? ["site"] : []),
    "outcome",
    "cosine",
    ...(stale ? ["behind"] : []),
    "why",
  ];
  const rows = outcomes.slice(0, MOST_ROWS).map((outcome) => {
    const kind = OUTCOMES[LETTER_OF[outcome.outcome]] ?? { ...OUTCOMES["?"], words: outcome.outcome };
    return [
      outcome.client,
      ...(sites ? [siteOf(about, outcome.client)] : []),
      make("span", { class: `tag mark-${kind.key}` }, kind.words),
      signed(outcome.cosine, 4),
      ...(stale ? [known(outcome.staleness) ? outcome.staleness : "–"] : []),
      outcome.detail || kind.why,
    ];
  });
  return table(caption, head, rows);
}

function turnedAway(refused) {
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
            make("span", { class: "quiet" }, REFUSALS[reason] ? ` ${REFUSALS[reason]}` : ""),
          ),
        ),
      )
    : make("p", { class: "quiet" }, "None.");
  return make("div", {}, make("div", { class: "panel-head" }, make("h3", {}, "Messages turned away")), body);
}
