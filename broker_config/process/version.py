"""Which FedIL this is."""

from importlib import metadata


def software_version() -> str:
    try:
        return metadata.version("fedil")
    except metadata.PackageNotFoundError:
        return "source tree, not installed"
