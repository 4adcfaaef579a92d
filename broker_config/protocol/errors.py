"""FedILError
├── UsageError          wrong arguments or settings: correct them
│   ├── AddressMissing  the address of a broker or store is not set
│   ├── AddressWrong    the address is malformed or of an unknown kind
│   └── PortTaken       another process uses the port
├── BrokerUnavailable   try again later
│   └── BrokerBlocked   the broker accepts no messages at the moment; the connection is still good
│       └── QueueFull   one queue has as many messages as it may hold: the broker has not taken this one
├── BrokerRefused       wrong credentials, no permission, a setting that would lose data: correct it, then start again
├── QueueMissing        declare the topology first
├── MessageRejected     never retry: dead-letter it (`reason` is a word for logs and counters)
├── ModelMissing        the version has left the log: wait for a newer task
├── LedgerFenced        a later activation of this client is open: drop the work
├── LedgerMissing       the store lost committed data: restore it or start a new run
└── CheckpointDamaged   a file cannot be read: the text names it and the remedy
"""


class FedILError(Exception):
    """Base of the errors of brokers, stores and files. The text names the cause and the remedy."""


class UsageError(FedILError):
    pass


class AddressMissing(UsageError):
    pass


class AddressWrong(UsageError):
    pass


class PortTaken(UsageError):
    pass


class BrokerUnavailable(FedILError):
    pass


class BrokerBlocked(BrokerUnavailable):
    pass


class QueueFull(BrokerBlocked):
    pass


class BrokerRefused(FedILError):
    pass


class QueueMissing(FedILError):
    pass


class MessageRejected(FedILError):
    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail

    def __str__(self) -> str:
        return ": ".join(self.args)


class ModelMissing(FedILError):
    pass


class LedgerFenced(FedILError):
    pass


class LedgerMissing(FedILError):
    pass


class CheckpointDamaged(FedILError):
    pass
