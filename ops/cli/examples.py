"""Examples of every command, shown at the end of its help and in the documentation. A test parses each of them."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "fedil": ("fedil simulate", "fedil recipes", "fedil report runs/digits"),
    "fedil simulate": (
        "fedil simulate",
        "fedil simulate mnist-iid-001 --set data.root=data --set data.download=true",
        "fedil simulate mnist-iid-001 --resume",
        "fedil simulate digits --run-dir runs/half --set split.labelled=25",
    ),
    "fedil evaluate": ("fedil evaluate runs/digits", "fedil evaluate runs/digits --model server --json"),
    "fedil predict": (
        "fedil predict runs/digits scans",
        "fedil predict runs/digits scans --csv labels.csv",
    ),
    "fedil export": (
        "fedil export runs/digits --format onnx",
        "fedil export runs/digits --format safetensors --out model.safetensors",
    ),
    "fedil report": (
        "fedil report runs/digits",
        "fedil report runs/seed-0 runs/seed-1 runs/other --out comparison.html --png plots",
    ),
    "fedil compare": (
        "fedil compare digits --methods fedil,semifl,fedavg_fixmatch --seeds 3",
        "fedil compare mnist-iid-001 --methods fedil,semifl --set semifl:method.threshold=0.9 --cpu-seconds 600",
        "fedil compare digits --methods fedil,fedil@steady --set fedil@steady:method.server_momentum=0",
    ),
    "fedil sweep": (
        "fedil sweep digits --set method.credibility=3,5,7 --seeds 0-4",
        "fedil sweep digits --set federation.clients_per_round=5,10 --set client.epochs=2,5",
    ),
    "fedil recipes": (
        "fedil recipes",
        "fedil recipes show digits",
        "fedil recipes explain federation.quorum",
    ),
    "fedil recipes list": ("fedil recipes list", "fedil recipes list --json"),
    "fedil recipes show": ("fedil recipes show digits", "fedil recipes show mine.toml --resolved"),
    "fedil recipes explain": (
        "fedil recipes explain",
        "fedil recipes explain lr --recipe mnist-iid-001",
        "fedil recipes explain method --set method.name=semifl",
    ),
    "fedil cluster": (
        "fedil cluster digits --workers 2",
        "fedil cluster two-sites.toml --run-dir runs/two-sites",
    ),
    "fedil server": (
        "fedil server --recipe two-sites.toml",
        "fedil server --recipe two-sites.toml --run-dir runs/two-sites --standby",
    ),
    "fedil worker": (
        "fedil worker --site north --shards shards",
        "fedil worker --site north --shards shards --device auto --processes 4 --grace 60 --limits limits.toml",
    ),
    "fedil shards": (
        "fedil shards two-sites.toml --site north --out shards",
        "fedil shards ward.toml --site clinic --images scans --out shards",
    ),
    "fedil status": ("fedil status", "fedil status --json"),
    "fedil ledger": ("fedil ledger list --run-dir runs/digits",),
    "fedil ledger show": (
        "fedil ledger show 7 --run-dir runs/digits",
        "fedil ledger show 7 --run wards-3f2a --site north",
    ),
    "fedil ledger list": (
        "fedil ledger list --run-dir runs/digits",
        "fedil ledger list --run wards-3f2a --json",
    ),
    "fedil runs": ("fedil runs", "fedil runs experiments --json"),
    "fedil doctor": ("fedil doctor", "fedil doctor --recipe wards.toml --json"),
    "fedil plan": (
        "fedil plan digits --clients 1000",
        "fedil plan cifar10-iid-001 --clients 1000000 --clients-per-round 900 --set federation.wire=int8",
    ),
    "fedil broker": (
        "fedil broker init --recipe two-sites.toml --out accounts",
        "fedil broker check --recipe two-sites.toml",
    ),
    "fedil broker init": (
        "fedil broker init --recipe two-sites.toml --out accounts",
        "fedil broker init --sites north,south --rotate --out accounts --broker-address amqp://a,b:5672,c",
    ),
    "fedil broker files": (
        "fedil broker files --recipe two-sites.toml --out files",
        "fedil broker files --recipe two-sites.toml --tls /tls --mutual --out files",
    ),
    "fedil broker check": ("fedil broker check --recipe two-sites.toml",),
    "fedil broker runs": ("fedil broker runs", "fedil broker runs --json"),
    "fedil broker retire": (
        "fedil broker retire wards-3f2a",
        "fedil broker retire wards-3f2a --ledgers --yes",
    ),
    "fedil credentials": (
        "fedil credentials --hosts rabbitmq,redis --recipe two-sites.toml --out credentials",
    ),
    "fedil monitoring": ("fedil monitoring --out monitoring --server HOST:8265 --rabbitmq HOST:15692",),
    "fedil completion": (
        "fedil completion bash > ~/.local/share/bash-completion/completions/fedil",
        "fedil completion fish > ~/.config/fish/completions/fedil.fish",
    ),
}
"""By what is typed before the arguments"""


def epilog(prog: str) -> str | None:
    lines = EXAMPLES.get(prog)
    return "\n".join(["examples:", *(f"  {line}" for line in lines)]) if lines else None
