"""The namespace of KGWE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from kgwe.kube.client.client import KubeClient

LEVEL: Final = "pod-security.kubernetes.io/enforce"


async def label_namespace(client: KubeClient, name: str) -> None:
    """Create the namespace, if needed, and make it enforce the restricted level unless it says another one."""
    body = {"metadata": {"name": name, "labels": {LEVEL: "restricted"}}}
    try:
        await client.create(resources.NAMESPACE, body)
    except errors.AlreadyExists:
        found = await client.get(resources.NAMESPACE, name)
        if LEVEL not in (found["metadata"].get("labels") or {}):
            await client.patch(resources.NAMESPACE, name, {"metadata": {"labels": {LEVEL: "restricted"}}})
