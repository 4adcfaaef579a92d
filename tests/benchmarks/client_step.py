"""A client's training step against the bare network, and against a plain PyTorch loop over PIL images.

Recipes are the built-in ones, images are random. All samples are sure and none is credible: every image then
needs both views, which is the most that views can cost. No side counts what is done once per activation.
"""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from fedil_model.data.augment.geometry import GRAY
from fedil_model.data.augment.images import ImageViews
from fedil_model.data.datasets import open_dataset
from fedil_model.methods.fedil.client import ClientTraining, _Credible, _Plan
from fedil_model.methods.fedil.losses import consistency_loss, pseudo_label_loss
from fedil_model.methods.interface import MethodContext
from fedil_model.networks import build_network
from fedil_model.settings import Learning
from fedil_model.training.flat_model import FlatModel
from fedil_model.training.optimiser import FlatSGD
from ops.cli.recipe_files import find_recipe
from server_worker.run.recipe import load_recipe

BAR, BAR_PIL = 0.80, 4.0
BATCHES = 8
"""Per measurement: few, so that all sides see the same noise; an activation of the recipes has 24 and more, so fewer
would count too much of what is done once."""


@dataclass(frozen=True)
class Measured:
    recipe: str
    overrides: tuple[str, ...]
    times: int


LENET5 = ("network.name=lenet5", "network.width=16")
MAIN = "cifar10_resnet9_16"
CASES = {
    MAIN: Measured("cifar10-iid-001", ("network.width=16",), 5),  # the width that the recipe names for CPUs
    "cifar10_resnet9_8": Measured("cifar10-iid-001", ("network.width=8",), 5),
    "mnist_resnet9_12": Measured("mnist-iid-001", (), 5),
    "digits_cnn_64": Measured("digits", (), 21),
    "cifar10_lenet5": Measured("cifar10-iid-001", LENET5, 11),
    "cifar10_lenet5_none": Measured("cifar10-iid-001", (*LENET5, "network.norm=none"), 11),  # as LeCun's
    "mnist_lenet5": Measured("mnist-iid-001", LENET5, 11),
    # Hardly a network for pictures: what is left when a forward pass costs next to nothing, as on a GPU.
    "cifar10_mlp_64": Measured("cifar10-iid-001", ("network.name=mlp", "network.width=64"), 11),
}


@dataclass(frozen=True)
class Case:
    """One client with its network, and what all three loops share."""

    learning: Learning
    shape: tuple[int, ...]
    num_classes: int
    views: ImageViews
    raw_N: Tensor
    labels_N: Tensor

    @staticmethod
    def make(recipe: str, overrides: tuple[str, ...]) -> "Case":
        learning = load_recipe(find_recipe(recipe), [*overrides, "client.epochs=1"]).learning()
        dataset = open_dataset(learning.data)
        assert isinstance(dataset.views, ImageViews)
        generator = torch.Generator().manual_seed(0)
        shape, num_images = dataset.input_shape, BATCHES * learning.client.batch_size
        return Case(
            learning,
            shape,
            len(dataset.class_names),
            dataset.views,
            torch.randint(0, 256, (num_images, *shape), dtype=torch.uint8, generator=generator),
            torch.randint(0, len(dataset.class_names), (num_images,), generator=generator),
        )

    @property
    def batch_size(self) -> int:
        return self.learning.client.batch_size

    def network(self) -> nn.Module:
        return build_network(self.learning.network, self.shape, self.num_classes, seed=0)


def client_loop(case: Case) -> Callable[[], None]:
    """The loop inside FedIL's client step, as it is."""
    context = MethodContext(case.learning, case.shape, case.num_classes, case.views, torch.device("cpu"))
    training = ClientTraining(context)
    nothing = torch.zeros(0, dtype=torch.int64)
    every = torch.arange(len(case.raw_N))
    sure = torch.ones(len(case.raw_N), dtype=torch.bool)
    plan = _Plan(every, case.labels_N, sure, _Credible(nothing, nothing), len(every), 1.0, is_skewed=False)
    generator = torch.Generator().manual_seed(0)
    # As client_step does before it trains. Without it malloc gives memory back after steps and fetches it again, on
    # whichever side has bad luck: two milliseconds a step.
    weights = FlatModel(case.network()).weights()
    training._observe(weights, weights, case.raw_N, None)
    training._student.load(weights)

    def loop() -> None:
        training._student.module.train()
        optimiser = FlatSGD(training._student, case.learning.client, case.learning.client.lr)
        training._train(case.raw_N, plan, optimiser, generator)
        assert optimiser.num_steps == BATCHES

    return loop


