// Cursor, chosen round and range, shared by all charts.
const listeners = new Set();

export const view = {
  cursor: null, // the round under the pointer
  chosen: null, // the round that was clicked; null follows the latest
  range: 0, // how many of the last rounds are shown; 0: all
};

export function onView(listener) {
  listeners.add(listener);
}

export function look(part) {
  const changed = Object.keys(part).filter((key) => view[key] !== part[key]);
  if (!changed.length) return;
  Object.assign(view, part);
  for (const listener of listeners) listener(changed);
}

export function inRange(rows) {
  return view.range && rows.length > view.range ? rows.slice(-view.range) : rows;
}
