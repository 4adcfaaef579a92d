"""FedILError
├── WronglyAsked        other arguments or settings put it right
│   ├── AddressMissing  nobody said where a broker is
│   ├── AddressWrong    no broker that we know has such an address
│   └── PortTaken       others serve pages where ours shall be
├── BrokerUnavailable   try again later
│   └── BrokerBlocked   it takes no messages for now, and the connection is still good
├── BrokerRefused       wrong credentials, no permission, a setting that would lose data: put it right, then start again
├── QueueMissing        declare the topology first
├── MessageRejected     never retry: dead-letter it (`reason` is a word for logs and counters)
├── ModelMissing        the version has left the log: ask for a newer task
├── LedgerFenced        a later activation of this client is open: drop the work
├── LedgerMissing       the store lost what it had confirmed: restore it or start a new run
└── CheckpointDamaged   the file it names cannot be read: the text says how to go on
"""


class FedILError(Exception):
    """Anything that the moving and keeping of bytes refuses; its text says what to do."""


class WronglyAsked(FedILError):
    pass


class AddressMissing(WronglyAsked):
    pass


class AddressWrong(WronglyAsked):
    pass


class PortTaken(WronglyAsked):
    pass


class BrokerUnavailable(FedILError):
    pass


class BrokerBlocked(BrokerUnavailable):
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
