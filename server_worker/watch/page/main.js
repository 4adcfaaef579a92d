// Puts the page together: the feed's answers go to the header, the charts and the tables.
import { detailOf } from "./details.js";
import { byId, put } from "./dom.js";
import { Feed } from "./feed.js";
import { showFleet, showNotes } from "./fleet.js";
import { showHeader, wireVerdict } from "./header.js";
import { count, percent } from "./numbers.js";
import { makePanels } from "./panels.js";
import { RoundPanel } from "./rounds.js";
import { look, onView } from "./view.js";

const ANNOUNCE_EVERY_MS = 15000;
const feed = new Feed(hear);
const detail = (round, client, ready) => detailOf(feed.run.life, round, client, ready);
const roundPanel = new RoundPanel();
let panels = null;
let declared = "";
let opened = "";
let behind = false;
let due = 0;
let announced = -ANNOUNCE_EVERY_MS;

function hear(run, { fresh, complete }) {
  showHeader(run, feed);
  showFleet(run);
  showNotes(run);
  const open = JSON.stringify([run.abouts, run.open.map((one) => [one.round, one.clients.length])]);
  if (complete && (fresh || open !== opened || behind)) {
    opened = open;
    redraw();
  }
  behind = !complete;
  if (fresh && complete) announce(run);
  document.body.dataset.ready = String(complete);
}

/** At most once per frame. */
function redraw() {
  cancelAnimationFrame(due);
  due = requestAnimationFrame(() => {
    const { run } = feed;
    byId("nothing").hidden = feed.seen === null || run.rounds.length > 0;
    put(byId("nothing-words"), plan(run.about));
    byId("tools").hidden = !run.rounds.length;
    build(run);
    panels?.show(run);
    roundPanel.show(run);
    document.body.dataset.drawn = run.rounds.at(-1)?.round ?? 0;
  });
}

/** The charts that the method declares; anew if another run has taken this address. */
function build({ about, outcomes }) {
  const key = JSON.stringify(about?.display);
  if (!about || key === declared) return;
  declared = key;
  panels = makePanels(about.display, outcomes, () => feed.run, redraw, detail);
}

function plan(about) {
  const said = about
    ? `${count(about.rounds)} rounds are planned, with ${count(about.asked)} of ${count(about.clients)} clients in each. `
    : "";
  return `${said}Curves appear here when the first one closes.`;
}

function announce(run) {
  const last = run.rounds.at(-1);
  if (!last || performance.now() - announced < ANNOUNCE_EVERY_MS) return;
  announced = performance.now();
  put(byId("announce"), `Round ${last.round} closed, accuracy ${percent(last.accuracy.global)}`);
}

byId("range").addEventListener("change", (event) => look({ range: Number(event.target.value) }));
onView((changed) => {
  if (changed.includes("range")) redraw();
});
wireVerdict();
// Times go on between two answers.
setInterval(() => showHeader(feed.run, feed), 1000);
feed.start();
