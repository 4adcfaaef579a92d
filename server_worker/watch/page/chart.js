// A chart by round: axes, pointer, keyboard. Its kind draws the inside:
//   label                       what it shows, for screen readers
//   prepare(rows, width)        → {y: {domain, log?, whole?, unit?, format(value, digits)}, …}; null if there is nothing
//   marks(frame, prepared)      → SVG nodes
//   ends(prepared)              → [{value, text, css, figure?}] labels right of the last points; the figure alone
//                               where there is no room for both
//   nearest(frame, prepared, at, again)  → {heading, lines} of what is at that point; again() when more is known
//   tips(row, prepared)         → lines for the box under the pointer
//   height(prepared)            in pixels, without the axis; and lane: room below the axis' bottom
import { fit, svg, widthOf } from "./dom.js";
import { apart, decimals, linear, logTicks, logarithmic, roundTicks, ticks } from "./scales.js";
import { hideTip, showTip } from "./tip.js";
import { look, onView, view } from "./view.js";

const TOP = 10;
const AXIS = 26;
const LINE = 14;

export class Chart {
  constructor(host, kind) {
    Object.assign(this, { host, kind, rows: [], width: 0 });
    host.classList.add("chart");
    host.tabIndex = 0;
    host.setAttribute("role", "slider");
    host.setAttribute("aria-label", `${kind.label}, by round`);
    this.svg = svg("svg", { "aria-hidden": "true" });
    this.cross = svg("line", { class: "cross" });
    this.chosen = svg("line", { class: "chosen" });
    host.append(this.svg);
    new ResizeObserver(() => {
      if (host.clientWidth !== this.width) this.draw();
    }).observe(host);
    host.addEventListener("pointermove", (event) => this.point(event));
    host.addEventListener("pointerleave", () => this.leave());
    host.addEventListener("blur", () => this.leave());
    host.addEventListener("click", (event) => {
      this.point(event);
      if (view.cursor !== null) look({ chosen: view.cursor });
    });
    host.addEventListener("keydown", (event) => this.press(event));
    onView((changed) => {
      if (changed.includes("cursor") || changed.includes("chosen")) this.mark();
    });
  }

  show(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    this.width = this.host.clientWidth;
    this.prepared = this.rows.length && this.width ? this.kind.prepare(this.rows, this.width) : null;
    if (!this.prepared) return;
    const height = this.kind.height(this.prepared) + AXIS;
    this.host.style.height = `${height}px`;
    const frame = (this.frame = this.makeFrame(height));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.svg.setAttribute("width", this.width);
    this.svg.setAttribute("height", height);
    const parts = [...this.xAxis(frame), ...(this.kind.yAxis?.(frame, this.prepared) ?? this.yAxis(frame))];
    this.svg.replaceChildren(
      ...parts,
      this.chosen,
      ...this.kind.marks(frame, this.prepared),
      ...this.endLabels(frame),
      this.cross,
    );
    this.host.setAttribute("aria-valuemin", frame.first);
    this.host.setAttribute("aria-valuemax", frame.last);
    this.host.setAttribute("aria-valuenow", view.cursor ?? view.chosen ?? frame.last);
    this.mark();
  }

  makeFrame(height) {
    const { y, left, right, first, last } = {
      first: this.rows[0].round,
      last: this.rows.at(-1).round,
      ...this.prepared,
    };
    const bottom = height - AXIS - (this.kind.lane ?? 0);
    const about = Math.max(2, Math.floor((bottom - TOP) / 36));
    const unit = y.unit ?? 1;
    const choose = y.log ? logTicks : y.whole ? roundTicks : ticks;
    const values =
      y.values ?? choose(...y.domain.map((end) => end / unit), about).map((value) => value * unit);
    const digits = decimals(values.map((value) => value / unit));
    const format = (value) => y.format(value, digits);
    const room = this.width * 0.3;
    const ends = (this.kind.ends?.(this.prepared) ?? []).map((end) => ({
      ...end,
      text: fit(widthOf(end.text, true) > room ? (end.figure ?? end.text) : end.text, room, true),
    }));
    const from = left ?? Math.max(30, ...values.map((value) => widthOf(format(value)))) + 10;
    const to =
      this.width -
      (right ?? Math.max(widthOf(String(last)) / 2 + 2, ...ends.map((end) => widthOf(end.text, true) + 12)));
    const column = (to - from) / (last - first + 1);
    return {
      left: from,
      right: to,
      top: TOP,
      bottom,
      width: this.width,
      first,
      last,
      column,
      values,
      ends,
      x: (round) => from + (round - first + 0.5) * column,
      y: (y.log ? logarithmic : linear)(y.domain, [bottom, TOP]),
      format,
    };
  }

