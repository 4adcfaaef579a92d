// Numbers and times for people.

export const known = (value) => typeof value === "number" && Number.isFinite(value);

export function percent(share, digits = 1) {
  return known(share) ? `${(100 * share).toFixed(digits)} %` : "–";
}

export function points(share) {
  return `${Math.abs(100 * share).toFixed(1)} points ${share < 0 ? "under" : "over"}`;
}

export function count(value) {
  return known(value) ? value.toLocaleString("en") : "–";
}

/** Three significant digits. */
export function brief(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4))
    return value.toExponential(1).replace("e+", "e").replace("-", "−");
  const text = size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
  return text.replace("-", "−");
}

export function signed(value, digits = 3) {
  return known(value) ? `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(digits)}` : "–";
}

export function duration(seconds) {
  if (!known(seconds)) return "–";
  const whole = Math.max(0, seconds);
  if (whole === 0) return "0 s";
  if (whole < 0.0095) return `${(1000 * whole).toFixed(1)} ms`;
  if (whole < 0.95) return `${Math.round(1000 * whole)} ms`;
  if (whole < 9.95) return `${whole.toFixed(1)} s`;
  return wholeDuration(whole);
}

/** The unit of an axis that ends at `top` seconds. */
export function secondsUnit(top) {
  if (top < 0.9) return { size: 1e-3, name: "ms" };
  if (top < 150) return { size: 1, name: "s" };
  return top < 9000 ? { size: 60, name: "min" } : { size: 3600, name: "h" };
}

/** Without fractions, for running times. */
export function wholeDuration(seconds) {
  const rounded = Math.max(0, Math.round(seconds));
  if (rounded < 60) return `${rounded} s`;
  if (rounded < 3600) return `${Math.floor(rounded / 60)} min ${String(rounded % 60).padStart(2, "0")} s`;
  if (rounded < 48 * 3600)
    return `${Math.floor(rounded / 3600)} h ${String(Math.floor((rounded % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.round(rounded / 86400)} days`;
}

export function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** Hours, minutes and seconds here; with the day if it is not today. */
export function clock(secondsSince1970) {
  if (!known(secondsSince1970) || secondsSince1970 <= 0) return "–";
  const date = new Date(1000 * secondsSince1970);
  const two = (value) => String(value).padStart(2, "0");
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

export function median(values) {
  const sorted = values.filter(known).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}
