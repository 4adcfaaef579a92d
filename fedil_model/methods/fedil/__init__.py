"""FedIL (arXiv 2302.11823): federated incremental learning from a server's labels and clients' unlabelled samples."""

from fedil_model.methods.fedil.display import DISPLAY
from fedil_model.methods.fedil.settings import PROFILES, FedILSettings
from fedil_model.methods.interface import Arrays, Method, MethodContext, MethodSpec, StateView


def spec() -> MethodSpec:
    return MethodSpec(
        title="FedIL",
        reference="https://arxiv.org/abs/2302.11823",
        settings=FedILSettings,
        make=_make,
        display=DISPLAY,
        profiles=PROFILES,
        view_state=_view_state,
    )


def _make(context: MethodContext) -> Method:
    from fedil_model.methods.fedil.method import FedIL  # imports torch

    return FedIL(context)


def _view_state(arrays: Arrays) -> StateView:
    from fedil_model.methods.fedil.ledger_view import view_ledger  # imports numpy

    return view_ledger(arrays)
