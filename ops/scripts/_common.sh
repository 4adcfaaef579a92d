# Sourced by the other scripts. Works from any folder; everything is installed into the repository's .venv.
# shellcheck shell=bash

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
venv="$root/.venv"

say() { printf '%s\n' "fedil: $*" >&2; }
die() { say "$@"; exit 1; }

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python; do
        if [[ -n "$candidate" ]] && command -v "$candidate" >/dev/null 2>&1 &&
            "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    die "Python 3.11 or newer was not found. Install it (Debian: apt install python3 python3-venv)" \
        "or set its path: PYTHON=/path/to/python3.12 $0"
}

make_venv() {
    [[ -x "$venv/bin/python" ]] && "$venv/bin/python" -c '' 2>/dev/null && return
    local python
    python="$(find_python)"
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        die "$python cannot make virtual environments. Debian: apt install python3-venv; then run this again"
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
}

# install EXTRAS: only if pyproject.toml, the extras or the repository's path have changed since the last time. The stamp
# is written last, so that an interrupted installation is repeated.
install() {
    local extras="$1" stamp="$venv/fedil-installed" wanted
    make_venv
    wanted="$root $(cksum <"$root/pyproject.toml")"
    # The extra `test` includes everything that running needs.
    if grep -qxF -e "$wanted ${extras:-run}" -e "$wanted test" "$stamp" 2>/dev/null; then
        return
    fi
    say "installing fedil${extras:+[$extras]} into .venv (the first time this fetches torch, which is large) ..."
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$root${extras:+[$extras]}" ||
        die "the installation failed; the lines above say why. Is the package registry reachable?"
    printf '%s\n' "$wanted ${extras:-run}" >"$stamp"
    say "installed"
}

# The programs that tests use and that are missing; Debian's packages have the same names.
missing_services() {
    local program missing=""
    for program in rabbitmq-server redis-server prometheus chromium; do
        # Programs of the system are often not on a user's PATH.
        PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$program" >/dev/null || missing+=" $program"
    done
    printf '%s' "${missing# }"
}

# Installs missing programs if apt may be used; otherwise prints what to do and goes on, because many tests need none
# of them.
install_services() {
    local missing
    missing="$(missing_services)"
    [[ -n "$missing" ]] || return 0
    if can_apt; then
        say "installing $missing with apt ..."
        # shellcheck disable=SC2086  # several words on purpose
        apt_install $missing >"$venv/apt.log" 2>&1 || say "apt did not install all of it; $venv/apt.log says why"
        missing="$(missing_services)"
        [[ -n "$missing" ]] || return 0
    fi
    say "tests need $missing. Debian: sudo apt install $missing. Elsewhere install them, or start Docker for" \
        "RabbitMQ and Redis. Tests without their service fail; FEDIL_REQUIRE_SERVICES=0 skips them instead"
}

# brokers_root SUITE: prints the folder with that Debian release's RabbitMQ, Redis and Valkey; built once, then cached.
brokers_root() {
    local suite="$1" folder="${XDG_CACHE_HOME:-$HOME/.cache}/fedil/brokers-$1" mirror
    if [[ ! -d "$folder" ]]; then
        as_root true 2>/dev/null || die "building $folder needs root: run this once as root, or with sudo"
        PATH="$PATH:/usr/sbin:/sbin" command -v debootstrap >/dev/null || { can_apt && apt_install debootstrap >&2; } ||
            die "--brokers needs debootstrap. Debian and Ubuntu: sudo apt install debootstrap"
        mirror="${DEBIAN_MIRROR:-$(apt_mirror)}"
        [[ -n "$mirror" ]] || die "apt's sources name no Debian mirror: set DEBIAN_MIRROR=URL"
        say "building $folder from $mirror (some minutes, 400 MB) ..."
        mkdir -p "${folder%/*}"
        # An interrupted build may have left /proc mounted in it.
        as_root rm -rf --one-file-system "$folder.part"
        as_root debootstrap --variant=minbase --include=rabbitmq-server,redis-server,valkey-server \
            "$suite" "$folder.part" "$mirror" >"$folder.log" 2>&1 ||
            die "debootstrap failed: does $mirror have $suite? $folder.log says why"
        printf '127.0.0.1 localhost\n' | as_root tee "$folder.part/etc/hosts" >/dev/null  # RabbitMQ resolves its own name
        as_root mv "$folder.part" "$folder"
    fi
    printf '%s' "$folder"
}

# The Debian mirror that this machine's apt uses.
apt_mirror() {
    # shellcheck disable=SC2016  # apt expands it
    { apt-get indextargets --format '$(REPO_URI)' 'Label: Debian' 'Created-By: Packages' 2>/dev/null || true; } | head -n 1
}

# apt_install PACKAGES…: updates apt's lists only if it must.
apt_install() { as_root apt-get install -y "$@" || { as_root apt-get update && as_root apt-get install -y "$@"; }; }

can_apt() { command -v apt-get >/dev/null && { [[ $EUID -eq 0 ]] || sudo -n true 2>/dev/null; }; }

# RUNLEVEL=1 keeps Debian from starting the installed services (except under systemd); the tests start their own.
as_root() {
    if [[ $EUID -eq 0 ]]; then
        env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 "$@"
    fi
}
