"""The automaton of incremental credibility, sequence by sequence, and its compact form."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedil_model.errors import StateError
from fedil_model.methods.fedil.ledger import NO_LABEL, Ledger, Observation

Seen = Sequence[int | None]
"""One sample's sure label per activation; None where not confident, or not agreed."""


def observe(ledger: Ledger, labels: Seen, credibility: int = 3, demote_after: int = 0) -> Ledger:
    """`labels`: one per sample."""
    seen = Observation(
        np.array([0 if label is None else label for label in labels]),
        np.array([label is not None for label in labels]),
    )
    return ledger.observe(seen, credibility, demote_after)


def after(sequence: Seen, credibility: int = 3, demote_after: int = 0) -> tuple[int, int, bool]:
    """(streak, label, credible) of one sample after a sequence of activations."""
    ledger = Ledger.empty(1)
    for label in sequence:
        ledger = observe(ledger, [label], credibility, demote_after)
    return int(ledger.streaks_N[0]), int(ledger.labels_N[0]), bool(ledger.credible_N[0])


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        pytest.param([], (0, NO_LABEL, False), id="nothing seen"),
        pytest.param([4], (1, 4, False), id="one sure look"),
        pytest.param([4, 4], (2, 4, False), id="one short of T"),
        pytest.param([4, 4, 4], (0, 4, True), id="the T-th look promotes"),
        pytest.param([0, 0, 0], (0, 0, True), id="class 0 is a class like any other"),
        pytest.param([4, 4, 7], (1, 7, False), id="another sure label starts again at one"),
        pytest.param([4, 4, 7, 7], (2, 7, False), id="and counts on from there"),
        pytest.param([4, 4, 7, 4], (1, 4, False), id="going back does not pick up the old streak"),
        pytest.param([4, 4, None], (0, NO_LABEL, False), id="an unsure look breaks the streak"),
        pytest.param([4, 4, None, 4], (1, 4, False), id="looks count in a row, not in all"),
        pytest.param([0, 0, None, 0, 0], (2, 0, False), id="an unsure look is not class 0"),
        pytest.param([None, None, None, None], (0, NO_LABEL, False), id="never sure"),
        pytest.param([4, 4, 4, 7, 7, 7, 7], (4, 4, True), id="a promoted label is kept"),
        pytest.param([4, 4, 4, None, None], (0, 4, True), id="and outlives doubt"),
    ],
)
def test_the_automaton_with_t_of_three(sequence: Seen, expected: tuple[int, int, bool]) -> None:
    assert after(sequence) == expected


@pytest.mark.parametrize("credibility", [1, 2, 7, 255])
def test_a_sample_is_promoted_at_exactly_t_looks(credibility: int) -> None:
    assert not after([3] * (credibility - 1), credibility)[2]
    assert after([3] * credibility, credibility) == (0, 3, True)


@pytest.mark.parametrize(
    ("sequence", "expected"),
    [
        pytest.param([7], (1, 4, True), id="one sure disagreement"),
        pytest.param([7, 7], (0, NO_LABEL, False), id="the second in a row demotes"),
        pytest.param([7, 8], (0, NO_LABEL, False), id="whichever label they prefer"),
        pytest.param([7, None, 7], (1, 4, True), id="doubt between them forgives"),
        pytest.param([7, 4, 7], (1, 4, True), id="agreement between them forgives"),
        pytest.param([7, 7, 4], (1, 4, False), id="a demoted sample starts from nothing"),
        pytest.param([7, 7, 7, 7, 7], (0, 7, True), id="and can be promoted again"),
    ],
)
def test_a_credible_sample_is_demoted_after_two_disagreements(
    sequence: Seen, expected: tuple[int, int, bool]
) -> None:
    assert after([4, 4, 4, *sequence], demote_after=2) == expected


def test_without_demotion_no_number_of_disagreements_matters_nor_overflows() -> None:
    streak, label, credible = after([4, 4, 4] + [7] * 300)
    assert (label, credible) == (4, True)
    assert streak == 255


