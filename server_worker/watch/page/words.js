// The engine's words, explained to people.

export const SECONDS = [
  { key: "server_step", name: "server step" },
  { key: "broadcast", name: "broadcast" },
  { key: "wait", name: "waiting for clients" },
  { key: "fold", name: "fold" },
  { key: "checkpoint", name: "checkpoint" },
];

export const STORE = {
  used_memory_bytes: "store memory",
  evicted_keys: "keys evicted",
};
