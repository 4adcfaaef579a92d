// Workers, queues, the store, sites without a worker; and the notes.
import { byId, make, put, table } from "./dom.js";
import { brief, bytes, clock, count, known } from "./numbers.js";
import { STORE } from "./words.js";

const QUEUES = [
  ["tasks", "tasks waiting"],
  ["updates", "updates waiting"],
  ["dead_letters", "dead letters"],
];

export function showFleet(run) {
  const { fleet, about } = run;
  put(byId("fleet-when"), fleet ? `as of ${clock(fleet.at)}` : "");
  const body = byId("fleet-body");
  const key = `${run.life}/${run.surveys}`;
  if (body.dataset.key === key) return;
  body.dataset.key = key;
  if (!fleet) {
    body.replaceChildren(make("p", { class: "quiet" }, "No survey yet."));
    return;
  }
  body.replaceChildren(
    ...[
      fleet.trouble &&
        make(
          "p",
          { class: "trouble" },
          `The brokers cannot be reached: ${fleet.trouble}. These figures are older.`,
        ),
      tiles(fleet, about),
      empty(fleet),
      fleet.workers.length
        ? make(
            "div",
            { class: "scroll", tabindex: "0", role: "region", "aria-label": "Workers" },
            workers(fleet.workers),
          )
        : make("p", { class: "quiet" }, "No worker yet: start some, and they appear here."),
      fleet.workers_not_shown > 0 &&
        make("p", { class: "quiet" }, `${count(fleet.workers_not_shown)} more workers are not listed.`),
    ].filter(Boolean),
  );
}

function tiles(fleet, about) {
  const shown = [];
  if (about)
    shown.push([
      "clients reachable",
      `${count(fleet.clients_alive)} of ${count(about.clients)}`,
      fleet.clients_alive ? "" : "bad",
    ]);
  for (const [key, name] of QUEUES) {
    if (key in fleet.depths)
      shown.push([name, count(fleet.depths[key]), key === "dead_letters" && fleet.depths[key] ? "bad" : ""]);
  }
  for (const [key, value] of Object.entries(fleet.store)) {
    shown.push([
      STORE[key] ?? key.replaceAll("_", " "),
      key.endsWith("bytes") ? bytes(value) : brief(value),
      key.startsWith("evicted") && value ? "bad" : "",
    ]);
  }
  return make(
    "dl",
    { class: "tiles" },
    ...shown.map(([name, value, level]) =>
      make(
        "div",
        { "data-level": level || null },
        make("dt", {}, make("bdi", {}, name)),
        make("dd", {}, value),
      ),
    ),
  );
}

function empty(fleet) {
  if (!fleet.sites_without_worker.length) return null;
  const rest = fleet.sites_not_shown ? ` and ${count(fleet.sites_not_shown)} more` : "";
  return make(
    "p",
    { class: "sites" },
    make("b", {}, "Sites without a worker: "),
    ...fleet.sites_without_worker.flatMap((site, index) => [index ? ", " : "", make("bdi", {}, site)]),
    rest,
  );
}

function workers(list) {
  const head = [
    "worker",
    "site",
    "device",
    "state",
    "since",
    "round",
    "client",
    "tasks done",
    "images/s",
    "version",
  ];
  const number = (value) => (known(value) ? count(value) : "–");
  const rows = list.map((worker) => [
    worker.name ?? "–",
    worker.site ?? "–",
    worker.device ?? "–",
    make("span", { class: "tag" }, worker.state ?? "–"),
    clock(worker.since),
    number(worker.round),
    number(worker.client),
    number(worker.tasks_done),
    known(worker.images_per_second) ? brief(worker.images_per_second) : "–",
    worker.version ?? "–",
  ]);
  return table("Workers", head, rows);
}

export function showNotes(run) {
  const host = byId("notes");
  const key = `${run.life}/${run.notes.at(-1)?.[0] ?? 0}`;
  if (host.dataset.key === key) return;
  host.dataset.key = key;
  const entries = run.notes
    .toReversed()
    .map(([, at, text]) =>
      make("li", {}, make("time", { class: "quiet" }, clock(at)), make("bdi", {}, text)),
    );
  host.replaceChildren(
    ...(entries.length ? entries : [make("li", { class: "quiet" }, "No notes yet.")]),
  );
}
