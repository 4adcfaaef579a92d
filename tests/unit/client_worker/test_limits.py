import re
from pathlib import Path

import numpy as np
import pytest

from broker_config.protocol.messages import TrainTask, Update
from client_worker.limits import Limits, LimitSettings, SiteLimit, read_limits
from fedil_model.errors import SettingError
from tests.federation import RUN
from tests.unit.client_worker.bench import TASKS, Bench, serve_one

SECRET = bytes(range(32))


def written(folder: Path, text: str) -> Path:
    path = folder / "limits.toml"
    path.write_text(text, encoding="utf-8")
    return path


def limits_of(folder: Path, text: str) -> Limits:
    (folder / "noise.key").write_bytes(SECRET)
    return read_limits(written(folder, text))


def update_of(bench: Bench, limits: Limits, task: TrainTask | None = None) -> Update:
    return bench.trainer(limits=limits).train(task or bench.task())


def norm_of(update: Update) -> float:
    return float(np.sqrt(sum(np.square(array, dtype=np.float64).sum() for array in update.tensors.values())))


def test_without_a_file_everything_is_allowed_and_nothing_is_changed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    free, same = update_of(bench, read_limits(None)), bench.trainer().train(bench.task())
    for name, array in free.tensors.items():
        assert np.array_equal(array, same.tensors[name])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('runs = ["mnist-*", "other"]', rf"does not allow run {RUN} (allowed: mnist-*, other)"),
        ("runs = []", "(allowed: none)"),
        ('methods = ["semifl"]', "does not allow method fedil (allowed: semifl)"),
        ('networks = ["resnet9"]', "does not allow network mlp (allowed: resnet9)"),
        ("min_samples = 100000", "fewer samples than the 100000 that this site wants (min_samples)"),
        ("max_activations = 1", "trains a client at most 1 times in a run (max_activations)"),
    ],
)
def test_a_task_beyond_a_limit_is_refused_with_the_reason_and_leaves_no_ledger(
    tmp_path: Path, text: str, why: str
) -> None:
    bench = Bench(tmp_path)
    bench.put(bench.task(activation=2))
    serve_one(bench, bench.participant(bench.trainer(limits=limits_of(tmp_path, text))))
    refusal = bench.refusal()
    assert refusal.reason == "SiteLimit"
    assert why in refusal.detail
    assert bench.federation.store.latest(RUN) == {}
    assert bench.receive(TASKS) is None


def test_a_task_within_the_limits_is_done(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    text = f'runs = ["{RUN[:2]}*"]\nmethods = ["fedil"]\nnetworks = ["mlp"]\nmin_samples = 5\nmax_activations = 1'
    bench.put(bench.task())
    serve_one(bench, bench.participant(bench.trainer(limits=limits_of(tmp_path, text))))
    assert bench.update().activation == 1


def test_an_update_keeps_its_direction_and_gets_the_norm_that_the_site_allows(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    free = update_of(bench, Limits())
    clipped = update_of(bench, limits_of(tmp_path, f"clip_norm = {norm_of(free) / 4}"))
    assert norm_of(clipped) == pytest.approx(norm_of(free) / 4, rel=1e-6)
    for name, array in free.tensors.items():
        assert clipped.tensors[name].dtype == np.float32
        np.testing.assert_allclose(clipped.tensors[name], array / 4, rtol=1e-6)
    below = update_of(bench, limits_of(tmp_path, f"clip_norm = {norm_of(free) * 1.01}"))
    assert np.array_equal(below.tensors["delta.params"], free.tensors["delta.params"])


def test_noise_has_the_size_that_the_file_says_and_a_task_done_again_the_same(tmp_path: Path) -> None:
    bench = Bench(tmp_path, network={"name": "mlp", "width": 200, "norm": "none"})
    text = 'clip_norm = 0.5\nnoise_multiplier = 0.2\nnoise_secret = "noise.key"'
    clipped = update_of(bench, limits_of(tmp_path, "clip_norm = 0.5")).tensors["delta.params"]
    limits = limits_of(tmp_path, text)
    noisy, again = (update_of(bench, limits).tensors["delta.params"] for _ in range(2))
    assert np.array_equal(noisy, again)
    noise = noisy - clipped
    assert noise.size > 2000
    assert float(noise.std()) == pytest.approx(0.1, rel=0.1)
    assert abs(float(noise.mean())) < 0.01


def test_noise_depends_on_secret_task_and_update(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    settings = LimitSettings(clip_norm=1.0, noise_multiplier=1.0, noise_secret=Path("key"))

    def noise(
        secret: bytes = SECRET, size: float = 0.01, run: str = "run", activation: int = 1
    ) -> np.ndarray:
        sent = np.full(50, size, np.float32)
        update = {"delta.params": sent, "delta.buffers": np.zeros(0, np.float32)}
        Limits(settings, secret).bound(update, bench.task(run=run, activation=activation))
        return update["delta.params"] - sent

    first = noise()
    assert np.allclose(first, noise(), atol=1e-6)
    for other in (noise(secret=b"x" * 32), noise(size=0.02), noise(run="other"), noise(activation=2)):
        assert not np.allclose(first, other, atol=0.1)


def test_noise_on_running_statistics_and_clipping_of_what_is_no_difference_are_refused(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    noisy = limits_of(tmp_path, 'clip_norm = 1.0\nnoise_multiplier = 1.0\nnoise_secret = "noise.key"')
    statistics = {"delta.params": np.ones(3, np.float32), "delta.buffers": np.ones(3, np.float32)}
    with pytest.raises(SiteLimit, match=r"running statistics do not stand: network\.norm must be gn or none"):
        noisy.bound(statistics, bench.task())
    with pytest.raises(SiteLimit, match="the method sends sigma, which is no difference of weights"):
        noisy.bound({"sigma": np.ones(3, np.float32)}, bench.task())
    broken = {"delta.params": np.array([np.nan], np.float32), "delta.buffers": np.zeros(0, np.float32)}
    with pytest.raises(SiteLimit, match="not finite"):
        noisy.bound(broken, bench.task())
    nothing: dict[str, np.ndarray] = {}
    noisy.bound(nothing, bench.task())
    assert nothing == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("min_sample = 3", "unknown setting min_sample; did you mean min_samples?"),
        ("min_samples = 0", "min_samples: Input should be greater than 0"),
        ('methods = "fedil"', "methods: Input should be a valid list"),
        ("noise_multiplier = 1.0", "noise_multiplier needs clip_norm, of which it is a multiple"),
        ("clip_norm = 1.0\nnoise_multiplier = 1.0", "give noise_multiplier and noise_secret, or neither"),
        ('clip_norm = 1.0\nnoise_secret = "noise.key"', "give noise_multiplier and noise_secret, or neither"),
        ("clip_norm = inf", "clip_norm: Input should be a finite number"),
        ('clip_norm = 1.0\nnoise_multiplier = 1.0\nnoise_secret = "no"', "noise_secret: cannot read"),
        (
            'clip_norm = 1.0\nnoise_multiplier = 1.0\nnoise_secret = "short"',
            "has 3 bytes, wanted are 16 or more",
        ),
        ("clip_norm", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, wrong: str) -> None:
    (tmp_path / "noise.key").write_bytes(SECRET)
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(SettingError, match=re.escape(wrong)) as said:
        read_limits(written(tmp_path, text))
    assert str(tmp_path / "limits.toml") in str(said.value)
    assert "\n" not in str(said.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^cannot read --limits .*nothing: No such file"):
        read_limits(tmp_path / "nothing")
