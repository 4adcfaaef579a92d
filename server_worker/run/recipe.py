"""A run as a small file: what to learn (fedil_model) and how to federate it."""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from ipaddress import ip_network
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    PositiveFloat,
    PositiveInt,
    StringConstraints,
    ValidationError,
    model_validator,
)

from broker_config.brokers.topology import DEFAULT_SITE
from fedil_model.errors import SettingError
from fedil_model.methods import find_method, method_named, plugins_named, settings_class, validate
from fedil_model.methods.interface import MethodSpec
from fedil_model.settings import Codec, Learning, Settings, explain, merge

SiteName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")]
"""No dots: it becomes part of queue names, routing keys, key patterns and user names."""
_HOST_NAME = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def _network_or_name(entry: str) -> str:
    try:
        ip_network(entry)
    except ValueError as error:
        # What looks like an address but is none would never match.
        if re.fullmatch(r"[0-9./:]+", entry) or not _HOST_NAME.fullmatch(entry):
            raise ValueError(
                f"{entry!r:.80} is not an IP address, a network such as 10.1.0.0/16, a host name or *.DOMAIN"
            ) from error
    return entry


NetworkOrName = Annotated[str, AfterValidator(_network_or_name)]


class FederationSettings(Settings):
    mode: Literal["rounds", "buffered"] = "rounds"
    """"rounds": ask some clients, wait for them, aggregate (the paper). "buffered": always have some clients at
    work, and aggregate whenever enough have answered; the slowest delay no others, and `rounds` counts the
    aggregations."""
    clients_per_round: int = Field(default=5, ge=0)
    """Clients that train in a round. 0 with a method that asks no clients, whatever the recipe says, and with no
    other."""
    over_select: int = Field(default=0, ge=0)
    """Ask so many clients more than needed; the round closes when `clients_per_round` have answered. Raise it where
    some clients are often slow or away."""
    quorum: float = Field(default=1.0, gt=0.0, le=1.0)
    """Share of `clients_per_round` that suffices once the deadline has passed, or once no other client is awaited. If
    clients that were asked fail, others are asked as well, and below its quorum a round closes only if none is left;
    if some are silent until the deadline, the run stops, says so, and can be resumed."""
    in_flight: PositiveInt = 10
    """Buffered: so many clients at work at a time."""
    buffer_size: PositiveInt = 5
    """Buffered: aggregate after so many updates; refusals, failures and invalid updates do not count."""
    wire: Codec = "fp32"
    """How clients send the numbers of their updates: as they are, in half precision, or in a byte each."""
    max_staleness: int = Field(default=4, ge=0)
    """Buffered: an update from a model more versions old than this does not count. So many are kept, and the
    newest."""
    deadline_seconds: PositiveFloat = 1800.0
    """A round, or in buffered mode a client, is given up after so long. Let it be several times what a task takes on
    the slowest worker."""
    sites: dict[SiteName, PositiveInt] = Field(default={})
    """Owners of the clients: site → how many of them, in order. Empty: one site, "default", owns all."""
    min_sites: PositiveInt | None = None
    """A round closes only if clients of at least so many sites have learned; a buffer, only while so many sites have a
    worker. With fewer, the run waits and says for which. Left out: 2 where the recipe has two sites or more (a round
    that happens to select clients of one site only needs no other), so that no site is left to train alone unseen."""
    site_timeout_seconds: PositiveFloat = 60.0
    """A site without a worker for so long is not asked until it has one again."""
    addresses: dict[SiteName, list[NetworkOrName]] = Field(default={})
    """Where Prometheus may look for a site's workers: networks and host names, as in north = ["10.1.0.0/16",
    "*.north.example"]. Other addresses that a site reports are not in the server's /targets. Without sites, and with
    the live page on loopback, the default is loopback."""

    @property
    def asked_per_round(self) -> int:
        """Rounds mode: clients that a round begins with"""
        return self.clients_per_round + self.over_select

    @property
    def expected(self) -> int:
        """Answers that are wanted before a round closes, as far as is known before it opens"""
        return self.buffer_size if self.mode == "buffered" else self.asked_per_round

    @property
    def asked_at_once(self) -> int:
        return self.in_flight if self.mode == "buffered" else self.asked_per_round

    @model_validator(mode="after")
    def _only_keys_of_its_mode(self) -> "FederationSettings":
        other = {"rounds": _BUFFERED_ONLY, "buffered": _ROUNDS_ONLY}[self.mode]
        # A saved recipe names every key, so it is the value that tells.
        changed = [key for key in other if getattr(self, key) != type(self).model_fields[key].default]
        if changed:
            raise ValueError(f'mode = "{self.mode}" has no use for {" and ".join(changed)}: leave out')
        if self.buffer_size > self.in_flight:
            raise ValueError(
                f"in_flight is {self.in_flight}, too few to give buffer_size = {self.buffer_size} answers"
            )
        return self


_WAYS_TO_SAY_HOW_MANY = frozenset({"labelled", "labelled_fraction"})
_BUFFERED_ONLY = ("in_flight", "buffer_size", "max_staleness")
_ROUNDS_ONLY = ("over_select", "quorum")


