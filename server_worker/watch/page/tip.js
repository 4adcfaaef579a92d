// The box that describes what is under the pointer.
import { byId, make } from "./dom.js";

const box = () => byId("tip");
const MARGIN = 8;

/** lines: [{mark, name, value}] or a string for a line of text. */
export function showTip(heading, lines, x, y) {
  const tip = box();
  const list = lines.map((line) =>
    typeof line === "string"
      ? make("p", {}, line)
      : make(
          "p",
          { class: "tip-line" },
          make("i", { class: `swatch ${line.mark ?? "none"}`, "aria-hidden": "true" }),
          make("bdi", {}, line.name),
          make("b", {}, line.value),
        ),
  );
  tip.replaceChildren(make("p", { class: "tip-head" }, heading), ...list);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  const left = x + 14 + width > room - MARGIN ? x - 14 - width : x + 14;
  const top = y + 14 + height > innerHeight - MARGIN ? y - 14 - height : y + 14;
  tip.style.left = `${Math.max(MARGIN, Math.min(left, room - width - MARGIN))}px`;
  tip.style.top = `${Math.max(MARGIN, top)}px`;
}

export function hideTip() {
  box().hidden = true;
}