  xAxis(frame) {
    const { first, last, left, right } = frame;
    const wide = widthOf(last.toLocaleString("en")) + 18;
    const about = Math.max(1, Math.min(10, Math.floor((right - left) / (wide * 1.6))));
    let marked = roundTicks(first, last, about);
    if (!marked.length || last - first < 4)
      marked = Array.from({ length: last - first + 1 }, (_, k) => first + k);
    const line = this.svgHeight() - 6;
    const name = svg("text", { class: "axis-name", x: left - 8, y: line, "text-anchor": "end" }, "round");
    return [
      name,
      ...marked.map((round) =>
        svg("text", { class: "tick", x: frame.x(round), y: line, "text-anchor": "middle" }, String(round)),
      ),
    ];
  }

  svgHeight() {
    return this.kind.height(this.prepared) + AXIS;
  }

  yAxis(frame) {
    return frame.values.flatMap((value) => {
      const y = frame.y(value);
      return [
        svg("line", { class: "grid", x1: frame.left, x2: frame.right, y1: y, y2: y }),
        svg(
          "text",
          { class: "tick", x: frame.left - 8, y: y + 4, "text-anchor": "end" },
          frame.format(value),
        ),
      ];
    });
  }

  endLabels(frame) {
    const places = apart(
      frame.ends.map((end) => frame.y(end.value) + 4),
      LINE,
      TOP + 4,
      frame.bottom + 4,
    );
    return frame.ends.map((end, index) =>
      svg("text", { class: `end ${end.css}`, x: frame.right + 6, y: places[index] }, end.text),
    );
  }

  // ---- pointer and keyboard ---------------------------------------------------------------------------------

  rowOf(round) {
    const index = round - this.rows[0].round;
    // Round numbers are consecutive, unless lines were removed from the history.
    return this.rows[index]?.round === round
      ? this.rows[index]
      : this.rows.find((row) => row.round === round);
  }

  point(event) {
    if (!this.prepared) return;
    const { left, top } = this.host.getBoundingClientRect();
    const x = event.clientX - left;
    const { first, last, column } = this.frame;
    const round = Math.max(first, Math.min(last, Math.round(first + (x - this.frame.left) / column - 0.5)));
    look({ cursor: round });
    this.pointed = event;
    this.describe(round, event.clientX, event.clientY, { x, y: event.clientY - top });
  }

  leave() {
    this.pointed = null;
    hideTip();
    look({ cursor: null });
  }

  describe(round, clientX, clientY, at) {
    const row = this.rowOf(round);
    if (!row) return hideTip();
    const again = () => this.pointed && this.point(this.pointed);
    const close = at && this.kind.nearest?.(this.frame, this.prepared, at, again);
    const { heading, lines } = close ?? {
      heading: `Round ${round}`,
      lines: this.kind.tips(row, this.prepared),
    };
    showTip(heading, lines, clientX, clientY);
    this.host.setAttribute("aria-valuenow", round);
    this.host.setAttribute("aria-valuetext", [heading, ...lines.map(spoken)].join(", "));
  }

  press(event) {
    if (!this.prepared) return;
    const { first, last } = this.frame;
    const from = view.cursor ?? view.chosen ?? last;
    const steps = {
      ArrowLeft: -1,
      ArrowDown: -1,
      ArrowRight: 1,
      ArrowUp: 1,
      PageDown: -10,
      PageUp: 10,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key === "Enter" || event.key === " ") look({ chosen: from });
    else if (event.key === "Escape") this.leave();
    else if (event.key in steps) {
      const round = Math.max(first, Math.min(last, from + steps[event.key]));
      look({ cursor: round });
      const { left, top } = this.host.getBoundingClientRect();
      this.describe(round, left + this.frame.x(round), top + TOP);
    } else return;
    event.preventDefault();
  }

  mark() {
    if (!this.prepared) return;
    for (const [line, round] of [
      [this.cross, view.cursor],
      [this.chosen, view.chosen],
    ]) {
      const inside = round !== null && round >= this.frame.first && round <= this.frame.last;
      line.classList.toggle("off", !inside);
      if (!inside) continue;
      const x = this.frame.x(round);
      for (const [name, value] of Object.entries({
        x1: x,
        x2: x,
        y1: TOP,
        y2: this.frame.bottom + (this.kind.lane ?? 0),
      })) {
        line.setAttribute(name, value);
      }
    }
  }
}

function spoken(line) {
  return typeof line === "string" ? line : `${line.name} ${line.value}`;
}