class Recipe(Learning):
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")
    """Name of the run: of its folder under runs/, and in reports."""
    description: str = ""
    """A sentence about the run, for lists and reports."""
    evaluate_every: PositiveInt = 1
    """Rounds between two evaluations on the test data. Raise it where evaluating takes longer than a round."""
    baseline_epochs: int | None = Field(default=None, ge=0)
    """Server-only training on the same labels, for comparison: as many epochs as the run's server has in all, or this
    many; 0 leaves it out."""
    init_from: Path | None = Field(default=None, strict=False)
    """Weights to begin with, before `server.pretrain_epochs`: the folder of another run, for its model that ships, or
    a .safetensors file. The run's folder keeps a copy."""
    federation: FederationSettings = FederationSettings()

    @model_validator(mode="before")
    @classmethod
    def _no_clients_where_the_method_asks_none(cls, values: dict[str, Any]) -> dict[str, Any]:
        """One recipe serves every method that is compared."""
        if find_method(method_named(values)).asks_clients or not isinstance(
            values.get("federation", {}), dict
        ):
            return values
        return merge(values, {"federation": {"clients_per_round": 0, "over_select": 0}})

    @model_validator(mode="after")
    def _federation_fits_method_and_split(self) -> "Recipe":
        federation = self.federation
        if federation.clients_per_round == 0 and self.spec.asks_clients:
            raise ValueError(f"federation.clients_per_round is 0, but method {self.method.name} asks clients")
        buffered, asked = federation.mode == "buffered", federation.asked_at_once
        if asked > self.split.clients:
            keys = "in_flight" if buffered else "clients_per_round + over_select"
            raise ValueError(f"federation.{keys} is {asked}, but split.clients is {self.split.clients}")
        if buffered and not self.spec.buffered:
            raise ValueError(f'federation.mode: "buffered" is not supported by method {self.method.name}')
        owned = sum(federation.sites.values())
        if federation.sites and owned != self.split.clients:
            raise ValueError(
                f"federation.sites own {owned} clients, but split.clients is {self.split.clients}"
            )
        if federation.min_sites and federation.min_sites > len(self.sites):
            raise ValueError(
                f"federation.min_sites is {federation.min_sites}, but there are {len(self.sites)} sites"
            )
        if unknown := federation.addresses.keys() - self.sites.keys():
            raise ValueError(f"federation.addresses names {min(unknown)}, which is not a site of the recipe")
        return self

    @property
    def spec(self) -> MethodSpec:
        """Of its method"""
        return find_method(self.method.name)

    @property
    def plugins(self) -> list[str]:
        """Code of the user's own that it names"""
        return plugins_named(self.model_dump())

    @property
    def sites(self) -> dict[str, range]:
        """Site → its clients."""
        sizes = self.federation.sites or {DEFAULT_SITE: self.split.clients}
        ends = list(accumulate(sizes.values()))
        return {site: range(end - size, end) for (site, size), end in zip(sizes.items(), ends, strict=True)}

    @property
    def min_sites(self) -> int:
        """Sites without which the run does not go on"""
        return self.federation.min_sites or min(2, len(self.sites))

    @property
    def floor_epochs(self) -> int:
        """Epochs of server-only training; 0 by default where the method is nothing else"""
        if self.baseline_epochs is not None:
            return self.baseline_epochs
        if not self.spec.asks_clients:
            return 0
        return self.server.pretrain_epochs + self.rounds * self.server.epochs

    def site_of(self, client: int) -> str:
        return next(site for site, clients in self.sites.items() if client in clients)

    def learning(self) -> Learning:
        """The part that a task carries."""
        return validate(Learning, self.model_dump(include=set(Learning.model_fields)))


@dataclass(frozen=True)
class Override:
    """One setting on top of a recipe"""

    key: list[str]
    table: dict[str, Any]
    said: str
    """As it was given, for what is said of it"""

    @staticmethod
    def of(key: list[str], value: Any, said: str) -> "Override":
        for part in reversed(key):
            value = {part: value}
        return Override(key, value, said)

    @staticmethod
    def parsed(text: str) -> "Override":
        return Override(_key_of(text), parse_override(text), f"--set {text}")


def load_recipe(path: Path, overrides: Iterable[str | Override] = ()) -> Recipe:
    """Read a TOML file and apply `key=value` overrides. Raises SettingError naming what is wrong."""
    return make_recipe(read_values(path), str(path), overrides)


