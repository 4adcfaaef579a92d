// The top of the page: the run, its state, its current phase.
import { formatOf, outcomeOf, seriesWords } from "./display.js";
import { byId, make, put, set } from "./dom.js";
import { ENDED } from "./feed.js";
import { brief, clock, count, duration, known, median, percent, points, wholeDuration } from "./numbers.js";

const MOST_ANSWERS = 40;
const RECENT = 20;

export function showHeader(run, feed) {
  const { about } = run;
  if (about) {
    put(byId("run"), about.run);
    put(byId("recipe"), recipeLine(about));
    byId("recipe").title = about.description;
    document.title = `${about.run} · ${run.rounds.at(-1)?.round ?? 0}/${about.rounds} · FedIL`;
  }
  showState(run, feed);
  showNow(run, feed);
  showAccuracy(run);
  showVerdict(run);
  showFigures(run);
}

function recipeLine(about) {
  const asked =
    about.mode === "buffered" ? `${about.asked} answers an aggregation` : `${about.asked} a round`;
  return [
    `recipe ${about.recipe}`,
    `${about.method}, profile ${about.profile}`,
    `${about.network} on ${about.data}`,
    `${count(about.clients)} clients, ${asked}`,
  ].join(" · ");
}

function showState(run, feed) {
  const pill = byId("state");
  const ended = ENDED.has(run.state);
  const gone = feed.gone !== null;
  const state = gone && !ended ? "gone" : isStopped(run) ? "waiting" : run.state;
  put(pill, state === "gone" ? "server is gone" : state);
  set(pill, "data-state", state);
  showTroubles(run, feed, ended);
}

/** Nothing moves until a trouble is over. */
function isStopped(run) {
  return run.state === "running" && run.troubles.some((one) => one.stops);
}

/** The time goes on each second: screen readers are told of the words only. */
function showTroubles(run, feed, ended) {
  const host = byId("trouble");
  const whole = troubleText(run, feed, ended);
  const shown = whole ? [{ words: whole }] : ended || run.state === "standby" ? [] : run.troubles;
  const key = JSON.stringify(shown.map((one) => [one.words, one.stops]));
  if (host.dataset.key !== key) {
    host.dataset.key = key;
    host.replaceChildren(
      ...shown.map((one) => make("p", {}, make("bdi", {}, one.words), make("span", { "aria-hidden": "true" }))),
    );
  }
  shown.forEach((one, index) => {
    const waited = one.since ? wholeDuration(feed.now() - one.since) : "";
    put(host.children[index].lastElementChild, waited && `, ${one.stops ? "waiting " : ""}for ${waited}`);
  });
  host.hidden = !shown.length;
}

function troubleText(run, feed, ended) {
  if (feed.gone && feed.seen === null) return `The server cannot be reached: ${feed.gone.why}. Asking again.`;
  if (feed.gone && ended)
    return `The run has ended (${run.state}) and its server with it; last seen ${clock(feed.seen)}.`;
  if (feed.gone)
    return `The server is gone: ${feed.gone.why}. Last seen ${clock(feed.seen)}; this page goes on when it is back.`;
  if (run.state === "failed")
    return `The run has failed${run.reason ? `: ${run.reason}` : "; its log says why"}.`;
  return run.state === "standby" ? "This server stands by: another one leads this run." : "";
}