def bare_loop(case: Case) -> Callable[[], None]:
    """Forward and backward with the same losses; nothing moves the weights, no view is made."""
    student, teacher = case.network().train(), case.network().eval()
    generator = torch.Generator().manual_seed(0)
    batches = []
    for raw, labels_B in zip(case.raw_N.chunk(BATCHES), case.labels_N.chunk(BATCHES), strict=True):
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
    loader = DataLoader(PilViews(case), case.batch_size, shuffle=True, num_workers=0)

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
        self._images = [transforms.functional.to_pil_image(raw) for raw in case.raw_N]
        self._labels = case.labels_N.tolist()
        views, side = case.views, case.shape[-1]
        padding_mode = "constant" if views.pad_mode == "zeros" else views.pad_mode
        weak = [transforms.RandomCrop(side, padding=views.pad, padding_mode=padding_mode)]
        if views.flip:
            weak.insert(0, transforms.RandomHorizontalFlip())
        cutout = transforms.Lambda(lambda image: cut_out(image, round(views.cutout_share * side)))
        tensor = [transforms.ToTensor(), transforms.Normalize(views.mean, views.std)]
        self._weak = transforms.Compose([*weak, *tensor])
        self._strong = transforms.Compose([*weak, transforms.RandAugment(), cutout, *tensor])

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        image = self._images[index]
        return self._weak(image), self._strong(image), self._labels[index]


def cut_out(image: Image.Image, window: int) -> Image.Image:
    left, top = (random.randrange(size) - window // 2 for size in image.size)
    gray = (GRAY,) * len(image.getbands())
    ImageDraw.Draw(image).rectangle((left, top, left + window - 1, top + window - 1), gray)
    return image


def views_loop(case: Case) -> Callable[[], None]:
    """The data alone: from stored images to both views of every batch."""
    generator = torch.Generator().manual_seed(0)

    def loop() -> None:
        for batch in torch.randperm(len(case.raw_N), generator=generator).chunk(BATCHES):
            raw = case.raw_N[batch]
            case.views.weak(raw, generator)
            case.views.strong(raw, generator)

    return loop


def pil_views_loop(case: Case) -> Callable[[], None]:
    loader = DataLoader(PilViews(case), case.batch_size, shuffle=True, num_workers=0)

    def loop() -> None:
        for _ in loader:
            pass

    return loop


def images_per_second(case: Case, times: int) -> dict[str, float]:
    """Medians, measured by turns."""
    makers = {"client": client_loop, "bare": bare_loop, "pil": pil_loop}
    makers |= {"views": views_loop, "views_pil": pil_views_loop}
    loops = {name: make(case) for name, make in makers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(times + 1):
        for name, loop in loops.items():
            # This thread's time and not the wall's: neighbours on a shared machine are not what is measured.
            started = time.thread_time()
            loop()
            seconds[name].append(time.thread_time() - started)
    return {name: len(case.raw_N) / statistics.median(found[1:]) for name, found in seconds.items()}


def figures_of(measured: Measured) -> dict[str, float]:
    speed = images_per_second(Case.make(measured.recipe, measured.overrides), measured.times)
    return {
        "ratio": round(speed["client"] / speed["bare"], 3),
        "ratio_pil": round(speed["client"] / speed["pil"], 2),
        "ratio_pil_views_only": round(speed["views"] / speed["views_pil"], 2),
        **{f"images_per_second_{name}": round(value) for name, value in speed.items()},
    }


def run() -> dict[str, object]:
    torch.set_num_threads(1)
    figures: dict[str, dict[str, float]] = {}
    for name, measured in CASES.items():
        figures[name] = figures_of(measured)
        print(name, figures[name], flush=True)
    main = figures.pop(MAIN)
    return {
        "name": "client_step",
        "bar": BAR,
        "bar_pil": BAR_PIL,
        "ok": main["ratio"] >= BAR and main["ratio_pil"] >= BAR_PIL,
        "config": f"{MAIN}, one thread",
        **main,
        "others": figures,
    }
