"""Does the run converge, does it learn, whom does it hear, and how long does it take?"""

from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from ops.monitoring.grafana.board import RUN, board
from ops.monitoring.grafana.panels import (
    BLUE,
    GREEN,
    GREY,
    RED,
    YELLOW,
    Panel,
    Query,
    bars,
    buckets,
    lines,
    number,
    rows,
    states,
    words,
)
from ops.monitoring.grafana.runbook import runbook

OUTCOMES = {
    "accepted": "green",
    "projected": "light-green",
    "rejected_cosine": "orange",
    "invalid": "red",
    "refused": "dark-red",
    "missing": GREY,
    "stale": "purple",
    "late": "blue",
    "duplicate": "light-blue",
}


def convergence() -> Dashboard:
    return board(
        "convergence",
        "FedIL / Convergence",
        "Whether runs converge and learn, and whose updates count.",
        {
            "Now": now(),
            "Does it converge?": increments(),
            "Does it learn?": learning(),
            "Who is heard?": updates(),
            "Rounds": rounds(),
        },
        {
            "Buffered mode": [staleness()],
            "Alerts, and what to do": [alerts(), words("Runbook", runbook(), height=24)],
        },
    )


def of_run(metric: str, *labels: str) -> str:
    """One value for a run, also while a standby server shows the same run."""
    return f"max by (run) ({metric}{{{','.join([RUN, *labels])}}})"


def now() -> list[Panel]:
    silent = f"(time() - {of_run('fedil_progress_timestamp_seconds')}) * on (run) {of_run('fedil_running')}"
    left = f"({of_run('fedil_rounds_planned')} - {of_run('fedil_round')})"
    gain = " - ".join(of_run("fedil_accuracy", f'model="{model}"') for model in ("global", "server"))
    firing = 'count(ALERTS{alertname=~"Fedil.+",alertstate="firing"}) or vector(0)'
    return [
        number(
            "Alerts firing",
            "Of all runs. What each means and what to do: last row.",
            Query(firing, "alerts"),
            unit=units.Short,
            steps={None: GREEN, 1: RED},
        ),
        number(
            "Rounds closed",
            "Of those that are planned. In buffered mode: aggregations.",
            Query(of_run("fedil_round"), "{{run}}"),
            Query(of_run("fedil_rounds_planned"), "planned {{run}}"),
            unit=units.Short,
        ),
        number(
            "Time left",
            "Rounds that are left, times the mean duration of those of the last hour.",
            Query(f"{left} * on (run) run:fedil_round_duration_seconds:mean1h{{{RUN}}}"),
            unit=units.DurationSeconds,
        ),
        number(
            "Silent for",
            "Since the last phase, update or round of a run that is going on; 0 when it is done. "
            "FedilRoundStuck fires after three usual rounds, at least 15 minutes.",
            Query(silent),
            unit=units.DurationSeconds,
            steps={None: GREEN, 300: YELLOW, 900: RED},
        ),
        number(
            "Accuracy of θ′",
            "Of the global model on the test data, as last measured.",
            Query(of_run("fedil_accuracy", 'model="global"')),
            unit=units.PercentUnit,
        ),
        number(
            "Gain over θ₀",
            "Accuracy of the global model less that of the server's own step. Below 0 the clients do harm.",
            Query(gain),
            unit=units.PercentUnit,
            steps={None: RED, -0.02: YELLOW, 0: GREEN},
        ),
        number(
            "Accepted in 1 h",
            "Share of the updates that were judged on their content (accepted, projected, rejected by cosine, "
            "invalid) and went into the model.",
            Query(f"run:fedil_acceptance:ratio1h{{{RUN}}}"),
            unit=units.PercentUnit,
            steps={None: RED, 0.2: YELLOW, 0.5: GREEN},
        ),
        number(
            "Verdict",
            "What the norms of the increments say of convergence; known from round 8 on.",
            Query(
                f"max by (run, verdict) (last_over_time(fedil_convergence_verdict{{{RUN}}}[$__range])) == 1",
                "{{verdict}} {{run}}",
            ),
            unit=units.Short,
            names_only=True,
        ),
    ]


def increments() -> list[Panel]:
    return [
        lines(
            "Norm of the round's increment ‖Δθ‖",
            "Falling means settling. ‖θ₀ − θ′‖ is the server's own step, against which updates are judged.",
            Query(of_run("fedil_delta_theta_norm"), "‖Δθ‖ {{run}}"),
            Query(of_run("fedil_delta_theta_moving_average"), "moving average {{run}}"),
            Query(of_run("fedil_reference_norm"), "‖θ₀ − θ′‖ {{run}}"),
            unit=units.Short,
            logarithmic=True,
        ),
        lines(
            "Ratio to the round before",
            "The paper's criterion: mostly below 1 in a run that converges.",
            Query(of_run("fedil_delta_theta_ratio")),
            unit=units.Short,
            marks={None: "transparent", 1: RED},
        ),
        lines(
            "Increment, relative and normalised",
            "‖Δθ‖/‖θ′‖, and ‖Δθ‖ by learning rate and steps: the latter still shows drift when a decaying "
            "learning rate makes everything small.",
            Query(of_run("fedil_delta_theta_relative"), "relative {{run}}"),
            Query(of_run("fedil_delta_theta_lr_normalized"), "by learning rate {{run}}"),
            unit=units.Short,
            logarithmic=True,
        ),
        lines(
            "Power p̂ with which increments shrink",
            "‖Δθ‖ ~ t^−p̂ over the later half of the run. Above 1 their sum is finite; below 0 they grow. "
            "Known from round 8 on.",
            Query(of_run("fedil_convergence_exponent")),
            unit=units.Short,
            marks={None: RED, 0: YELLOW, 1: GREEN},
        ),
        states(
            "Verdict over time",
            "The verdict that holds is coloured. FedilDiverging fires after ten minutes of «diverging».",
            Query(f"max by (run, verdict) (fedil_convergence_verdict{{{RUN}}}) == 1", "{{run}}: {{verdict}}"),
            {"1": ("holds", BLUE)},
            width=24,
        ),
    ]


