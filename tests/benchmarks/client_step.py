"""A client's training step against the bare network, and against a plain PyTorch loop over PIL images.

Images are random, CIFAR-shaped. All samples are sure and none is credible: every image then needs both views,
which is the most that views can cost. Neither side counts what a client does once per activation.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from fedil_model.augment.geometry import GRAY
from fedil_model.augment.images import ImageViews
from fedil_model.hyperparameters import Learning
from fedil_model.losses import consistency_loss, pseudo_label_loss
from fedil_model.methods.fedil import FedIL, _Credible, _Plan
from fedil_model.networks import build_network

BAR, BAR_PIL = 0.80, 4.0
SIDE, CLASSES, BATCH = 32, 10, 50
SHAPE = (3, SIDE, SIDE)
NUM_IMAGES = 2 * BATCH
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
MAIN = "resnet9-8"
"""The smallest ResNet9 that the recipes speak of: a wider one hides the views better."""
NETWORKS = {MAIN: ("resnet9", 8, 15), "resnet9-16": ("resnet9", 16, 5), "mlp-64": ("mlp", 64, 41)}
"""Registered name, width, and how often to measure."""


@dataclass(frozen=True)
class Case:
    """One client with its network, and what all three loops share."""

    learning: Learning
    raw_N: Tensor
    labels_N: Tensor
    views: ImageViews

    @staticmethod
    def make(network: str, width: int) -> "Case":
        generator = torch.Generator().manual_seed(0)
        return Case(
            Learning.model_validate(
                {
                    "profile": "fedil",
                    "network": {"name": network, "width": width},
                    "client": {"epochs": 1, "batch_size": BATCH},
                }
            ),
            torch.randint(0, 256, (NUM_IMAGES, *SHAPE), dtype=torch.uint8, generator=generator),
            torch.randint(0, CLASSES, (NUM_IMAGES,), generator=generator),
            ImageViews(MEAN, STD, flip=True),
        )

    def network(self) -> nn.Module:
        return build_network(self.learning.network, SHAPE, CLASSES, seed=0)


def client_loop(case: Case) -> Callable[[], None]:
    """The loop inside FedIL.client_step, as it is."""
    method = FedIL(case.learning, SHAPE, CLASSES, case.views, torch.device("cpu"))
    nothing = torch.zeros(0, dtype=torch.int64)
    every = torch.arange(NUM_IMAGES)
    sure = torch.ones(NUM_IMAGES, dtype=torch.bool)
    plan = _Plan(every, case.labels_N, sure, _Credible(nothing, nothing))
    generator = torch.Generator().manual_seed(0)

    def loop() -> None:
        num_steps, _ = method._train(case.raw_N, plan, case.learning.client.lr, generator)
        assert num_steps == NUM_IMAGES // BATCH

    return loop


def bare_loop(case: Case) -> Callable[[], None]:
    """Forward and backward with the same losses; nothing moves the weights, no view is made."""
    student, teacher = case.network().train(), case.network().eval()
    generator = torch.Generator().manual_seed(0)
    batches = []
    for raw, labels_B in zip(case.raw_N.split(BATCH), case.labels_N.split(BATCH), strict=True):
        weak, strong = case.views.weak(raw, generator), case.views.strong(raw, generator)
        batches.append((weak, torch.cat([weak, strong]), labels_B))

    def loop() -> None:
        for weak, both, labels_B in batches:
            student.zero_grad()
            loss(student(both), teacher_logits(teacher, weak), labels_B).backward()  # type: ignore[no-untyped-call]

    return loop


def pil_loop(case: Case) -> Callable[[], None]:
    """What one would write first: a DataLoader over PIL images, torchvision's transforms, torch.optim.SGD."""
    settings = case.learning.client
    student, teacher = case.network().train(), case.network().eval()
    optimiser = torch.optim.SGD(
        student.parameters(),
        settings.lr,
        settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )
    loader = DataLoader(PilViews(case), BATCH, shuffle=True, num_workers=0)

    def loop() -> None:
        for weak, strong, labels_B in loader:
            logits = student(torch.cat([weak, strong]))
            optimiser.zero_grad()
            loss(logits, teacher_logits(teacher, weak), labels_B).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(student.parameters(), settings.clip_norm)
            optimiser.step()

    return loop


