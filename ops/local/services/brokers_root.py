"""Broker programs from a Debian root folder, to test other releases than the installed ones.

FEDIL_BROKERS_ROOT names the folder (`ops/scripts/test --brokers SUITE` builds one). Programs run in it through chroot,
in a private mount namespace. They share this machine's network, /proc, /dev and folder of temporary files, so whatever
they read or write must be in the latter.
"""

import os
import shutil
import tempfile
from pathlib import Path

from ops.local.services.process import ServiceMissing, find_program

ROOT = "FEDIL_BROKERS_ROOT"
_ENTER = (
    'mount --bind /proc "$0/proc" && mount --rbind /dev "$0/dev" && mkdir -p "$0$1" && mount --bind "$1" "$0$1"'
    ' && temporary="$1" && shift && TMPDIR="$temporary" exec chroot "$0" "$@"'
)


def find_broker_program(name: str, *places: str, missing: str) -> str:
    """Path of a program as `broker_command` needs it; `places` come first."""
    root = os.environ.get(ROOT)
    if not root:
        return find_program(name, *places, missing=missing)
    for place in (*places, f"/usr/bin/{name}"):
        if shutil.which(root + place):
            return place
    raise ServiceMissing(f"{ROOT}={root} has no {name}: build it with ops/scripts/test --brokers SUITE")


def broker_command(*command: str) -> list[str]:
    """`command`, run in the root folder where there is one. All of it is exec: the process id stays the same."""
    root = os.environ.get(ROOT)
    if not root:
        return list(command)
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    temporary = str(Path(tempfile.gettempdir()).resolve())
    return ["unshare", "--mount", *rights, "sh", "-c", _ENTER, root, temporary, *command]