function showNow(run, feed) {
  const planned = run.about?.rounds ?? 0;
  const last = run.rounds.at(-1);
  const phase = run.state === "running" || run.state === "starting" ? run.phase : null;
  const current = phase?.round || last?.round || 0;
  put(byId("now-round"), current ? `Round ${current}` : run.about ? "Before round 1" : "–");
  put(byId("now-of"), planned ? `of ${count(planned)}` : "");
  put(byId("now-phase"), phaseWords(run, phase, feed));
  put(byId("now-left"), leftWords(run, planned, feed));
  // A training with epochs is before the first round or after the last one.
  const [done, all] = phase?.epochs ? [phase.epochs.done, phase.epochs.total] : [last?.round ?? 0, planned];
  const bar = byId("run-bar");
  set(bar, "aria-label", phase?.epochs ? "Epochs done" : "Rounds closed");
  set(bar, "aria-valuemax", Math.max(1, all));
  set(bar, "aria-valuenow", done);
  bar.firstElementChild.style.width = `${all ? (100 * Math.min(done, all)) / all : 0}%`;
  byId("answers").classList.toggle("gone", !phase?.round);
  showAnswers(
    run,
    run.open.find((opened) => opened.round === phase?.round),
  );
}

function phaseWords(run, phase, feed) {
  if (feed.gone && !ENDED.has(run.state)) return "no news";
  if (run.state === "done") return `finished ${clock(run.since)}`;
  if (run.state === "stopped") return `stopped ${clock(run.since)}; it can be resumed`;
  if (run.state === "failed") return `failed ${clock(run.since)}`;
  if (run.state === "standby") return `waiting since ${clock(run.since)}`;
  if (run.state === "starting" && run.reason) return `waiting since ${clock(run.since)}: ${run.reason}`;
  if (!phase) return run.state;
  const opened = run.open.find((one) => one.round === phase.round);
  const words = run.about?.phases[phase.name] ?? phase.name.replaceAll("_", " ");
  const answered =
    phase.name === "wait"
      ? `, ${opened?.answered ?? 0} of ${opened?.selected || run.about?.asked || 0} answered`
      : "";
  if (phase.epochs) return `${words}: epoch ${count(phase.epochs.done)} of ${count(phase.epochs.total)}`;
  const since = feed.now() - phase.since;
  return since >= 2 ? `${words}${answered}, for ${wholeDuration(since)}` : `${words}${answered}`;
}

/** Of a training with epochs, or of the run, estimated from the last rounds. */
function leftWords(run, planned, feed) {
  const last = run.rounds.at(-1);
  const epochs = run.phase?.epochs;
  if (epochs && !feed.gone && !ENDED.has(run.state))
    return `about ${wholeDuration(Math.max(0, epochs.ends - feed.now()))} left of it`;
  if (run.state !== "running" || isStopped(run) || feed.gone || !last || last.round >= planned) return "";
  const each = median(run.rounds.slice(-RECENT).map((row) => row.seconds.total));
  if (each === null) return "";
  const began = run.open.at(-1)?.began ?? feed.now();
  const left = (planned - last.round) * each - Math.min(each, Math.max(0, feed.now() - began));
  return `about ${wholeDuration(left)} left`;
}

function showAnswers({ about, outcomes }, opened) {
  const host = byId("answers");
  const selected = opened?.selected || about?.asked || 0;
  const answered = opened?.answered ?? 0;
  const letters = [...(opened?.outcomes ?? "")];
  const shown = Math.min(MOST_ANSWERS, Math.max(selected, letters.length));
  const scale = Math.max(1, Math.max(selected, letters.length) / MOST_ANSWERS);
  const cells = Array.from({ length: shown }, (_, index) => letters[Math.floor(index * scale)] ?? "");
  const key = cells.join("-") + selected;
  set(host, "aria-label", `${answered} of ${selected} clients have answered`);
  if (host.dataset.key === key) return;
  host.dataset.key = key;
  host.replaceChildren(
    ...cells.map((letter) =>
      make("i", { class: letter ? `answer mark-${outcomeOf(outcomes, letter).key}` : "answer" }),
    ),
  );
}

function showAccuracy({ about, rounds }) {
  const measured = rounds.findLast((row) => known(row.accuracy.global));
  put(byId("score"), measured ? percent(measured.accuracy.global, 2) : "");
  if (!measured || !about) {
    put(byId("score-of"), "");
    return;
  }
  const { baseline, display } = about;
  const gain = known(baseline) ? `, ${points(measured.accuracy.global - baseline)} server-only` : "";
  put(byId("score-of"), `accuracy of the ${display.models[0].label} after round ${count(measured.round)}${gain}`);
}

