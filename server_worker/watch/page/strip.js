// The cosine of every client's update with the server's own step, a column a round.
import { svg } from "./dom.js";
import { known, signed } from "./numbers.js";
import { extent, roomFor } from "./scales.js";
import { OUTCOMES } from "./words.js";

const LANE = 30;
const GAP = 10;
const NEAR = 14;
const MOST_DOTS = 24000; // of more, evenly chosen ones are drawn …
const RARE = 2000; // … but all of a kind that is rare
// Below the others first: what was excluded must not be covered.
const ORDER = ["a", "p", "s", "m", "f", "i", "r", "?"];

/** threshold() → below which an update does not count as it is, or null; siteOf(client);
 * detail(round, client, ready): the server's words on it. */
export function stripKind({ threshold, siteOf, detail }) {
  return {
    label: "Cosine of each client's update",
    lane: LANE,
    height: () => 230,
    prepare(rows) {
      const limit = threshold();
      const domain = roomFor([...rows.flatMap(reach), limit ?? 0, 0.1, -0.1], {
        floor: -1.05,
        ceiling: 1.05,
        least: 0.02,
      });
      return { rows, limit, strides: strides(rows), y: { domain, format: signed } };
    },
    marks(frame, prepared) {
      const laneTop = frame.bottom + GAP;
      const parts = [
        svg("rect", {
          class: "lane",
          x: frame.left,
          y: laneTop,
          width: frame.right - frame.left,
          height: LANE - GAP,
        }),
        svg("text", { class: "tick", x: frame.left - 8, y: laneTop + 14, "text-anchor": "end" }, "none"),
      ];
      if (prepared.limit !== null) {
        const y = frame.y(prepared.limit);
        parts.push(svg("line", { class: "threshold", x1: frame.left, x2: frame.right, y1: y, y2: y }));
      }
      return [...parts, ...dots(frame, prepared)];
    },
    nearest(frame, { rows }, at, again) {
      const best = nearest(frame, rows, at);
      return best && dotTip(best.row, best.index, siteOf, (client) => detail(best.row.round, client, again));
    },
    tips: (row) => counted(row),
    columns: () => [
      ...ORDER.filter((letter) => letter !== "?").map((letter) => ({
        name: OUTCOMES[letter].plural,
        text: (row) => String(tally(row)[letter] ?? 0),
      })),
      { name: "lowest cosine", text: (row) => signed(reach(row)[0]) },
      { name: "highest cosine", text: (row) => signed(reach(row)[1]) },
    ],
    legend: ({ rows, limit }) => [
      ...ORDER.filter((letter) => rows.some((row) => row.outcomes.includes(letter))).map((letter) => ({
        css: `mark-${OUTCOMES[letter].key}`,
        name: OUTCOMES[letter].words,
        glyph: letter,
      })),
      ...(limit === null ? [] : [{ css: "threshold", name: "the filter's threshold" }]),
    ],
    said({ rows, strides: { totals, skip } }) {
      const thinned = Object.entries(totals).reduce(
        (sum, [letter, total]) => sum + total - Math.ceil(total / skip[letter]),
        0,
      );
      const hidden = rows.reduce((sum, row) => sum + row.not_shown, thinned);
      return hidden ? `${hidden.toLocaleString("en")} more dots are not drawn` : "";
    },
  };
}

const tallies = new WeakMap();

function tally(row) {
  if (!tallies.has(row)) {
    const found = {};
    for (const letter of row.outcomes) found[letter] = (found[letter] ?? 0) + 1;
    tallies.set(row, found);
  }
  return tallies.get(row);
}

/** How many there are of each kind, and every how-manieth is drawn. */
function strides(rows) {
  const totals = {};
  for (const row of rows) {
    for (const [letter, times] of Object.entries(tally(row))) totals[letter] = (totals[letter] ?? 0) + times;
  }
  const all = Object.values(totals).reduce((sum, total) => sum + total, 0);
  const every = Math.ceil(all / MOST_DOTS);
  return {
    totals,
    skip: Object.fromEntries(
      Object.entries(totals).map(([letter, total]) => [letter, total <= RARE ? 1 : every]),
    ),
  };
}

function counted(row) {
  const found = tally(row);
  const lines = ORDER.filter((letter) => found[letter]).map((letter) => ({
    mark: `mark-${OUTCOMES[letter].key}`,
    name: OUTCOMES[letter].plural,
    value: String(found[letter]),
  }));
  if (row.not_shown) lines.push(`${row.not_shown} more are not drawn`);
  if (row.unfinished) lines.push("still open");
  return lines;
}

