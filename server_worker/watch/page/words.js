// The engine's words, explained to people.

export const SECONDS = [
  { key: "server_step", name: "server step" },
  { key: "broadcast", name: "broadcast" },
  { key: "wait", name: "waiting for clients" },
  { key: "fold", name: "fold" },
  { key: "checkpoint", name: "checkpoint" },
];

// By the server's name of the verdict; the level is for the colour.
export const VERDICTS = {
  "too early to say": {
    level: "none",
    mark: "…",
    words: "too early to say",
    why: "A verdict needs at least 8 rounds.",
  },
  stalled: {
    level: "bad",
    mark: "■",
    words: "stalled",
    why: "In most of the last rounds the model did not move: no update was accepted, or none added anything.",
  },
  diverging: {
    level: "bad",
    mark: "▲",
    words: "diverging",
    why: "The model's steps grow from round to round, by themselves or in proportion to the learning rate and steps of clients.",
  },
  plateau: {
    level: "fair",
    mark: "▬",
    words: "plateau",
    why: "The model's steps neither shrink nor grow, or shrink only because the learning rate or the number of clients' steps does: it wanders at a constant pace. Its accuracy may still be good.",
  },
  "decaying, not summable": {
    level: "fair",
    mark: "↘",
    words: "steps shrink, but not summably",
    why: "The model's steps shrink, but not faster than 1/t: added up they have no bound, so the model need not settle.",
  },
  "consistent with a summable series": {
    level: "good",
    mark: "✓",
    words: "consistent with convergence",
    why: "The model's steps shrink faster than 1/t, as those of a sequence that has a limit do.",
  },
};
export const VERDICT_FOOT =
  "Fitted as ‖Δθ‖ ≈ t^−p over the later half of the rounds, also of ‖Δθ‖ / (η · steps); the worse of the two stands. " +
  "Finitely many rounds never prove convergence, and convergence says nothing of accuracy.";

export const STORE = {
  used_memory_bytes: "store memory",
  evicted_keys: "keys evicted",
};
