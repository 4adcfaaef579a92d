// Which charts there are.
import { byId, make } from "./dom.js";
import { barKind } from "./bars.js";
import { heatKind } from "./heat.js";
import { lineKind } from "./lines.js";
import { brief, count, duration, percent, secondsUnit } from "./numbers.js";
import { Panel } from "./panel.js";
import { extent } from "./scales.js";
import { stripKind } from "./strip.js";
import { MODELS, SECONDS, lossName, shortLoss } from "./words.js";

const COLOURS = ["s-1", "s-2", "s-3", "s-4", "s-5", "s-6"];
const NORMS = {
  delta: "‖Δθ‖",
  relative: "‖Δθ‖ / ‖θ′‖",
  lr_normalised: "‖Δθ‖ / (η · steps)",
};

/** Asks for the run's facts when it draws, for they may come later than the first rounds. */
export function makePanels(facts, redraw, detail) {
  let norm = "delta";
  let allClasses = false;
  const chooser = normChooser((chosen) => {
    norm = chosen;
    redraw();
  });
  const more = make(
    "button",
    { class: "plain small", type: "button", "aria-pressed": "false", hidden: true },
    "all classes",
  );
  more.addEventListener("click", () => {
    allClasses = !allClasses;
    more.setAttribute("aria-pressed", String(allClasses));
    redraw();
  });
  const baseline = () => facts()?.baseline ?? null;
  const panels = [
    new Panel({
      id: "accuracy",
      title: "Accuracy",
      size: "half",
      kind: lineKind({
        label: "Accuracy on the test set",
        tall: 230,
        tick: percent,
        unit: 0.01,
        bounds: { floor: 0, ceiling: 1, least: 0.01 },
        series: () =>
          MODELS.map((model, index) => ({
            name: model.long,
            short: model.name,
            css: COLOURS[index],
            value: (row) => row.accuracy[model.key],
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
    }),
    new Panel({
      id: "delta",
      title: "How far θ′ moves",
      size: "half",
      controls: [chooser],
      kind: lineKind({
        label: "Norm of the step of θ′",
        tall: 230,
        log: true,
        tick: brief,
        series: () => [
          { name: NORMS[norm], css: "s-1", value: (row) => row[norm], format: brief },
          ...(norm === "delta"
            ? [
                {
                  name: "mean of the last 10",
                  short: "mean",
                  css: "s-4",
                  plain: true,
                  value: (row) => row.moving_average,
                  format: brief,
                },
              ]
            : []),
        ],
      }),
    }),
    new Panel({
      id: "cosines",
      title: "Every client's update",
      size: "wide",
      hint: "Cosine with the server's own step θ₀ − θ′: above 0 it points where the labels point.",
      kind: stripKind({
        threshold: () => facts()?.cosine_threshold ?? null,
        siteOf: (client) => siteOf(facts(), client),
        detail,
      }),
      rows: (run) => [...run.rounds, ...openRows(run)],
    }),
    new Panel({
      id: "staleness",
      title: "Staleness",
      size: "wide",
      hint: "How many versions old the model was that each answer started from.",
      kind: barKind({
        label: "Answers by staleness",
        tall: 120,
        tick: count,
        whole: true,
        parts: (rows) => staleness(rows),
      }),
      rows: (run) => run.rounds,
    }),
    new Panel({
      id: "labels",
      title: "Pseudo-labels",
      kind: lineKind({
        label: "Pseudo-labels held by clients",
        tick: count,
        whole: true,
        bounds: { floor: 0, least: 1 },
        series: () => [
          {
            name: "held: confident and agreed",
            short: "held",
            css: "s-1",
            value: (row) => row.pseudo_labels,
            format: count,
          },
          {
            name: "credible: promoted to the training set",
            short: "credible",
            css: "s-2",
            value: (row) => row.credible,
            format: count,
          },
        ],
      }),
    }),
    new Panel({
      id: "purity",
      title: "Purity of pseudo-labels",
      hint: "Share of right ones, where the truth is known offline.",
      kind: lineKind({
        label: "Purity of pseudo-labels",
        tick: percent,
        unit: 0.01,
        bounds: { floor: 0, ceiling: 1, least: 0.005 },
        series: () => [
          {
            name: "of those held",
            short: "held",
            css: "s-1",
            value: (row) => row.purity.pseudo_labels,
            format: percent,
          },
          {
            name: "of the credible",
            short: "credible",
            css: "s-2",
            value: (row) => row.purity.credible,
            format: percent,
          },
        ],
      }),
    }),
    new Panel({
      id: "classes",
      title: "Accuracy by class",
      controls: [more],
      kind: heatKind({
        label: "Accuracy of θ′ by class",
        names: () => facts()?.class_names ?? [],
        all: () => allClasses,
      }),
    }),
    new Panel({
      id: "losses",
      title: "Losses",
      size: "half",
      kind: lineKind({
        label: "Mean loss terms",
        tick: brief,
        bounds: { floor: 0, least: 0.01 },
        series: (rows) =>
          lossKeys(rows).map((key, index) => ({
            name: lossName(key),
            short: shortLoss(key),
            css: COLOURS[index % COLOURS.length],
            value: (row) => row.losses[key],
            format: brief,
          })),
      }),
    }),
    new Panel({
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
    }),
  ];
  byId("panels").replaceChildren(...panels.map((panel) => panel.element));
  return {
    show(run) {
      for (const panel of panels) panel.show(run);
      more.hidden = (run.rounds.at(-1)?.classes.length ?? 0) <= 20;
    },
  };
}

function normChooser(choose) {
  const select = make(
    "select",
    { "aria-label": "Which norm", class: "small" },
    ...Object.entries(NORMS).map(([key, name]) => make("option", { value: key }, name)),
  );
  select.addEventListener("change", () => choose(select.value));
  return select;
}

function openRows(run) {
  const last = run.rounds.at(-1)?.round ?? 0;
  return run.open
    .filter((row) => row.round > last && row.clients.length)
    .map((row) => ({ ...row, unfinished: true }));
}

function lossKeys(rows) {
  return [...new Set(rows.flatMap((row) => Object.keys(row.losses)))].sort();
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

/** Site → its clients, in order; one site alone is not worth telling. */
export function siteOf(about, client) {
  if (!about || about.sites.length < 2) return "";
  let end = 0;
  for (const [name, size] of about.sites) {
    end += size;
    if (client < end) return name;
  }
  return "";
}
