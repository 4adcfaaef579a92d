// The server's words, explained to people.

export const OUTCOMES = {
  a: { key: "accepted", words: "accepted", plural: "accepted", why: "counts in θ′" },
  p: {
    key: "projected",
    words: "projected",
    plural: "projected",
    why: "only the part that does not point against the server's step counts",
  },
  r: {
    key: "rejected",
    words: "rejected by cosine",
    plural: "rejected by cosine",
    why: "points away from what the labels say",
  },
  i: { key: "invalid", words: "invalid", plural: "invalid", why: "broken or absurd numbers never reach θ′" },
  f: { key: "refused", words: "refused", plural: "refused", why: "the client could not do the task" },
  m: { key: "missing", words: "missing", plural: "missing", why: "did not answer in time" },
  s: { key: "stale", words: "stale", plural: "stale", why: "started from a model that is too old" },
  "?": { key: "unknown", words: "other", plural: "other", why: "" },
};
export const LETTER_OF = {
  accepted: "a",
  projected: "p",
  rejected_cosine: "r",
  invalid: "i",
  refused: "f",
  missing: "m",
  stale: "s",
};

export const STATES = {
  connecting: "connecting",
  starting: "starting",
  standby: "standby",
  running: "running",
  done: "done",
  stopped: "stopped",
  failed: "failed",
};

export const PHASES = {
  load_data: "reading the data",
  baseline: "training on the labels alone, for comparison",
  pretrain: "the server learns from the labels first",
  server_step: "the server learns from the labels",
  broadcast: "the models go out",
  wait: "clients learn",
  close: "the round closes",
};

export const SECONDS = [
  { key: "server_step", name: "server step" },
  { key: "broadcast", name: "broadcast" },
  { key: "wait", name: "waiting for clients" },
  { key: "fold", name: "fold" },
  { key: "checkpoint", name: "checkpoint" },
];

export const MODELS = [
  { key: "global", name: "θ′", long: "θ′, the global model" },
  { key: "server", name: "θ₀", long: "θ₀, the server's own step" },
  { key: "ema", name: "ema", long: "moving average of θ′" },
];

export const REFUSALS = {
  late: "answered after its round had closed",
  stale: "started from a model that is too old",
  duplicate: "the same answer again; it counts once",
  model_missing: "found no model in the log; it was asked again",
  not_yours: "a site spoke for a client that is not its own",
  digest: "the bytes were damaged on the way",
  truncated: "the message was cut off",
  trailing_bytes: "more bytes than the message has",
  schema: "the message does not have the form that was agreed",
  not_fedil: "not a message of FedIL",
  unknown_version: "written by another version of FedIL",
  wrong_kind: "another kind of message than belongs there",
  other_run: "an answer for another run",
  not_asked: "nobody had asked this client",
  misplaced: "sent to a queue where it does not belong",
  too_large: "larger than such a message may be",
  body_missing: "its body is gone, or was never there",
  contradiction: "parts of it do not belong together",
};

// The server's own names of verdicts; the level is for the colour.
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
    why: "In most of the last rounds θ′ did not move: nobody was accepted, or nobody had anything to add.",
  },
  diverging: {
    level: "bad",
    mark: "▲",
    words: "diverging",
    why: "The steps of θ′ grow from round to round.",
  },
  plateau: {
    level: "fair",
    mark: "▬",
    words: "plateau",
    why: "The steps of θ′ neither shrink nor grow, or shrink only because the learning rate does: it wanders at a constant pace. Its accuracy may still be good.",
  },
  "decaying, not summable": {
    level: "fair",
    mark: "↘",
    words: "steps shrink, but not summably",
    why: "The steps of θ′ shrink, but not faster than 1/t: added up they have no bound, so θ′ need not settle.",
  },
  "consistent with a summable series": {
    level: "good",
    mark: "✓",
    words: "consistent with convergence",
    why: "The steps of θ′ shrink faster than 1/t, as those of a sequence that has a limit do.",
  },
};
export const VERDICT_FOOT =
  "Fitted as ‖Δθ‖ ≈ t^−p over the later half of the rounds, also with the learning rate taken out; the worse of the two stands, but only steps that grow themselves diverge. " +
  "Finitely many rounds never prove convergence, and convergence says nothing of accuracy.";

export const LOSSES = {
  loss_server: "server, on labels",
  loss_pseudo: "pseudo-labels (ξa)",
  loss_pseudo_weak: "pseudo-labels, weak view",
  loss_consistency: "close to θ₀ (ξb)",
  loss_credible: "credible set (ξc)",
};

const SHORT_LOSSES = {
  loss_server: "labels",
  loss_pseudo: "ξa",
  loss_pseudo_weak: "ξa weak",
  loss_consistency: "ξb",
  loss_credible: "ξc",
};

export function shortLoss(key) {
  return SHORT_LOSSES[key] ?? "";
}

export function lossName(key) {
  return LOSSES[key] ?? key.replace(/^loss_/, "").replaceAll("_", " ");
}

export const STORE = {
  used_memory_bytes: "store memory",
  evicted_keys: "keys evicted",
};
