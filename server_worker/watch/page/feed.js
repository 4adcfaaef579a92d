// Asks the server once a second and keeps its answers. It goes on asking while the server is gone.
import { outcomesOf } from "./display.js";

const EVERY_MS = 1000;
const HIDDEN_MS = 10000;
const ENDED_MS = 5000;
const SLOWEST_MS = 15000;
const PATIENCE_MS = 10000;
export const ENDED = new Set(["done", "stopped", "failed"]);

export function nothingYet() {
  return {
    life: null,
    state: "connecting",
    since: null,
    reason: "",
    phase: null,
    troubles: [],
    now: null,
    about: null,
    abouts: 0,
    outcomes: [],
    rounds: [],
    open: [],
    fleet: null,
    surveys: 0,
    notes: [],
  };
}

/** JSON from the server. The time-out counts silence, not slowness: a slow link is waited for. */
async function read(url) {
  const stop = new AbortController();
  const parts = [];
  let silence = setTimeout(() => stop.abort(), PATIENCE_MS);
  try {
    const reply = await fetch(url, { cache: "no-store", signal: stop.signal });
    if (!reply.ok) throw Object.assign(new Error(), { reason: `it answers with an error (${reply.status})` });
    const reader = reply.body.getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      parts.push(part.value);
      clearTimeout(silence);
      silence = setTimeout(() => stop.abort(), PATIENCE_MS);
    }
    return JSON.parse(await new Blob(parts).text());
  } finally {
    clearTimeout(silence);
  }
}

export class Feed {
  /** onAnswer(run, {fresh, complete}): fresh if rounds came or went; complete when no rounds are left to fetch. */
  constructor(onAnswer) {
    this.onAnswer = onAnswer;
    this.run = nothingYet();
    this.gone = null; // {why} while the server does not answer
    this.seen = null; // when it last did, by this machine's clock
    this.failures = 0;
    this.timer = null;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) this.soon(0);
    });
  }

  start() {
    this.soon(0);
  }

  soon(milliseconds) {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), milliseconds);
  }

  /** The server's clock, which may differ from ours. */
  now() {
    return this.run.now === null ? Date.now() / 1000 : this.run.now + (performance.now() - this.heard) / 1000;
  }

  async ask() {
    if (this.asking) return;
    this.asking = true;
    try {
      this.hear(await this.fetchState());
      this.soon(this.wait());
    } catch (error) {
      this.failures += 1;
      this.gone = { why: error.reason ?? "it does not answer" };
      this.onAnswer(this.run, { fresh: false, complete: true });
      this.soon(document.hidden ? HIDDEN_MS : Math.min(SLOWEST_MS, EVERY_MS * 1.5 ** (this.failures - 1)));
    } finally {
      this.asking = false;
    }
  }

  async fetchState() {
    const url = new URL("api/state", document.baseURI);
    const { life, rounds, abouts, surveys, notes } = this.run;
    if (life !== null) {
      url.search = new URLSearchParams({
        life,
        after: rounds.at(-1)?.round ?? 0,
        about: abouts,
        fleet: surveys,
        note: notes.at(-1)?.[0] ?? 0,
      });
    }
    return read(url);
  }

  hear(answer) {
    const before = this.run;
    const run = answer.life === before.life ? before : nothingYet();
    for (const key of [
      "life",
      "state",
      "since",
      "reason",
      "phase",
      "troubles",
      "now",
      "open",
      "about",
      "abouts",
      "fleet",
      "surveys",
    ]) {
      if (key in answer) run[key] = answer[key];
    }
    if (answer.about) run.outcomes = outcomesOf(answer.about.display);
    for (const row of answer.rounds) {
      if (row.round > (run.rounds.at(-1)?.round ?? 0)) run.rounds.push(row);
    }
    run.notes = [...run.notes, ...answer.notes].slice(-200);
    this.run = run;
    this.heard = performance.now();
    this.seen = Date.now() / 1000;
    this.gone = null;
    this.failures = 0;
    this.more = answer.more;
    this.onAnswer(run, { fresh: run !== before || answer.rounds.length > 0, complete: !answer.more });
  }

  wait() {
    if (this.more) return 0;
    if (document.hidden) return HIDDEN_MS;
    return ENDED.has(this.run.state) ? ENDED_MS : EVERY_MS;
  }
}