const reached = new WeakMap();

/** The least and the greatest cosine of a round, if there is any. */
function reach(row) {
  if (!reached.has(row)) {
    const found = row.cosines.filter(known);
    reached.set(row, found.length ? extent(found) : []);
  }
  return reached.get(row);
}

/** Where a client's dot is: side by side in a wide column, on top of each other in a narrow one. */
function place(frame, row, index) {
  const spread = Math.min(frame.column * 0.62, 90);
  const x = frame.x(row.round) + ((index + 0.5) / row.clients.length - 0.5) * spread;
  const cosine = row.cosines[index];
  return [x, known(cosine) ? frame.y(cosine) : frame.bottom + GAP + (LANE - GAP) / 2];
}

function dots(frame, { rows, strides: { skip } }) {
  const size = Math.max(1.8, Math.min(4.2, frame.column * 0.3));
  const paths = new Map();
  const taken = new Set();
  const passed = {};
  for (const row of rows) {
    for (let index = 0; index < row.clients.length; index += 1) {
      const letter = row.outcomes[index];
      passed[letter] = (passed[letter] ?? 0) + 1;
      if ((passed[letter] - 1) % skip[letter]) continue;
      const [x, y] = place(frame, row, index);
      // A dot that would lie on another of its kind adds nothing but work.
      const cell = (Math.round(x * 2) * 4096 + Math.round(y * 2)) * 16 + ORDER.indexOf(letter);
      if (taken.has(cell)) continue;
      taken.add(cell);
      const key = row.unfinished ? `${letter}+` : letter;
      if (!paths.has(key)) paths.set(key, []);
      paths.get(key).push(glyph(letter, x, y, size));
    }
  }
  const order = [...paths.keys()].sort((a, b) => ORDER.indexOf(a[0]) - ORDER.indexOf(b[0]));
  return order.map((key) =>
    svg("path", {
      class: `mark mark-${(OUTCOMES[key[0]] ?? OUTCOMES["?"]).key}${key[1] ? " unfinished" : ""}`,
      d: paths.get(key).join(""),
      "data-dots": paths.get(key).length,
    }),
  );
}

/** Told apart by shape as well as by colour. */
export function glyph(letter, x, y, size) {
  const [cx, cy, r] = [x, y, size].map((value) => Number(value.toFixed(2)));
  switch (letter) {
    case "a":
      return `M${cx - r},${cy}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`;
    case "p":
      return `M${cx},${cy - 1.2 * r}l${1.2 * r},${2.2 * r}h${-2.4 * r}z`;
    case "r":
      return `M${cx - r},${cy - r}l${2 * r},${2 * r}M${cx + r},${cy - r}l${-2 * r},${2 * r}`;
    case "i":
      return `M${cx - r},${cy - r}h${2 * r}v${2 * r}h${-2 * r}z`;
    case "f":
      return `M${cx},${cy - 1.3 * r}l${1.3 * r},${1.3 * r}l${-1.3 * r},${1.3 * r}l${-1.3 * r},${-1.3 * r}z`;
    case "m":
      return `M${cx - 1.2 * r},${cy}h${2.4 * r}`;
    default:
      return `M${cx - r},${cy}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`;
  }
}

function nearest(frame, rows, at) {
  let best = null;
  for (const row of rows) {
    if (Math.abs(frame.x(row.round) - at.x) > frame.column + NEAR) continue;
    for (let index = 0; index < row.clients.length; index += 1) {
      const [x, y] = place(frame, row, index);
      const distance = Math.hypot(x - at.x, y - at.y);
      if (distance < NEAR && distance < (best?.distance ?? Infinity)) best = { row, index, distance };
    }
  }
  return best;
}

function dotTip(row, index, siteOf, detail) {
  const letter = row.outcomes[index];
  const outcome = OUTCOMES[letter] ?? OUTCOMES["?"];
  const client = row.clients[index];
  const site = siteOf(client);
  const lines = [
    { mark: `mark-${outcome.key}`, name: outcome.words, value: "" },
    { mark: "none", name: "cosine", value: signed(row.cosines[index], 4) },
  ];
  if (site) lines.push({ mark: "none", name: "site", value: site });
  if (row.staleness)
    lines.push({ mark: "none", name: "versions behind", value: String(row.staleness[index] ?? "–") });
  // Most are accepted, and nothing is to be said of them.
  if (letter !== "a") lines.push((row.unfinished ? "" : detail(client)) || outcome.why);
  return { heading: `Round ${row.round}, client ${client}`, lines };
}
