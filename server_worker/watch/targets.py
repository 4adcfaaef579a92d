"""Addresses of workers for Prometheus. Sites report them: only those are passed on that the recipe allows the site,
since Prometheus may reach what a site cannot."""

import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from broker_config.process.addresses import WebAddress
from broker_config.process.http import is_loopback
from server_worker.run.recipe import Recipe

_log = logging.getLogger(__name__)
_PLACE = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,253}):[0-9]{1,5}")
_LOOPBACK = ("127.0.0.0/8", "::1", "localhost")
MOST_PER_SITE = 500


def allowed_addresses(recipe: Recipe, page: WebAddress | None) -> dict[str, Collection[str]]:
    """Networks and host names by site. Where one owner has all clients and the page is for this machine only, workers
    of this machine need no setting."""
    allowed: dict[str, Collection[str]] = dict.fromkeys(recipe.sites, ())
    if not recipe.federation.sites and page is not None and is_loopback(page.host):
        allowed = dict.fromkeys(recipe.sites, _LOOPBACK)
    return allowed | recipe.federation.addresses


class Targets:
    def __init__(self, allowed: Mapping[str, Collection[str]]) -> None:
        self._allowed = allowed
        self._named: set[str] = set()

    def of(self, workers: Iterable[Mapping[str, object]]) -> list[dict[str, object]]:
        """As Prometheus' http_sd_configs reads them, each once, at most MOST_PER_SITE of a site."""
        found: dict[tuple[str, str], None] = {}
        counts: Counter[str] = Counter()
        for worker in workers:
            site, place = str(worker["site"]), worker.get("metrics")
            if not isinstance(place, str) or not _PLACE.fullmatch(place) or (site, place) in found:
                continue
            if not self._allows(site, place) or counts[site] >= MOST_PER_SITE:
                self._name(site, place)
                continue
            found[site, place] = None
            counts[site] += 1
        return [{"targets": [place], "labels": {"site": site}} for site, place in found]

    def _allows(self, site: str, place: str) -> bool:
        host = place.rpartition(":")[0].strip("[]").lower()
        return any(_matches(entry.lower(), host) for entry in self._allowed.get(site, ()))

    def _name(self, site: str, place: str) -> None:
        if site not in self._named:
            self._named.add(site)
            _log.warning(
                "Prometheus is not told of %s, which a worker of site %s reports: allow its address or network in "
                "federation.addresses.%s (at most %d workers of a site)",
                place,
                site,
                site,
                MOST_PER_SITE,
            )


def _matches(entry: str, host: str) -> bool:
    """Loopback, link-local (with a cloud's metadata) and multicast are in no larger network such as 0.0.0.0/0."""
    try:
        address = ip_address(host)
    except ValueError:
        return host == entry or (entry.startswith("*.") and host.endswith(entry[1:]))
    try:
        network = ip_network(entry)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address in network and (_is_special(network) or not _is_special(address))


def _is_special(where: IPv4Address | IPv6Address | IPv4Network | IPv6Network) -> bool:
    return where.is_loopback or where.is_link_local or where.is_multicast or where.is_unspecified