def read_values(path: Path, *below: Path) -> dict[str, Any]:
    """What a file says, on top of the recipe beside it that its `base` names."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingError(f"cannot read recipe {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"recipe {path} is not UTF-8 text: {error}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingError(f"recipe {path} is not valid TOML: {error}") from error
    if "base" not in values:
        return values
    base = path.parent / f"{values.pop('base')}.toml"
    if base in (path, *below):
        raise SettingError(f"recipe {path}: base leads back to {base.stem}")
    return merge(_without_the_other_way(read_values(base, path, *below), [values]), values)


def make_recipe(
    values: Mapping[str, Any], source: str = "recipe", overrides: Iterable[str | Override] = ()
) -> Recipe:
    """`source` is blamed for what is wrong in `values`, and an override for what is wrong in it."""
    given = [Override.parsed(one) if isinstance(one, str) else one for one in overrides]
    parsed = [override.table for override in given]
    values = _named_by_its_data(_sized(values, parsed, source), parsed)
    merged = reduce(merge, parsed, _without_the_other_way(values, parsed))
    blamed = partial(_blamed, values, source, given)
    try:
        return validate(Recipe, merged)
    except ValidationError as error:
        model = settings_class(Recipe, method_named(merged))
        raise SettingError(explain(error, blamed, model)) from error
    except SettingError as error:
        raise SettingError(f"{blamed(['method', 'name'])}: {error}") from error


def _sized(values: Mapping[str, Any], overrides: Iterable[dict[str, Any]], source: str) -> dict[str, Any]:
    """A recipe may have settings by size, in tables such as [sizes.cpu]; `size` names the one that counts."""
    kept = {key: value for key, value in values.items() if key not in {"size", "sizes"}}
    sizes = values.get("sizes", {})
    size = values.get("size", next(iter(sizes), None))
    for override in overrides:
        size = override.pop("size", size)
    if size is None:
        return kept
    if size not in sizes:
        known = f"it has {', '.join(sizes)}" if sizes else "it has none"
        raise SettingError(f"{source}: there is no size {size!r}; {known}")
    return merge(kept, sizes[size])


def _named_by_its_data(values: dict[str, Any], overrides: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Name and description of a recipe are about its own data: with other data it has the name of those."""
    tables = [values.get("data"), *(override.get("data") for override in overrides)]
    names = [table["name"] for table in tables if isinstance(table, Mapping) and "name" in table]
    if len(set(map(str, names))) < 2 or names[-1] == names[0]:
        return values
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(names[-1])).lstrip("._-")[:80]
    return {**values, "name": name or "run", "description": ""}


def _without_the_other_way(values: Mapping[str, Any], overrides: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A split says how many labels there are in one of two ways. TOML has no null with which an override, or a
    recipe with a base, could take back the other one, so it replaces it."""
    split = values.get("split")
    given = {
        key for override in overrides if isinstance(override.get("split"), dict) for key in override["split"]
    }
    if not isinstance(split, Mapping) or not given & _WAYS_TO_SAY_HOW_MANY:
        return dict(values)
    kept = {key: value for key, value in split.items() if key not in _WAYS_TO_SAY_HOW_MANY}
    return {**values, "split": kept}


def _blamed(values: Mapping[str, Any], source: str, overrides: Iterable[Override], path: list[str]) -> str:
    """The file or options that a key comes from; for a table that contradicts itself, those of its parts."""
    parts: list[str] = []
    for override in overrides:
        key = override.key
        if path[: len(key)] == key:
            parts, values = [override.said], {}
        elif key[: len(path)] == path:
            parts.append(override.said)
    if not parts:
        return source
    return f"{source} with {' '.join(parts)}" if _holds(values, path) else " ".join(parts)


def _holds(values: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return bool(values)


# What a run is for, where its data lies, how often it is looked at and how long it waits change no number.
_NO_NUMBER: Mapping[str, Any] = {
    "description": True,
    "evaluate_every": True,
    "baseline_epochs": True,
    "data": {"root", "download"},
    "federation": {"deadline_seconds", "quorum", "min_sites", "site_timeout_seconds", "sites", "addresses"},
}


def numbers_depend_on(recipe: Recipe) -> dict[str, Any]:
    """Settings by dotted key, as JSON values; how many rounds there are, only where a schedule counts them."""
    constant = {recipe.client.lr_schedule, recipe.server.lr_schedule} == {"constant"}
    ignored = {**_NO_NUMBER, "rounds": constant}
    return flatten(recipe.model_dump(mode="json", exclude=ignored), whole=("options",))


def flatten(table: Mapping[str, Any], prefix: str = "", whole: Collection[str] = ()) -> dict[str, Any]:
    """Nested tables → dotted keys, plain values before tables, so that it reads top down. Empty tables, and those in
    `whole`, are values."""
    flat: dict[str, Any] = {}
    for key, value in sorted(table.items(), key=lambda item: isinstance(item[1], dict)):
        if isinstance(value, dict) and value and key not in whole:
            flat |= flatten(value, f"{prefix}{key}.", whole)
        else:
            flat[prefix + key] = value
    return flat


def parse_override(text: str) -> dict[str, Any]:
    """`client.lr=0.1` → {"client": {"lr": 0.1}}; a value that is not TOML is taken as a string."""
    _, equals, value = text.partition("=")
    if not equals or not all(part.isidentifier() for part in _key_of(text)):
        raise SettingError(f"--set wants key=value, such as client.lr=0.1; got {text!r}")
    try:
        table = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        table = {"value": value.strip()}
    if len(table) != 1:
        raise SettingError(f"--set takes one key=value at a time; got {text!r}")
    return Override.of(_key_of(text), table["value"], text).table


def _key_of(override: str) -> list[str]:
    return override.partition("=")[0].strip().split(".")
