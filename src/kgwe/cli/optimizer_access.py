"""How commands reach the optimizer: its address and certificates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from kgwe import errors

if TYPE_CHECKING:
    from kgwe.optimizerapi.client import OptimizerClient

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
# What reading the identity of the cluster may take.
_PATIENCE_S: Final = 5.0
_HINT: Final = (
    "start it with kgwe optimizer, or forward its port: kubectl -n kgwe-system port-forward svc/kgwe-optimizer 50051"
)


def explain_unreachable(exc: errors.Transient) -> errors.Permanent:
    """Return the error with the next step."""
    return errors.Permanent(f"{exc}: {_HINT}")


async def check_cluster(client: OptimizerClient, address: str) -> None:
    """Refuse the optimizer of another cluster than the kubeconfig names; nothing is checked if either is unknown."""
    theirs = (await client.get_metrics()).cluster_uid
    if theirs:
        compare_clusters(address, theirs, await _read_cluster_uid())


def compare_clusters(address: str, theirs: str, ours: str) -> None:
    """Raise Permanent if the optimizer watches another cluster."""
    if ours and ours != theirs:
        raise errors.Permanent(
            f"the optimizer at {address} watches another cluster than your kubeconfig names (UID of namespace"
            f" kube-system there: {theirs}, here: {ours}). Set KUBECONFIG to its cluster, or --optimizer to the address"
            " of this cluster's optimizer. To forward its port to another one:"
            " kubectl -n kgwe-system port-forward svc/kgwe-optimizer 50061:50051"
        )


async def _read_cluster_uid() -> str:
    """Return the identity of the cluster that the kubeconfig names; empty if it cannot be read."""
    import msgspec  # noqa: PLC0415 - starts at once without it

    from kgwe.cluster.names import CLUSTER_NAMESPACE  # noqa: PLC0415
    from kgwe.kube.client.client import KubeClient  # noqa: PLC0415

    try:
        async with asyncio.timeout(_PATIENCE_S), KubeClient.connect(field_manager="kgwe-cli") as kube:
            body = await kube.request("GET", f"/api/v1/namespaces/{CLUSTER_NAMESPACE}")
            return str(msgspec.json.decode(body)["metadata"]["uid"])
    except (errors.KgweError, TimeoutError):
        return ""