def teacher_logits(teacher: nn.Module, weak: Tensor) -> Tensor:
    with torch.no_grad():
        logits_BC: Tensor = teacher(weak)
    return logits_BC


def loss(logits: Tensor, logits_server_BC: Tensor, labels_B: Tensor) -> Tensor:
    weak_BC, strong_BC = logits.chunk(2)
    pseudo = pseudo_label_loss(strong_BC, labels_B, torch.ones(len(labels_B)))
    return pseudo + consistency_loss(logits_server_BC, weak_BC)


class PilViews(Dataset[tuple[Tensor, Tensor, int]]):
    """FixMatch's two views, image by image."""

    def __init__(self, case: Case) -> None:
        self._images = [Image.fromarray(np.asarray(raw)) for raw in case.raw_N.permute(0, 2, 3, 1)]
        self._labels = case.labels_N.tolist()
        weak = [
            transforms.RandomHorizontalFlip(),
            transforms.RandomCrop(SIDE, padding=case.views.pad, padding_mode=case.views.pad_mode),
        ]
        tensor = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        self._weak = transforms.Compose([*weak, *tensor])
        self._strong = transforms.Compose([*weak, transforms.RandAugment(), cut_out, *tensor])

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        image = self._images[index]
        return self._weak(image), self._strong(image), self._labels[index]


def cut_out(image: Image.Image) -> Image.Image:
    x, y = np.random.randint(0, SIDE, 2) - SIDE // 4
    ImageDraw.Draw(image).rectangle((x, y, x + SIDE // 2 - 1, y + SIDE // 2 - 1), (GRAY, GRAY, GRAY))
    return image


def medians(loops: dict[str, Callable[[], None]], times: int) -> dict[str, float]:
    """Images per second of each, by turns."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(times + 1):
        for name, loop in loops.items():
            # This thread's time and not the wall's: neighbours on a shared machine are not what is measured.
            started = time.thread_time()
            loop()
            seconds[name].append(time.thread_time() - started)
    return {name: NUM_IMAGES / statistics.median(found[1:]) for name, found in seconds.items()}


def of_network(network: str, width: int, times: int) -> dict[str, float]:
    case = Case.make(network, width)
    speed = medians({"client": client_loop(case), "bare": bare_loop(case), "pil": pil_loop(case)}, times)
    ratios = {"ratio": speed["client"] / speed["bare"], "ratio_pil": speed["client"] / speed["pil"]}
    return ratios | {f"images_per_second_{name}": value for name, value in speed.items()}


def of_views() -> dict[str, float]:
    """The data alone, from stored images to both views of a batch, shuffled."""
    case = Case.make("mlp", 1)
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(PilViews(case), BATCH, shuffle=True, num_workers=0)

    def ours() -> None:
        for batch in torch.randperm(NUM_IMAGES, generator=generator).split(BATCH):
            raw = case.raw_N[batch]
            case.views.weak(raw, generator)
            case.views.strong(raw, generator)

    def pil() -> None:
        for _ in loader:
            pass

    speed = medians({"client": ours, "pil": pil}, 21)
    return {"ratio_pil": speed["client"] / speed["pil"]} | {
        f"images_per_second_{name}": value for name, value in speed.items()
    }


def run() -> dict[str, object]:
    torch.set_num_threads(1)
    parts = {name: of_network(*about) for name, about in NETWORKS.items()} | {"views_only": of_views()}
    for name, figures in parts.items():
        print(name, " ".join(f"{key}={value:.3g}" for key, value in figures.items()), flush=True)
    main = parts[MAIN]
    return {
        "name": "client_step",
        "ratio": round(main["ratio"], 3),
        "bar": BAR,
        "ratio_pil": round(main["ratio_pil"], 2),
        "bar_pil": BAR_PIL,
        "ok": main["ratio"] >= BAR and main["ratio_pil"] >= BAR_PIL,
        "config": f"{MAIN} gn, {SIDE}×{SIDE}×3, batch {BATCH}, one thread, all sure, none credible",
        **{key: round(value, 1) for key, value in main.items() if key.startswith("images")},
        **{f"ratio_pil_{name}": round(part["ratio_pil"], 2) for name, part in parts.items() if name != MAIN},
    }