def test_a_sample_on_which_the_models_disagree_is_never_promoted() -> None:
    """Eq. 19 as printed takes ε of the indicator, which is 1 also where the models disagree."""
    ledger = Ledger.empty(2)
    for _ in range(50):
        confident = np.array([True, True])
        agreed = np.array([True, False])
        ledger = ledger.observe(Observation(np.array([4, 4]), confident & agreed), credibility=7)
    assert ledger.credible_N.tolist() == [True, False]
    assert ledger.labels_N.tolist() == [4, NO_LABEL]


def test_samples_do_not_touch_each_other_and_the_old_ledger_stays_as_it_was() -> None:
    first = observe(Ledger.empty(4), [1, 2, None, 0])
    second = observe(observe(first, [1, 3, 2, 0]), [1, 3, 2, None])
    assert second.credible_N.tolist() == [True, False, False, False]
    assert second.labels_N.tolist() == [1, 3, 2, NO_LABEL]
    assert second.streaks_N.tolist() == [0, 2, 2, 0]
    assert first.streaks_N.tolist() == [1, 1, 0, 1]
    assert len(second) == 4


@given(
    sequences=st.lists(
        st.lists(st.none() | st.integers(0, 3), min_size=5, max_size=5), min_size=0, max_size=40
    ),
    credibility=st.integers(1, 4),
)
def test_the_pseudo_label_set_only_grows_and_keeps_its_labels(
    sequences: list[Seen], credibility: int
) -> None:
    ledger = Ledger.empty(5)
    for labels in sequences:
        grown = observe(ledger, labels, credibility)
        assert (grown.credible_N | ~ledger.credible_N).all()
        assert (grown.labels_N[ledger.credible_N] == ledger.labels_N[ledger.credible_N]).all()
        assert (grown.labels_N[grown.credible_N] != NO_LABEL).all()
        ledger = grown


def ledger_of(labels: list[int], credible: list[bool]) -> Ledger:
    return Ledger(
        np.arange(len(labels), dtype=np.uint8), np.array(labels, np.int16), np.array(credible, np.bool_)
    )


@pytest.mark.parametrize(
    ("highest", "dtype"), [(9, np.uint8), (254, np.uint8), (255, np.uint16), (999, np.uint16)]
)
def test_a_ledger_survives_its_compact_form(highest: int, dtype: type) -> None:
    ledger = ledger_of([NO_LABEL, 0, highest, 1, 2, 3, 4, 5, 6, 7], [False, True] * 5)
    arrays = ledger.to_arrays()
    assert arrays["labels"].dtype == dtype
    assert arrays["streaks"].dtype == np.uint8
    assert arrays["credible"].nbytes == 2
    back = Ledger.from_arrays(arrays, 10)
    for name in ("streaks_N", "labels_N", "credible_N"):
        before, restored = getattr(ledger, name), getattr(back, name)
        assert restored.dtype == before.dtype
        assert restored.tolist() == before.tolist()


def test_an_empty_ledger_survives_its_compact_form() -> None:
    assert len(Ledger.from_arrays(Ledger.empty(0).to_arrays(), 0)) == 0


def test_a_restored_ledger_goes_on_counting() -> None:
    ledger = observe(observe(Ledger.empty(1), [0]), [0])
    assert observe(Ledger.from_arrays(ledger.to_arrays(), 1), [0]).credible_N.all()


@pytest.mark.parametrize("num_samples", [7, 9, 16, 0])
def test_a_ledger_of_another_shard_is_refused(num_samples: int) -> None:
    with pytest.raises(StateError, match=f"8 samples does not fit a shard of {num_samples}"):
        Ledger.from_arrays(Ledger.empty(8).to_arrays(), num_samples)


@pytest.mark.parametrize("name", ["streaks", "labels", "credible"])
@pytest.mark.parametrize(
    "wrong", [np.zeros(3, np.uint8), np.zeros((8, 2), np.uint8), np.zeros((), np.uint8), np.zeros(8)]
)
def test_an_array_of_the_wrong_size_or_kind_is_refused(name: str, wrong: np.ndarray) -> None:
    with pytest.raises(StateError):
        Ledger.from_arrays({**Ledger.empty(8).to_arrays(), name: wrong}, 8)


@pytest.mark.parametrize("name", ["streaks", "labels", "credible"])
def test_a_missing_array_is_named(name: str) -> None:
    arrays = Ledger.empty(8).to_arrays()
    del arrays[name]
    with pytest.raises(StateError, match=name):
        Ledger.from_arrays(arrays, 8)
