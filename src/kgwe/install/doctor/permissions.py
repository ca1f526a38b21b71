"""Whether each service account has the rights that its process needs, as the API server's authorizer sees it."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from kgwe.install.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kgwe.install.doctor.findings import Cluster
    from kgwe.kube.client.manifests import Document

_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_AT_ONCE: Final = 16
_SHOWN: Final = 5


class Right(NamedTuple):
    """One action of one account."""

    account: str
    account_namespace: str
    verb: str
    group: str
    resource: str
    subresource: str = ""
    name: str = ""
    namespace: str = ""

    @property
    def text(self) -> str:
        target = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        full = f"{target}.{self.group}" if self.group else target
        name = f" {self.name}" if self.name else ""
        place = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {full}{name}{place}"


def list_rights(documents: Iterable[Document]) -> list[Right]:
    """Return every action that roles and their bindings grant to service accounts."""
    documents = list(documents)
    roles = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in documents
        if each["kind"] in {"ClusterRole", "Role"}
    }
    found: list[Right] = []
    for binding in documents:
        if binding["kind"] not in {"ClusterRoleBinding", "RoleBinding"}:
            continue
        namespace = binding["metadata"].get("namespace", "")
        reference = binding["roleRef"]
        home = namespace if reference["kind"] == "Role" else ""
        role = roles.get((reference["kind"], home, reference["name"]))
        for subject in binding.get("subjects", ()) if role is not None else ():
            if subject["kind"] == "ServiceAccount" and role is not None:
                for rule in role["rules"]:
                    found += _expand(rule, subject, namespace)
    return list(dict.fromkeys(found))


def _expand(rule: dict[str, Any], subject: dict[str, Any], namespace: str) -> Iterator[Right]:
    parts = (rule["verbs"], rule["apiGroups"], rule["resources"], rule.get("resourceNames") or [""])
    for verb, group, resource, name in itertools.product(*parts):
        plural, _, subresource = resource.partition("/")
        yield Right(subject["name"], subject["namespace"], verb, group, plural, subresource, name, namespace)


async def find_missing(cluster: Cluster, rights: Iterable[Right]) -> list[Right]:
    """Return the rights that the API server denies."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(right: Right) -> Right | None:
        async with gate:
            return None if await is_allowed(cluster, right) else right

    answers = await asyncio.gather(*(ask(each) for each in rights))
    return [each for each in answers if each is not None]


async def is_allowed(cluster: Cluster, right: Right) -> bool:
    """Ask the API server whether the account may do it."""
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "name": right.name,
        "namespace": right.namespace,
    }
    spec = {
        "user": f"system:serviceaccount:{right.account_namespace}:{right.account}",
        "groups": [
            "system:serviceaccounts",
            f"system:serviceaccounts:{right.account_namespace}",
            "system:authenticated",
        ],
        "resourceAttributes": {key: value for key, value in attributes.items() if value},
    }
    reply = msgspec.json.decode(await cluster.client.request("POST", _REVIEWS, body={"spec": spec}))
    return bool(reply["status"].get("allowed"))


async def check_permissions(cluster: Cluster, documents: Iterable[Document]) -> list[Finding]:
    """Return one finding per service account that is installed."""
    found: list[Finding] = []
    by_account: dict[tuple[str, str], list[Right]] = {}
    for right in list_rights(documents):
        by_account.setdefault((right.account_namespace, right.account), []).append(right)
    for (namespace, account), rights in sorted(by_account.items()):
        if await cluster.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}") is None:
            found.append(Finding("permissions", Level.SKIPPED, f"{account} is not installed"))
            continue
        missing = await find_missing(cluster, rights)
        if not missing:
            found.append(Finding("permissions", Level.OK, f"{account} has its {len(rights)} rights"))
            continue
        shown = ", ".join(each.text for each in missing[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        message = f"{account} may not {shown}{more}"
        found.append(Finding("permissions", Level.ERROR, message, "install the chart of this release: kgwe upgrade"))
    return found