function showVerdict(run) {
  const { about } = run;
  const last = run.rounds.at(-1);
  const button = byId("verdict");
  button.hidden = !last || !about;
  if (button.hidden) return;
  const trend = about.trends[last.verdict] ?? { level: "none", mark: "", words: last.verdict, why: "" };
  put(byId("verdict-text"), `update size: ${trend.words} ${trend.mark}`.trim());
  set(button, "data-level", trend.level);
  const why = byId("verdict-why");
  const lines = [trend.why, fitLine(last), about.trend_foot];
  const key = lines.join("\n");
  if (why.dataset.key === key) return;
  why.dataset.key = key;
  why.replaceChildren(...lines.filter(Boolean).map((line) => make("p", {}, line)));
}

function fitLine(row) {
  if (!known(row.exponent)) return "";
  const error = known(row.exponent_error) ? ` ± ${(2 * row.exponent_error).toFixed(2)}` : "";
  return `Here p = ${row.exponent.toFixed(2).replace("-", "−")}${error}; above 1 the steps are summable, at 0 they do not shrink.`;
}

export function wireVerdict() {
  const button = byId("verdict");
  const why = byId("verdict-why");
  let pinned = false;
  const open = (wanted) => {
    why.hidden = !wanted;
    button.setAttribute("aria-expanded", String(wanted));
  };
  button.addEventListener("click", () => {
    pinned = !pinned;
    open(pinned);
  });
  button.parentElement.addEventListener(
    "pointerenter",
    (event) => event.pointerType === "mouse" && open(true),
  );
  button.parentElement.addEventListener("pointerleave", () => open(pinned));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") open((pinned = false));
  });
}

function showFigures(run) {
  const last = run.rounds.at(-1);
  const alive = run.fleet;
  const figures = [
    [
      "Update size ‖Δθ‖",
      last ? brief(last.delta) : "–",
      last && known(last.ratio) ? `${brief(last.ratio)} × the one before` : "",
    ],
    ["Accepted", last ? `${last.accepted} of ${last.selected}` : "–", last ? `in round ${last.round}` : ""],
    ...declaredFigures(run.about, last),
    [
      "A round takes",
      last ? duration(median(run.rounds.slice(-RECENT).map((row) => row.seconds.total))) : "–",
      last ? "median of the last 20" : "",
    ],
    [
      "Workers",
      alive ? count(alive.workers.length + alive.workers_not_shown) : "–",
      alive && run.about
        ? `${count(alive.clients_alive)} of ${count(run.about.clients)} clients reachable`
        : "",
    ],
  ];
  const host = byId("figures");
  host.hidden = !last;
  const names = figures.map(([name]) => name).join("\n");
  if (host.dataset.key !== names) {
    host.dataset.key = names;
    host.replaceChildren(
      ...figures.map(([name]) =>
        make(
          "div",
          {},
          make("dt", {}, name),
          make("dd", { class: "figure" }),
          make("dd", { class: "quiet" }),
        ),
      ),
    );
  }
  figures.forEach(([, value, more], index) => {
    put(host.children[index].children[1], value);
    put(host.children[index].children[2], more);
  });
}

/** One figure per declared chart that has a series with a column in the terminal; its other such series below. */
function declaredFigures(about, last) {
  if (!about || !last) return [];
  const charts = about.display.charts.filter((chart) => chart.series.some((one) => one.column));
  return charts.map((chart) => {
    const [first, ...others] = chart.series.filter((one) => one.column);
    const more = seriesWords({ series: others }, last.series);
    return [chart.title, formatOf(first.unit)(last.series[first.name]), more.join(", ") || first.title];
  });
}
