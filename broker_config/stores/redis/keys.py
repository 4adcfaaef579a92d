"""All names of Redis keys, and the ACL rules for them.

    fedil:{<site>/<run>}:ledger:<client>   hash: opened, first, kept, and each kept ledger under its activation
    fedil:{<site>/<run>}:clients           set: the clients that have such a hash
    fedil:run:{<site>/<run>}               hash: the mark of the run where these ledgers are, with the server's count;
                                           only the server may write or delete it
    fedil:board:{<topic>}                  sorted set: names of notices by the millisecond at which they expire
    fedil:board:{<topic>}:<name>           string with a TTL: the facts of a notice as JSON

The braces are hash tags: they keep the keys of one transaction on one node of a cluster. The site comes first, so one
ACL pattern covers all of its runs.
"""

from broker_config.brokers.topology import workers_topic

_COMMANDS_OF_SITES = (
    *("command", "cluster|slots", "cluster|nodes"),  # to find the node of a key; redis-py asks for the first
    *("ping", "info", "time", "select", "watch", "unwatch", "multi", "exec", "wait"),
    *("hstrlen", "hmget", "hset", "hdel", "sadd"),
    *("set", "del", "strlen", "getrange", "zadd", "zrem", "zrange", "zremrangebyscore", "memory|usage"),
)
_COMMANDS_OF_SERVER = (*_COMMANDS_OF_SITES, "smembers", "scard", "scan")


def ledger_key(site: str, run: str, client: int) -> str:
    return f"fedil:{{{site}/{run}}}:ledger:{client}"


def clients_key(site: str, run: str) -> str:
    return f"fedil:{{{site}/{run}}}:clients"


def mark_key(site: str, run: str) -> str:
    """Beside the ledgers, on whichever node they are, and matched by no ACL pattern of a site."""
    return f"fedil:run:{{{site}/{run}}}"


def site_in(key: str) -> str:
    """The site in a name made by `clients_key` or `mark_key`"""
    return key.partition("{")[2].partition("/")[0]


def run_in(key: str) -> str:
    """The run in a name made by `clients_key` or `mark_key`"""
    return key.partition("/")[2].partition("}")[0]


def board_key(topic: str) -> str:
    return f"fedil:board:{{{topic}}}"


def notice_key(topic: str, name: str) -> str:
    return f"{board_key(topic)}:{name}"


def site_rules(site: str) -> tuple[str, ...]:
    """ACL rules for the workers of one site: its own ledgers and notices. No scripts: one endless script would stop
    Redis for every site."""
    topic = board_key(workers_topic(site))
    return (f"~fedil:{{{site}/*", f"~{topic}", f"~{topic}:*", *_allow(_COMMANDS_OF_SITES))


def server_rules() -> tuple[str, ...]:
    """ACL rules for the server and for the commands that show ledgers."""
    return ("~fedil:*", *_allow(_COMMANDS_OF_SERVER))


def _allow(commands: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"+{command}" for command in commands)
