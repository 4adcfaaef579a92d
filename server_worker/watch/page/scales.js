// From values to pixels, and the values that get a label.

export function linear([low, high], [from, to]) {
  const scale = (to - from) / (high - low || 1);
  return (value) => from + (value - low) * scale;
}

export function logarithmic([low, high], [from, to]) {
  const inner = linear([Math.log(low), Math.log(high)], [from, to]);
  return (value) => inner(Math.log(value));
}

/** About so many round numbers between low and high. */
export function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5].find((times) => times * power >= rough * 0.999) ?? 10);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k += 1) {
    found.push(Number((k * step).toPrecision(12)));
  }
  return found;
}

/** The number of decimals that these need. */
export function decimals(values) {
  let digits = 0;
  const exact = (value) => Math.abs(value * 10 ** digits - Math.round(value * 10 ** digits)) < 1e-6;
  while (digits < 6 && !values.every(exact)) digits += 1;
  return digits;
}

/** Whole numbers only. */
export function roundTicks(first, last, about) {
  return [...new Set(ticks(first, last, about).filter(Number.isInteger))];
}

export function logTicks(low, high, about) {
  const decades = Math.log10(high / low);
  if (decades < 1) return ticks(low, high, about).filter((value) => value > 0);
  const steps = [
    [1, 2, 5],
    [1, 3],
  ].find((some) => decades * some.length <= about + 1) ?? [1];
  const skip = Math.max(1, Math.ceil(decades / about));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    if (power % skip) continue;
    for (const step of steps) {
      const value = Number((step * 10 ** power).toPrecision(12));
      if (value >= low * 0.9999 && value <= high * 1.0001) found.push(value);
    }
  }
  return found;
}

/** [least, greatest]; Math.min fails with hundreds of thousands of arguments. */
export function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return [low, high];
}

/** A little wider than the values, also for a single one. Values that are not negative need no room below 0. */
export function roomFor(values, { floor = -Infinity, ceiling = Infinity, least = 0 } = {}) {
  let [low, high] = extent(values);
  const pad = Math.max((high - low) * 0.08, least, Math.abs(high) * 0.01, 1e-9);
  low = Math.max(low < 0 ? floor : 0, low - pad);
  high = Math.min(ceiling, high + pad);
  return [low, high > low ? high : low + 1e-6];
}

export function logRoomFor(values) {
  const [low, high] = extent(values);
  const pad = Math.max((high / low) ** 0.08, 1.06);
  return [low / pad, high * pad];
}

/** Labels at these heights, moved apart so that none covers another, all between top and bottom. */
export function apart(heights, gap, top, bottom) {
  const order = heights.map((_, index) => index).sort((a, b) => heights[a] - heights[b]);
  const placed = [];
  let floor = top;
  for (const index of order) {
    placed[index] = Math.max(heights[index], floor);
    floor = placed[index] + gap;
  }
  let ceiling = bottom;
  for (const index of order.reverse()) {
    placed[index] = Math.min(placed[index], ceiling);
    ceiling = placed[index] - gap;
  }
  return placed;
}
