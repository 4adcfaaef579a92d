"""Names of Redis keys, each of which exists once, here; and who may do what with them.

    fedil:{<site>/<run>}:ledger:<client>   hash: opened, first, kept, and each kept ledger under its activation
    fedil:{<site>/<run>}:clients           set: which clients have such a hash
    fedil:run:{<run>}                      string: the run's mark, which only the server may write or delete
    fedil:board:{<topic>}                  sorted set: names by the millisecond at which they fade
    fedil:board:{<topic>}:<name>           string that expires: the facts as JSON

The braces keep what one transaction touches on one node of a cluster. The site comes first, so that one
pattern fences it off in all runs.
"""

from broker_config.brokers.topology import workers_topic

_FOR_EVERYBODY = (
    *("ping", "info", "time", "select", "watch", "unwatch", "multi", "exec"),
    *("hstrlen", "hmget", "hset", "hdel", "sadd"),
    *("set", "del", "strlen", "getrange", "zadd", "zrem", "zrange", "zremrangebyscore", "memory|usage"),
)
_FOR_THE_SERVER = ("smembers", "scard", "scan")


def ledger_key(site: str, run: str, client: int) -> str:
    return f"fedil:{{{site}/{run}}}:ledger:{client}"


def clients_key(site: str, run: str) -> str:
    return f"fedil:{{{site}/{run}}}:clients"


def run_key(run: str) -> str:
    """Fits no pattern of a site's."""
    return f"fedil:run:{{{run}}}"


def site_in(clients_key: str) -> str:
    """The site that a name made by `clients_key` speaks of."""
    return clients_key.partition("{")[2].partition("/")[0]


def run_in(clients_key: str) -> str:
    """The run that it speaks of."""
    return clients_key.partition("/")[2].partition("}")[0]


def marked_run_in(run_key: str) -> str:
    """The run that a name made by `run_key` speaks of."""
    return run_key.partition("{")[2].partition("}")[0]


def board_key(topic: str) -> str:
    return f"fedil:board:{{{topic}}}"


def notice_key(topic: str, name: str) -> str:
    return f"{board_key(topic)}:{name}"


def site_rules(site: str) -> tuple[str, ...]:
    """ACL rules for the workers of one site: its own ledgers and notices. No scripts: a site that may run one
    could stop Redis for all."""
    topic = board_key(workers_topic(site))
    return (f"~fedil:{{{site}/*", f"~{topic}", f"~{topic}:*", *_allow(_FOR_EVERYBODY))


def server_rules() -> tuple[str, ...]:
    """ACL rules for the server, and for people who look at ledgers."""
    return ("~fedil:*", *_allow(_FOR_EVERYBODY + _FOR_THE_SERVER))


def _allow(commands: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"+{command}" for command in commands)
