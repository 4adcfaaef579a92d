"""The page of one run, from values: what it says, and that nothing in it can become markup."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fedil_model.data.split import Split
from fedil_model.training.convergence import VERDICTS
from fedil_model.training.optimiser import learning_rate
from ops.inspect.quality import Quality
from ops.inspect.report.drawing import Missing
from ops.inspect.report.evidence import Evidence
from ops.inspect.report.held_labels import HeldLabels, Picture
from ops.inspect.report.page import run_page
from ops.inspect.report.reading import Run, read_run
from ops.inspect.report.verdicts import figures, trend_of
from server_worker.run.checkpoint import Checkpoint, CheckpointFolder
from server_worker.watch.events import ClientOutcome
from server_worker.watch.words import TRENDS
from tests.unit.ops.records import make_record
from tests.unit.ops.report_runs import Parsed, make_run, make_run_folder

HOSTILE = '<img src=x onerror="alert(1)"> </style></script><script>alert(2)</script>'
NOTHING = Evidence(Missing("no data here"), 0, (), Missing("no data here"), Missing("no ledgers here"))


def evidence_of(names: tuple[str, ...] = ("cat", "dog")) -> Evidence:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8, 1)
    held = HeldLabels(
        said_N=np.array([0, 1, 1]),
        truth_N=np.array([0, 1, 0]),
        right=(Picture(pixels, 0, 0, 4), Picture(pixels, 1, 1, 5)),
        wrong=(Picture(pixels, 1, 0, 6),),
        name="credible",
        others=11,
    )
    return Evidence(
        quality=Quality(names, [[8, 2], [0, 10]]),
        quality_round=12,
        class_names=names,
        class_counts=np.array([[3, 2], [10, 0], [4, 6]]),
        held_labels=held,
        digests={"θ′": "3f2a9c0d4be17a55"},
    )


def with_split(run: Run) -> Run:
    parts = (np.arange(5, 15), np.arange(15, 25))
    return dataclasses.replace(run, split=Split(np.arange(5), parts, 0))


def parsed_page(run: Run, evidence: Evidence = NOTHING) -> Parsed:
    return Parsed(run_page(run, evidence))


def test_the_headline_has_accuracies_baseline_rounds_and_labels(tmp_path: Path) -> None:
    run = dataclasses.replace(with_split(make_run(tmp_path / "mine")), baseline=0.80)
    text = parsed_page(run).text
    last = run.records[-1].accuracy
    assert f"accuracy of the global model θ′ {100 * last['global']:.2f} %" in text
    assert f"accuracy of the server model θ₀ {100 * last['server']:.2f} %" in text
    assert (
        "server-only baseline 80.00 % the same network on the same labels; "
        f"global model +{100 * last['global'] - 80:.2f}" in text
    )
    assert "rounds 12 of 12 57 of 60 updates counted" in text
    assert "labels at the server 5 and 20 samples without at 2 clients" in text
    assert "with a pseudo-label 480 Samples with a pseudo-label" in text
    assert "Purity of pseudo-labels: pseudo-labels 98.10 %" in text
    assert "finished, 12 rounds · mine · seed 0 · profile fedil" in text


def test_hostile_texts_stay_text_everywhere(tmp_path: Path) -> None:
    outcomes = (ClientOutcome(1, "refused", detail=HOSTILE), ClientOutcome(2, HOSTILE))
    records = [
        make_record(
            number,
            outcomes=outcomes,
            series={f"loss_{HOSTILE}": 1.0},
            accuracy={"global": 0.5, HOSTILE: 0.1},
            refused={HOSTILE: 3},
            verdict=HOSTILE,
            per_class=(0.5, 1.0),
        )
        for number in (1, 2)
    ]
    run = make_run(tmp_path / "<b>$x^{$", records, description=HOSTILE, data={"options": {HOSTILE: HOSTILE}})
    run = dataclasses.replace(
        with_split(run), run_id=HOSTILE, notes=(HOSTILE,), environment=({"cpu": HOSTILE, HOSTILE: HOSTILE},)
    )
    parsed = parsed_page(run, evidence_of((HOSTILE, "$\\dog")))
    tags = {tag for tag, _ in parsed.tags}
    assert not tags & {"script", "iframe", "object", "embed", "link", "b"}
    assert [attrs for _, attrs in parsed.tags if any(name.startswith("on") for name in attrs)] == []
    assert all(
        attrs["src"] and attrs["src"].startswith("data:image/png;") for t, attrs in parsed.tags if t == "img"
    )
    assert parsed.text.count(HOSTILE) > 8


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    page = run_page(with_split(make_run(tmp_path / "r")), evidence_of())
    parsed = Parsed(page)
    assert parsed.references()
    assert all(reference.startswith(("#", "data:image/png;base64,")) for reference in parsed.references())
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    policies = [attrs["content"] for tag, attrs in parsed.tags if "http-equiv" in attrs]
    assert policies
    assert policies[0] is not None
    assert policies[0].startswith("default-src 'none';")


def test_what_is_missing_is_said_and_the_rest_is_there(tmp_path: Path) -> None:
    text = parsed_page(make_run(tmp_path / "r")).text
    assert "Confusion matrix No curve: no data here." in text
    assert "Nothing to show: no ledgers here." in text
    assert "has not recorded what it was made with" in text
    assert "the history holds no accuracy by class" in text
    assert "Test accuracy" in text


def test_one_round_is_one_round(tmp_path: Path) -> None:
    text = parsed_page(make_run(tmp_path / "r", [make_record(1)], planned=1)).text
    assert "finished, 1 round ·" in text
    assert "updates of 1 round counted" in text
    assert "1 rounds" not in text
    assert "the last 1 " not in text
    assert "mean of the last 2 evaluations" in parsed_page(make_run(tmp_path / "two", 2)).text


def test_a_run_without_rounds_makes_a_page_that_says_so(tmp_path: Path) -> None:
    text = parsed_page(make_run(tmp_path / "r", rounds=0)).text
    assert "no round has closed yet" in text
    assert "Update size: too early to say" in text
    assert "No client has been asked yet" in text


def test_a_run_whose_history_is_gone_is_not_said_to_have_done_nothing(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r")
    (folder / "history.jsonl").unlink()
    CheckpointFolder(folder / "checkpoints").save(Checkpoint(12, {}, {}))
    text = parsed_page(read_run(folder)).text
    assert "the history is missing" in text
    assert "rounds 12 of 12" in text
    for untrue in (
        "no round has closed yet",
        "No client has been asked yet",
        "Too early to say",
        "not evaluated",
    ):
        assert untrue not in text


def test_a_run_that_goes_on_says_so(tmp_path: Path) -> None:
    run = dataclasses.replace(make_run(tmp_path / "r", rounds=5), running=True)
    text = parsed_page(run).text
    assert "round 5 of 12, still running" in text
    assert "as it was when it was written" in text


def test_exclusions_are_counted_by_reason_and_by_client_with_the_last_of_each(tmp_path: Path) -> None:
    text = parsed_page(make_run(tmp_path / "r")).text
    assert "rejected cosine 3 5.0 Its cosine with the server's step is negative" in text
    assert "round 12, client 17: rejected cosine (cosine -0.021)" in text
    assert "client asked excluded why 17 12 3 rejected cosine 3" in text


def test_a_run_without_exclusions_is_reported_as_such(tmp_path: Path) -> None:
    text = parsed_page(make_run(tmp_path / "r", [make_record(1), make_record(2)])).text
    assert "None: all 10 updates of 2 rounds counted." in text


def test_messages_that_did_not_count_are_listed(tmp_path: Path) -> None:
    text = parsed_page(
        make_run(tmp_path / "r", [make_record(1, refused={"late": 4}), make_record(2, refused={"late": 3})])
    ).text
    assert "late 7 answered after its round had closed" in text


def test_a_round_with_hundreds_of_exclusions_names_some(tmp_path: Path) -> None:
    outcomes = tuple(ClientOutcome(client, "missing") for client in range(300))
    text = parsed_page(make_run(tmp_path / "r", [make_record(1, outcomes=outcomes)])).text
    assert "client 5: missing; and 294 more" in text
    assert "(the first 15 of 300)" in text


def test_the_rounds_of_a_very_long_run_are_cut_and_it_is_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [make_record(n, 700, outcomes=()) for n in range(1, 701)], planned=700)
    page = parsed_page(run)
    assert "The first 200 are in history.jsonl." in page.text
    assert sum(tag == "tr" for tag, _ in page.tags) < 620


def test_settings_that_differ_from_the_profile_are_marked_with_the_default(tmp_path: Path) -> None:
    parsed = parsed_page(make_run(tmp_path / "r", client={"lr": 0.123}, profile="paper"))
    assert "settings differ from the defaults of the profile “paper”" in parsed.text
    assert "client.lr 0.123 0.03" in parsed.text
    marks = [index for index, (tag, _) in enumerate(parsed.tags) if tag == "mark"]
    assert len(marks) >= 2
    # momentum is as usual: shown among all settings, and only there
    assert parsed.text.count("client.momentum") == 1


def test_pseudo_labels_right_and_wrong_are_shown_with_what_they_are(tmp_path: Path) -> None:
    parsed = parsed_page(with_split(make_run(tmp_path / "r")), evidence_of())
    assert "3 samples carry a label in the set “credible”" in parsed.text
    assert "66.67 % of those labels are right" in parsed.text
    assert "Wrong (1) said dog, is cat client 6" in parsed.text
    assert "Right (2) cat client 4 dog client 5" in parsed.text
    assert sum(tag == "img" for tag, _ in parsed.tags) == 3


def test_samples_that_are_no_pictures_are_counted_and_not_shown(tmp_path: Path) -> None:
    evidence = evidence_of()
    assert isinstance(evidence.held_labels, HeldLabels)
    tabular = dataclasses.replace(
        evidence.held_labels, right=(), wrong=(), not_pictures="8 numbers of type float32"
    )
    text = parsed_page(make_run(tmp_path / "r"), dataclasses.replace(evidence, held_labels=tabular)).text
    assert "The samples are no pictures, but 8 numbers of type float32" in text
    assert "label given samples right % cat 1 100.0 dog 2 50.0" in text


def test_an_empty_label_set_is_named_with_the_samples_in_other_sets(tmp_path: Path) -> None:
    nobody = np.zeros(0, np.int64)
    evidence = dataclasses.replace(
        evidence_of(), held_labels=HeldLabels(nobody, nobody, (), (), "credible", others=40)
    )
    text = parsed_page(make_run(tmp_path / "r"), evidence).text
    assert "No sample carries a label in the set “credible” yet. 40 samples carry" in text


def test_the_split_is_told_by_class(tmp_path: Path) -> None:
    text = parsed_page(with_split(make_run(tmp_path / "r")), evidence_of()).text
    assert "20 unlabelled ones at 2 clients, 10 to 10 each (median 10), partition “iid”" in text
    assert "cat 3 14 2 dog 2 6 1" in text


def test_accuracy_of_each_class_and_the_mistakes_are_listed(tmp_path: Path) -> None:
    text = parsed_page(make_run(tmp_path / "r"), evidence_of()).text
    assert "The global model of round 12 is right on 90.00 % of 20 test samples." in text
    assert "cat 80.0 10 dog 100.0 10" in text
    assert "count is taken for 2 cat dog" in text


def test_the_environment_is_shown_for_people(tmp_path: Path) -> None:
    entry = {"fedil": "9.9", "memory_bytes": 8 << 30, "first_started": 0.0, "starts": 2, "new": "later"}
    run = dataclasses.replace(make_run(tmp_path / "r"), environment=(entry,))
    text = parsed_page(run).text
    assert "FedIL 9.9 memory 8.0 GiB first started 1970-01-01 00:00 UTC starts 2 new later" in text


# ---- verdicts


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_trend_is_explained_and_none_claims_convergence(tmp_path: Path, verdict: str) -> None:
    run = make_run(tmp_path / "r", [make_record(n, verdict=verdict) for n in (1, 2)])
    text = parsed_page(run).text
    assert trend_of(run) is TRENDS[verdict]
    assert f"Update size: {TRENDS[verdict].words} {TRENDS[verdict].why}" in text
    assert "never prove convergence" in text
    assert "has converged" not in text.lower()


def test_a_verdict_of_a_later_version_is_repeated_not_explained(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", [make_record(1, verdict="spiralling")])
    assert trend_of(run).headline == "update size: spiralling"


def test_the_figures_behind_a_verdict_are_fitted_for_both_series(tmp_path: Path) -> None:
    """Steps that shrink only because the learning rate does."""
    cosine = {"lr": 0.1, "lr_schedule": "cosine"}
    run = make_run(tmp_path / "r", 40, planned=40, client=cosine)
    rates = [learning_rate(run.recipe.client, n, 40) for n in range(1, 41)]
    records = [
        make_record(n, delta_norm=rate, convergence={"share_decreasing": 1.0, "lr_normalised": 0.2})
        for n, rate in enumerate(rates, 1)
    ]
    shown = dict(figures(dataclasses.replace(run, records=tuple(records))))
    assert shown["p̂ of the update size ‖Δθ‖ (±2 standard errors)"].endswith(": shrinking")
    assert shown["p̂ of ‖Δθ‖ ∕ (η · steps)"].endswith(": steady")
    assert shown["rounds of the last 10 with ‖Δₜ‖ ≤ ‖Δₜ₋₁‖ (the paper’s criterion)"] == "100%"


def test_a_history_with_gaps_is_not_fitted_anew(tmp_path: Path) -> None:
    records = [make_record(n) for n in range(5, 30)]
    assert not [name for name, _ in figures(make_run(tmp_path / "r", records)) if name.startswith("p̂")]
