"""Where the brokers are, as people say it: on the command line, or in the environment, where a password in an
address is not seen by others."""

import argparse
from collections.abc import Mapping

from broker_config.errors import AddressMissing

BROKER_URL, STORE_URL = "FEDIL_BROKER_URL", "FEDIL_STORE_URL"


def add_address_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        metavar="URL",
        help=f"amqp(s)://user:password@host/vhost; default: {BROKER_URL} from the environment, where a password is "
        "not seen by others",
    )
    parser.add_argument(
        "--store", metavar="URL", help=f"redis(s)://user:password@host:port; default: {STORE_URL}"
    )


def fill_from_environment(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    for name, variable in (("broker", BROKER_URL), ("store", STORE_URL)):
        given = getattr(options, name) or environment.get(variable)
        if not given:
            raise AddressMissing(f"no {name} to connect to: give --{name} URL, or set {variable}")
        setattr(options, name, given)
