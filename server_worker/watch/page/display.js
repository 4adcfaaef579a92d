// What the method declares (about.display), as charts and tables need it.
import { brief, count, known, percent } from "./numbers.js";

const FORMATS = { share: percent, samples: count };
const ENGINE = ["accepted", "invalid", "refused", "missing", "stale"];
const OTHER = { name: "other", title: "other", help: "", key: "unknown", letter: "?" };

export function formatOf(unit) {
  return FORMATS[unit] ?? brief;
}

/** The table of outcomes with each one's letter in rows and its key for colour and shape. */
export function outcomesOf(display) {
  const declared = display.outcomes.filter((outcome) => !ENGINE.includes(outcome.name));
  const key = (outcome) => (declared.includes(outcome) ? `own-${1 + (declared.indexOf(outcome) % 4)}` : outcome.name);
  return display.outcomes.map((outcome, index) => ({
    ...outcome,
    key: key(outcome),
    letter: String.fromCharCode("a".charCodeAt(0) + index),
  }));
}

export function outcomeOf(outcomes, letter) {
  return outcomes.find((outcome) => outcome.letter === letter) ?? OTHER;
}

export function outcomeNamed(outcomes, name) {
  return outcomes.find((outcome) => outcome.name === name) ?? { ...OTHER, title: name };
}

/** "found 694, kept 465": the known series of a chart. */
export function seriesWords(chart, numbers) {
  return chart.series
    .filter((one) => known(numbers[one.name]))
    .map((one) => `${one.title} ${formatOf(one.unit)(numbers[one.name])}`);
}

/** A client's site; empty if there is only one. */
export function siteOf(about, client) {
  if (!about || about.sites.length < 2) return "";
  let end = 0;
  for (const [name, size] of about.sites) {
    end += size;
    if (client < end) return name;
  }
  return "";
}
