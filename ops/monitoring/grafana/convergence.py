"""Whether a run converges and learns, what its method shows, which updates count, and how long rounds take."""

from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from ops.monitoring.grafana.board import RUN, board, of_run
from ops.monitoring.grafana.methods import method_rows, models_text, outcome_colors
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
    "invalid": "red",
    "refused": "dark-red",
    "missing": GREY,
    "stale": "purple",
    "late": "blue",
    "duplicate": "light-blue",
}


def convergence() -> Dashboard:
    by_method, shared = method_rows()
    (method, panels), *others = by_method.items()
    return board(
        "convergence",
        "FedIL / Convergence",
        "Whether runs converge and learn, and which updates count.",
        {
            "Now": now(),
            "Does it converge?": increments(),
            "Does it learn?": [accuracy(), *shared],
            method: panels,
            "Which updates count?": updates(),
            "Rounds": rounds(),
        },
        {
            **dict(others),
            "Buffered mode": [staleness()],
            "Alerts, and what to do": [alerts(), words("Runbook", runbook(), height=24)],
        },
    )


def now() -> list[Panel]:
    silent = f"(time() - {of_run('fedil_progress_timestamp_seconds')}) * on (run) {of_run('fedil_running')}"
    left = f"({of_run('fedil_rounds_planned')} - {of_run('fedil_round')})"
    shipped = of_run("fedil_accuracy", 'model="global"')
    others = f'max by (run, model) (fedil_accuracy{{{RUN},model!="global"}})'
    firing = 'count(ALERTS{alertname=~"Fedil.+",alertstate="firing"}) or vector(0)'
    return [
        number(
            "Alerts firing",
            "Of all runs. What each means and what to do: last row.",
            Query(firing, "alerts"),
            steps={None: GREEN, 1: RED},
        ),
        number(
            "Rounds closed",
            "Of those that are planned. In buffered mode: aggregations.",
            Query(of_run("fedil_round"), "{{run}}"),
            Query(of_run("fedil_rounds_planned"), "planned {{run}}"),
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
            "Accuracy",
            "Of the global model on the test data, as last measured.",
            Query(shipped),
            unit=units.PercentUnit,
        ),
        number(
            "Gain over other models",
            "Accuracy of the global model less that of each other model that the method evaluates.",
            Query(f"{shipped} - on (run) group_right () {others}", "over {{model}} {{run}}"),
            unit=units.PercentUnit,
            steps={None: YELLOW, 0: GREEN},
        ),
        number(
            "Accepted in 1 h",
            "Of the updates that were judged on their content, the share that went into the model.",
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
            names_only=True,
        ),
    ]


def increments() -> list[Panel]:
    return [
        lines(
            "Norm of the round's increment ‖Δθ‖",
            "Falling means settling.",
            Query(of_run("fedil_delta_theta_norm"), "‖Δθ‖ {{run}}"),
            Query(of_run("fedil_delta_theta_moving_average"), "moving average {{run}}"),
            logarithmic=True,
        ),
        lines(
            "Ratio to the round before",
            "The paper's criterion: mostly below 1 in a run that converges.",
            Query(of_run("fedil_delta_theta_ratio")),
            marks={None: "transparent", 1: RED},
        ),
        lines(
            "Increment, relative and normalised",
            "‖Δθ‖ by the model's norm, and by learning rate and steps: the latter still shows drift when a decaying "
            "learning rate makes everything small.",
            Query(of_run("fedil_delta_theta_relative"), "relative {{run}}"),
            Query(of_run("fedil_delta_theta_lr_normalized"), "by learning rate {{run}}"),
            logarithmic=True,
        ),
        lines(
            "Power p̂ with which increments shrink",
            "‖Δθ‖ ~ t^−p̂ over the later half of the run. Above 1 their sum is finite; below 0 they grow. "
            "Known from round 8 on.",
            Query(of_run("fedil_convergence_exponent")),
            lowest=None,
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


def accuracy() -> Panel:
    return lines(
        "Accuracy",
        f"On the test data, by model. {models_text()}",
        Query(f"max by (run, model) (fedil_accuracy{{{RUN}}})", "{{model}} {{run}}"),
        unit=units.PercentUnit,
        lowest=None,
        width=24,
    )


def updates() -> list[Panel]:
    return [
        bars(
            "What became of the clients asked",
            "Late, stale and duplicate updates arrived and did not count. The live page names each client's reason.",
            Query(
                f"sum by (outcome) (increase(fedil_updates_total{{{RUN}}}[$__rate_interval]))", "{{outcome}}"
            ),
            colors=OUTCOMES | outcome_colors(),
            width=8,
        ),
        lines(
            "Share accepted",
            "Of the last hour.",
            Query(f"run:fedil_acceptance:ratio1h{{{RUN}}}"),
            unit=units.PercentUnit,
            highest=1,
            width=8,
        ),
        bars(
            "Messages refused",
            "By reason: not for this run, too late, wrong digest, not the sender's client …",
            Query(
                f"sum by (reason) (increase(fedil_messages_refused_total{{{RUN}}}[$__rate_interval]))",
                "{{reason}}",
            ),
            width=8,
        ),
    ]


def rounds() -> list[Panel]:
    def rate(suffix: str) -> str:
        return f"sum by (phase) (rate(fedil_phase_duration_seconds_{suffix}{{{RUN}}}[$__rate_interval]))"

    return [
        lines(
            "Seconds per phase",
            "Mean over the rounds that closed within each step of time. wait is the clients' training; evaluate "
            "runs beside the next round.",
            Query(f"{rate('sum')} / ({rate('count')} > 0)", "{{phase}}"),
            unit=units.Seconds,
        ),
        lines(
            "Rounds per hour",
            "From the mean duration of those of the last hour.",
            Query(f"3600 * run:fedil_rounds:rate1h{{{RUN}}}"),
        ),
        rows("Runs", "The address leads to the live page.", f"fedil_run_info{{{RUN}}}"),
    ]


def staleness() -> Panel:
    return buckets(
        "Staleness of updates",
        "How many versions old the model was that an update started from. The older, the less it weighs; beyond "
        "federation.max_staleness it does not count.",
        f"sum by (le) (increase(fedil_update_staleness_bucket{{{RUN}}}[$__rate_interval]))",
        width=24,
    )


def alerts() -> Panel:
    return rows(
        "Alerts",
        "Pending: the condition holds, but not for long enough yet.",
        'ALERTS{alertname=~"Fedil.+"}',
    )
