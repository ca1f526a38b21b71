"""How commands reach the optimizer: its address and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from kgwe import errors

DEFAULT_ADDRESS: Final = "127.0.0.1:50051"

Address = Annotated[
    str,
    Parameter(
        name="--optimizer",
        env_var="KGWE_OPTIMIZER_ADDRESS",
        help="Address of the optimizer's gRPC service. Default: this machine, where kubectl port-forward brings it.",
    ),
]
Certificates = Annotated[
    Path | None,
    Parameter(
        env_var="KGWE_OPTIMIZER_CERTIFICATES",
        help="Folder with tls.crt, tls.key and ca.crt. Needed if the optimizer is on another machine.",
    ),
]
_HINT: Final = (
    "start it with kgwe optimizer, or forward its port: kubectl -n kgwe-system port-forward svc/kgwe-optimizer 50051"
)


def explain_unreachable(exc: errors.Transient) -> errors.Permanent:
    """Return the error with the next step."""
    return errors.Permanent(f"{exc}: {_HINT}")