def learning() -> list[Panel]:
    return [
        lines(
            "Accuracy",
            "global: θ′ after the round; server: θ₀, the server's own step; ema: the smoothed θ′ where it is kept.",
            Query(f"max by (run, model) (fedil_accuracy{{{RUN}}})", "{{model}} {{run}}"),
            unit=units.PercentUnit,
        ),
        lines(
            "Loss terms",
            "Means over the round's clients and the server's own.",
            Query(f"max by (run, term) (fedil_loss{{{RUN}}})", "{{term}} {{run}}"),
            unit=units.Short,
            lowest=0,
        ),
        lines(
            "Pseudo-labels held by clients",
            "held: a confident, agreed label now. credible: agreed for T activations in a row, promoted to the "
            "pseudo-label set.",
            Query(of_run("fedil_pseudo_labels"), "held {{run}}"),
            Query(of_run("fedil_credible_samples"), "credible {{run}}"),
            unit=units.Short,
            lowest=0,
            width=8,
        ),
        lines(
            "Purity of pseudo-labels",
            "Share of right ones, where truth is known offline. Falling: wrong labels feed themselves.",
            Query(f"max by (run, set) (fedil_pseudo_label_purity{{{RUN}}})", "{{set}} {{run}}"),
            unit=units.PercentUnit,
            highest=1,
            width=8,
        ),
        bars(
            "Samples promoted",
            "That became credible within each step of time.",
            Query(f"sum by (run) (increase(fedil_promoted_samples_total{{{RUN}}}[$__rate_interval]))"),
            unit=units.Short,
            width=8,
        ),
    ]


def updates() -> list[Panel]:
    cosines = f"sum by (le) (increase(fedil_update_cosine_bucket{{{RUN}}}[$__rate_interval]))"
    return [
        bars(
            "What became of those who were asked",
            "Late, stale and duplicate ones arrived and did not count. The live page names each client's reason.",
            Query(
                f"sum by (outcome) (increase(fedil_updates_total{{{RUN}}}[$__rate_interval]))", "{{outcome}}"
            ),
            unit=units.Short,
            colors=OUTCOMES,
        ),
        buckets(
            "Cosine of updates with the server's step",
            "Updates below the method's threshold are rejected. All of them near 0 or below: clients and server "
            "pull apart.",
            cosines,
            unit=units.Short,
        ),
        lines(
            "Share accepted",
            "Of the last hour.",
            Query(f"run:fedil_acceptance:ratio1h{{{RUN}}}"),
            unit=units.PercentUnit,
            lowest=0,
            highest=1,
        ),
        bars(
            "Messages refused",
            "By reason: not for this run, too late, wrong digest, not the sender's client …",
            Query(
                f"sum by (reason) (increase(fedil_messages_refused_total{{{RUN}}}[$__rate_interval]))",
                "{{reason}}",
            ),
            unit=units.Short,
        ),
    ]


def rounds() -> list[Panel]:
    def rate(suffix: str) -> str:
        return f"sum by (phase) (rate(fedil_phase_duration_seconds_{suffix}{{{RUN}}}[$__rate_interval]))"

    return [
        lines(
            "Seconds per phase",
            "Mean over the rounds that closed within each step of time. wait is the clients' training; evaluate "
            "goes on beside the next round.",
            Query(f"{rate('sum')} / ({rate('count')} > 0)", "{{phase}}"),
            unit=units.Seconds,
            lowest=0,
        ),
        lines(
            "Rounds per hour",
            "From the mean duration of those of the last hour.",
            Query(f"3600 * run:fedil_rounds:rate1h{{{RUN}}}"),
            unit=units.Short,
            lowest=0,
        ),
        rows("Runs", "The address leads to the live page.", f"fedil_run_info{{{RUN}}}"),
    ]


def staleness() -> Panel:
    return buckets(
        "Staleness of updates",
        "How many versions old the model was that an update started from. The older, the less it weighs; beyond "
        "federation.max_staleness it does not count.",
        f"sum by (le) (increase(fedil_update_staleness_bucket{{{RUN}}}[$__rate_interval]))",
        unit=units.Short,
        width=24,
    )


def alerts() -> Panel:
    return rows(
        "Alerts",
        "Pending: the condition holds, but not for long enough yet.",
        'ALERTS{alertname=~"Fedil.+"}',
    )
