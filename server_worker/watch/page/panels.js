// The charts: the engine's own, and those that the method declares.
import { byId, make } from "./dom.js";
import { barKind } from "./bars.js";
import { formatOf, siteOf } from "./display.js";
import { heatKind } from "./heat.js";
import { lineKind } from "./lines.js";
import { brief, count, duration, known, percent, secondsUnit } from "./numbers.js";
import { Panel } from "./panel.js";
import { extent } from "./scales.js";
import { stripKind } from "./strip.js";
import { SECONDS } from "./words.js";

const NORMS = {
  delta: "update size ‖Δθ‖",
  relative: "relative ‖Δθ‖ / ‖θ‖",
  lr_normalised: "per effort ‖Δθ‖ / (η · steps)",
};
const colour = (index) => `s-${1 + (index % 6)}`;

/** now() → the run as last heard; redraw() after a choice; detail: see stripKind. */
export function makePanels(display, outcomes, now, redraw, detail) {
  const { models, charts, client_values: values } = display;
  const panels = [
    accuracyPanel(models, now),
    normPanel(models[0], redraw),
    ...values.map((value, index) => valuePanel(value, index, values.length > 1, outcomes, now, detail)),
    ...(values.length ? [] : [outcomePanel(outcomes)]),
    stalenessPanel(),
    ...charts.map(chartPanel),
    classPanel(models[0], now, redraw),
    secondsPanel(),
  ];
  byId("panels").replaceChildren(...panels.map((panel) => panel.element));
  return { show: (run) => panels.forEach((panel) => panel.show(run)) };
}

function accuracyPanel(models, now) {
  const baseline = () => now().about?.baseline ?? null;
  return new Panel({
    id: "accuracy",
    title: "Accuracy",
    size: "half",
    hint: now().about.evaluated,
    kind: lineKind({
      label: "Accuracy on the test set",
      tall: 230,
      unit: "share",
      series: models.map((model, index) => ({
        name: model.label,
        help: model.help,
        short: model.short,
        css: colour(index),
        value: (row) => row.accuracy[model.name],
        format: percent,
      })),
      levels: () => [
        {
          name: "server-only, on the same labels",
          short: `alone ${percent(baseline())}`,
          text: percent(baseline()),
          value: baseline(),
          css: "s-base",
        },
      ],
    }),
  });
}

function normPanel(model, redraw) {
  let norm = "delta";
  const chooser = make(
    "select",
    { "aria-label": "Which norm", class: "small" },
    ...Object.entries(NORMS).map(([key, name]) => make("option", { value: key }, name)),
  );
  chooser.addEventListener("change", () => {
    norm = chooser.value;
    redraw();
  });
  const mean = {
    name: "mean of the last 10",
    short: "mean",
    css: "s-4",
    plain: true,
    value: (row) => (norm === "delta" ? row.moving_average : null),
    format: brief,
  };
  return new Panel({
    id: "delta",
    title: "Update size",
    size: "half",
    controls: [chooser],
    kind: lineKind({
      label: `Size of the update of the ${model.label}`,
      tall: 230,
      log: true,
      series: () => [{ name: NORMS[norm], css: "s-1", value: (row) => row[norm], format: brief }, mean],
    }),
  });
}

/** The first is always there: it also shows outcomes. Which others are measured depends on settings. */
function valuePanel(value, index, several, outcomes, now, detail) {
  return new Panel({
    id: `value-${value.name}`,
    title: several ? `Every client's update: ${value.title}` : "Every client's update",
    size: "wide",
    hint: value.help,
    kind: stripKind({ value, outcomes, siteOf: (client) => siteOf(now().about, client), detail }),
    rows: (run) => {
      const rows = [...run.rounds, ...openRows(run)];
      return index === 0 || rows.some((row) => row.values[value.name].some(known)) ? rows : [];
    },
  });
}

function outcomePanel(outcomes) {
  return new Panel({
    id: "outcomes",
    title: "Every client's update",
    size: "wide",
    kind: barKind({
      label: "Outcomes of updates",
      tick: count,
      whole: true,
      parts: () =>
        outcomes.map(({ title, key, letter }) => ({
          name: title,
          css: `mark-${key}`,
          value: (row) => row.outcomes.split(letter).length - 1,
          format: count,
        })),
    }),
  });
}

function stalenessPanel() {
  return new Panel({
    id: "staleness",
    title: "Staleness",
    size: "wide",
    hint: "How many versions old the model was that each answer started from.",
    kind: barKind({ label: "Answers by staleness", tall: 120, tick: count, whole: true, parts: staleness }),
  });
}

function chartPanel({ title, help, log, series }) {
  return new Panel({
    id: `chart-${series[0].name}`,
    title,
    hint: help,
    wordsForConstants: true,
    size: series.length > 3 ? "half" : "third",
    kind: lineKind({
      label: title,
      log,
      unit: series[0].unit,
      series: series.map((one, index) => ({
        name: one.title,
        help: one.help,
        short: one.title,
        css: colour(index),
        value: (row) => row.series[one.name],
        format: formatOf(one.unit),
      })),
    }),
  });
}

function classPanel(model, now, redraw) {
  let all = false;
  const more = make("button", { class: "plain small", type: "button", "aria-pressed": "false" }, "all classes");
  more.addEventListener("click", () => {
    all = !all;
    more.setAttribute("aria-pressed", String(all));
    redraw();
  });
  return new Panel({
    id: "classes",
    title: "Accuracy by class",
    controls: [more],
    kind: heatKind({
      label: `Accuracy of the ${model.label} by class`,
      names: () => now().about?.class_names ?? [],
      all: () => all,
      many: (are) => (more.hidden = !are),
    }),
  });
}

function secondsPanel() {
  return new Panel({
    id: "seconds",
    title: "Time of a round",
    size: "half",
    kind: barKind({
      label: "Seconds of a round by phase",
      tall: 190,
      tick: (value, digits, unit) => `${(value / unit.size).toFixed(digits)} ${unit.name}`,
      unit: secondsUnit,
      parts: () =>
        SECONDS.map((phase, index) => ({
          name: phase.name,
          css: `f-${index + 1}`,
          value: (row) => row.seconds[phase.key],
          format: duration,
        })),
    }),
  });
}

function openRows(run) {
  const last = run.rounds.at(-1)?.round ?? 0;
  return run.open
    .filter((row) => row.round > last && row.clients.length)
    .map((row) => ({ ...row, unfinished: true }));
}

function staleness(rows) {
  const [, oldest] = extent([
    -1,
    ...rows.flatMap((row) => row.staleness ?? []).filter((age) => age !== null),
  ]);
  const shown = Math.min(oldest, 5);
  return Array.from({ length: shown + 1 }, (_, age) => ({
    name: `${age}${age === shown && oldest > shown ? " or more" : ""} behind`,
    css: `age-${age}`,
    value: (row) =>
      (row.staleness ?? []).filter((one) => one !== null && (age === shown ? one >= age : one === age))
        .length,
    format: count,
  }));
}
