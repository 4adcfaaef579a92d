// One value of every client's update, one column per round.
import { outcomeOf } from "./display.js";
import { svg } from "./dom.js";
import { known, signed } from "./numbers.js";
import { extent, roomFor } from "./scales.js";

const LANE = 30;
const GAP = 10;
const NEAR = 14;
const MOST_DOTS = 24000; // of more, evenly chosen ones are drawn …
const RARE = 2000; // … but all of a rare outcome

/** value, outcomes: as declared; siteOf(client); detail(round, client, ready): why it did not count. */
export function stripKind({ value, outcomes, siteOf, detail }) {
  const { name, title, low, high, threshold } = value;
  const range = high - low;
  const digits = Math.max(0, 4 - Math.floor(Math.log10(range)));
  const strip = { name, outcomes, clamp: (number) => Math.max(low, Math.min(high, number)) };
  const margin = threshold === null ? [] : [threshold - range / 20, threshold + range / 20];
  return {
    label: `${title} of each client's update`,
    lane: LANE,
    height: () => 230,
    prepare(rows) {
      const found = rows.flatMap((row) => reach(row, name).map(strip.clamp));
      const seen = [...found, ...margin];
      const domain = roomFor(seen.length ? seen : [low, high], {
        floor: low - range / 40,
        ceiling: high + range / 40,
        least: range / 100,
      });
      return { rows, strides: strides(rows), y: { domain, format: signed } };
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
      if (threshold !== null) {
        const y = frame.y(threshold);
        parts.push(svg("line", { class: "threshold", x1: frame.left, x2: frame.right, y1: y, y2: y }));
      }
      return [...parts, ...dots(frame, prepared, strip)];
    },
    nearest(frame, { rows }, at, again) {
      const best = nearest(frame, rows, at, strip);
      if (!best) return null;
      const { row, index } = best;
      const client = row.clients[index];
      const outcome = outcomeOf(outcomes, row.outcomes[index]);
      const line = (what, said) => ({ mark: "none", name: what, value: said });
      const lines = [
        { mark: `mark-${outcome.key}`, name: outcome.title, value: "" },
        line(title, signed(row.values[name][index], digits)),
      ];
      if (siteOf(client)) lines.push(line("site", siteOf(client)));
      if (row.staleness) lines.push(line("versions behind", String(row.staleness[index] ?? "–")));
      // Accepted updates need no explanation.
      if (outcome !== outcomes[0])
        lines.push((row.unfinished ? "" : detail(row.round, client, again)) || outcome.help);
      return { heading: `Round ${row.round}, client ${client}`, lines };
    },
    tips(row) {
      const lines = Object.entries(tally(row)).map(([letter, times]) => {
        const outcome = outcomeOf(outcomes, letter);
        return { mark: `mark-${outcome.key}`, name: outcome.title, value: String(times) };
      });
      if (row.not_shown) lines.push(`${row.not_shown} more are not drawn`);
      if (row.unfinished) lines.push("still open");
      return lines;
    },
    columns: () => [
      ...outcomes.map(({ title: heading, letter }) => ({
        name: heading,
        text: (row) => String(tally(row)[letter] ?? 0),
      })),
      { name: `lowest ${title}`, text: (row) => signed(reach(row, name)[0]) },
      { name: `highest ${title}`, text: (row) => signed(reach(row, name)[1]) },
    ],
    legend: ({ rows }) => [
      ...outcomes
        .filter(({ letter }) => rows.some((row) => row.outcomes.includes(letter)))
        .map(({ key, title: words, help }) => ({ css: `mark-${key}`, name: words, help, glyph: key })),
      ...(threshold === null ? [] : [{ css: "threshold", name: "threshold" }]),
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

/** The number of each outcome, and the stride at which it is drawn. */
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

const reached = new WeakMap();

/** The least and the greatest value of a round; empty without any. */
function reach(row, name) {
  if (!reached.has(row)) reached.set(row, {});
  const found = reached.get(row);
  if (!found[name]) {
    const numbers = row.values[name].filter(known);
    found[name] = numbers.length ? extent(numbers) : [];
  }
  return found[name];
}

/** Where a client's dot is: side by side in a wide column, on top of each other in a narrow one. */
function place(frame, row, index, { name, clamp }) {
  const spread = Math.min(frame.column * 0.62, 90);
  const x = frame.x(row.round) + ((index + 0.5) / row.clients.length - 0.5) * spread;
  const number = row.values[name][index];
  return [x, known(number) ? frame.y(clamp(number)) : frame.bottom + GAP + (LANE - GAP) / 2];
}

function dots(frame, { rows, strides: { skip } }, strip) {
  const size = Math.max(1.8, Math.min(4.2, frame.column * 0.3));
  const paths = new Map();
  const taken = new Set();
  const passed = {};
  for (const row of rows) {
    for (let index = 0; index < row.clients.length; index += 1) {
      const letter = row.outcomes[index];
      passed[letter] = (passed[letter] ?? 0) + 1;
      if ((passed[letter] - 1) % skip[letter]) continue;
      const [x, y] = place(frame, row, index, strip);
      // A dot that would lie on another of its kind is left out.
      const cell = (Math.round(x * 2) * 4096 + Math.round(y * 2)) * 128 + letter.charCodeAt(0);
      if (taken.has(cell)) continue;
      taken.add(cell);
      const key = row.unfinished ? `${letter}+` : letter;
      if (!paths.has(key)) paths.set(key, []);
      paths.get(key).push(glyph(outcomeOf(strip.outcomes, letter).key, x, y, size));
    }
  }
  // In the order of the table: accepted ones, which are most, below the others.
  return [...paths.keys()].sort().map((key) => {
    const { name, key: kind } = outcomeOf(strip.outcomes, key[0]);
    return svg("path", {
      class: `mark mark-${kind}${key[1] ? " unfinished" : ""}`,
      d: paths.get(key).join(""),
      "data-outcome": name,
      "data-dots": paths.get(key).length,
    });
  });
}

/** Outcomes differ in shape as well as in colour. */
export function glyph(key, x, y, size) {
  const [cx, cy, r] = [x, y, size].map((value) => Number(value.toFixed(2)));
  switch (key) {
    case "own-1":
      return `M${cx},${cy - 1.2 * r}l${1.2 * r},${2.2 * r}h${-2.4 * r}z`;
    case "own-2":
      return `M${cx - r},${cy - r}l${2 * r},${2 * r}M${cx + r},${cy - r}l${-2 * r},${2 * r}`;
    case "own-3":
      return `M${cx},${cy + 1.2 * r}l${1.2 * r},${-2.2 * r}h${-2.4 * r}z`;
    case "own-4":
    case "missing":
      return `M${cx - 1.2 * r},${cy}h${2.4 * r}`;
    case "invalid":
      return `M${cx - r},${cy - r}h${2 * r}v${2 * r}h${-2 * r}z`;
    case "refused":
      return `M${cx},${cy - 1.3 * r}l${1.3 * r},${1.3 * r}l${-1.3 * r},${1.3 * r}l${-1.3 * r},${-1.3 * r}z`;
    default:
      return `M${cx - r},${cy}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0z`;
  }
}

function nearest(frame, rows, at, strip) {
  let best = null;
  for (const row of rows) {
    if (Math.abs(frame.x(row.round) - at.x) > frame.column + NEAR) continue;
    for (let index = 0; index < row.clients.length; index += 1) {
      const [x, y] = place(frame, row, index, strip);
      const distance = Math.hypot(x - at.x, y - at.y);
      if (distance < NEAR && distance < (best?.distance ?? Infinity)) best = { row, index, distance };
    }
  }
  return best;
}
