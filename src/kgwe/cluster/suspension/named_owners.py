"""Owners by name, as users give them: NAME or KIND/NAME, and the kinds that a cluster has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.cluster.suspension import marks, owner_kinds
from kgwe.cluster.suspension.owner_search import NoOwner, Owner, climb_owners, find_owner
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden

if TYPE_CHECKING:
    from kgwe.cluster.suspension.owner_kinds import OwnerKind
    from kgwe.kube.client.client import KubeClient

# Short names of kubectl; the kind and the full name work as well.
_SHORT: Final = {
    "gw": "gpuworkloads.kgwe.nvidia.io",
    "gpuw": "gpuworkloads.gpu.warp.dev",
    "deploy": "deployments.apps",
    "sts": "statefulsets.apps",
    "rs": "replicasets.apps",
    "lws": "leaderworkersets.leaderworkerset.x-k8s.io",
}


def parse_owner_name(text: str) -> tuple[str, tuple[OwnerKind, ...]]:
    """(name, kinds that are meant) of NAME or KIND/NAME; Permanent if the kind is not known, or no name follows."""
    prefix, slash, name = text.rpartition("/")
    found = owner_kinds.KINDS
    if slash:
        word = _SHORT.get(prefix.lower(), prefix.lower())
        found = tuple(each for each in owner_kinds.KINDS if word in _words(each))
        if not found:
            known = ", ".join(sorted({each.resource.kind.lower() for each in owner_kinds.KINDS}))
            raise errors.Permanent(f"{text!r}: unknown kind {prefix!r}; use one of {known}")
    if not owner_kinds.is_name(name):
        raise errors.Permanent(f"{text!r}: expected NAME or KIND/NAME")
    return name, found


def _words(kind: OwnerKind) -> tuple[str, ...]:
    resource = kind.resource
    singular = resource.kind.lower()
    return singular, resource.plural, f"{singular}.{resource.group}", resource.full_name


async def find_named(client: KubeClient, text: str, namespace: str, *, suspended: bool = False) -> Owner:
    """The owner of that name, or the owner of the pod of that name; NotFound or Permanent if it is not clear which.

    `suspended`: only objects with a record of a suspension by KGWE are meant.
    """
    name, kinds = parse_owner_name(text)
    found, forbidden = [], []
    for kind in kinds:
        try:
            found.append(Owner(kind, await client.get(kind.resource, name, namespace)))
        except errors.NotFound:
            continue  # or the cluster does not have the kind
        except Forbidden as exc:
            forbidden.append(exc)
    if suspended and len(found) > 1:
        found = [each for each in found if marks.read_record(each.meta.annotations)] or found
    tops = [each for each in found if not _is_below(each, found)]
    if len(tops) == 1:
        return tops[0] if marks.read_record(tops[0].meta.annotations) else await climb_owners(client, tops[0])
    if tops:
        names = " or ".join(f"{each.kind.resource.kind.lower()}.{each.kind.resource.group}/{name}" for each in tops)
        raise errors.Permanent(f"several objects are named {name!r} in namespace {namespace}: give {names}")
    if forbidden and len(forbidden) == len(kinds):
        raise forbidden[0]
    if "/" not in text:
        return await _find_by_pod(client, name, namespace)
    raise errors.NotFound(f"no {text} in namespace {namespace}")


def _is_below(owner: Owner, others: list[Owner]) -> bool:
    """Whether another of the objects controls it, such as a Notebook its StatefulSet of the same name."""
    controller = owner.meta.controller
    return controller is not None and any(each.meta.uid == controller.uid for each in others)


async def _find_by_pod(client: KubeClient, name: str, namespace: str) -> Owner:
    try:
        pod = await client.get(resources.POD, name, namespace)
    except errors.NotFound:
        kinds = ", ".join(dict.fromkeys(each.resource.kind for each in owner_kinds.KINDS))
        raise errors.NotFound(f"no pod and none of {kinds} is named {name!r} in namespace {namespace}") from None
    owner = await find_owner(client, pod)
    if isinstance(owner, NoOwner):
        raise errors.Permanent(owner.message)
    return owner


async def list_owners(client: KubeClient, namespace: str | None) -> tuple[list[Owner], list[str]]:
    """(all owners, kinds that the user may not list); namespace None: of all namespaces.

    Kinds that the cluster does not have are left out. Forbidden if the user may list none.
    """
    owners: list[Owner] = []
    hidden: list[str] = []
    error: Forbidden | None = None
    readable = 0
    for kind in owner_kinds.KINDS:
        try:
            owners += [Owner(kind, obj) for obj in await client.list(kind.resource, namespace)]
            readable += 1
        except errors.NotFound:
            continue
        except Forbidden as exc:
            error = exc
            hidden.append(kind.resource.full_name)
    if error is not None and not readable:
        raise error
    return owners, hidden
