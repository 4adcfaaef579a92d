"""Names of the classes in the order of their labels, so that opening a dataset need not read its files."""

from collections.abc import Sequence

from fedil_model.errors import SettingError

DIGITS = tuple("0123456789")
FASHION = ("top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PATHMNIST = (
    "adipose",
    "background",
    "debris",
    "lymphocytes",
    "mucus",
    "smooth muscle",
    "normal mucosa",
    "stroma",
    "adenocarcinoma",
)
PNEUMONIAMNIST = ("normal", "pneumonia")

_CIFAR100_TEXT = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal
shark shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank
telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_CIFAR100_TEXT.split())


def checked_classes(classes: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) and name for name in classes):
        raise SettingError(f"data.options.classes must be a list of names, not {classes!r}")
    if len(set(classes)) != len(classes) or len(classes) < 2:
        raise SettingError(f"data.options.classes must be at least two names, each once; found {classes}")
    return tuple(classes)
