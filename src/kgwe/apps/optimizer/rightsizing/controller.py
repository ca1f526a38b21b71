"""Decides on smaller requests in namespaces that opt in, and writes them to the RightsizingDecision of the namespace.

A round looks at every key with pods. An error with one namespace concerns that namespace alone. Harm that a smaller
request did is noted when the pod shows it, not in the next round: the pod may be gone by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.optimizer.rightsizing import objects, subjects
from kgwe.apps.optimizer.rightsizing.keys import find_role
from kgwe.forecast.rightsizing import decide, faults, ledger
from kgwe.forecast.rightsizing.decide import Offer, Quota, Rules
from kgwe.forecast.rightsizing.ledger import Decided
from kgwe.forecast.rightsizing.policy import Mode, read_policy
from kgwe.forecast.waste.alternatives import Action, Alternative
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe import rightsizingdecision
from kgwe.model.units import quantity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.waste.needs import UsageHistory
    from kgwe.forecast.rightsizing.faults import Fault
    from kgwe.forecast.rightsizing.ledger import Ledger
    from kgwe.forecast.rightsizing.policy import RightsizingPolicy
    from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecision
    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)


class _QuotaStatus(msgspec.Struct, frozen=True):
    hard: dict[str, str] = {}
    used: dict[str, str] = {}


class _ResourceQuota(msgspec.Struct, frozen=True):
    metadata: dict[str, object] = {}
    status: _QuotaStatus = _QuotaStatus()


class _LimitRange(msgspec.Struct, frozen=True):
    metadata: dict[str, object] = {}
    spec: dict[str, object] = {}


_QUOTAS: Final = resources.Resource("", "v1", "resourcequotas", "ResourceQuota", namespaced=True, type=_ResourceQuota)
_LIMITS: Final = resources.Resource("", "v1", "limitranges", "LimitRange", namespaced=True, type=_LimitRange)


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where the controller looks: all answers come from memory."""

    list_pods: Callable[[], Iterable[PodFacts]]
    list_namespaces: Callable[[], Iterable[ObjectMeta]]
    history_of: Callable[[str], UsageHistory]
    run_p95_of: Callable[[str], float | None]
    is_preallocator: Callable[[PodFacts], bool]
    #: what nodes offer now
    find_offer: Callable[[], Offer]
    #: whether the engine finds room for a pod with another request; None: the pod is not known
    check: Callable[[str, Alternative], bool | None]


@dataclass(frozen=True, slots=True)
class _Case:
    """One namespace in one round."""

    namespace: str
    policy: RightsizingPolicy
    problems: tuple[str, ...]
    before: RightsizingDecision | None
    offer: Offer


class RightsizingController:
    """Decides and writes. One per leader."""

    def __init__(
        self, client: KubeClient, evidence: Evidence, *, rules: Rules, count: Callable[[str], None] = lambda _what: None
    ) -> None:
        """`count`: called with the kind of each event, for the metrics."""
        self._client = client
        self._evidence = evidence
        self._rules = rules
        self._count = count
        self._hurt: dict[tuple[str, str], list[faults.Outcome]] = {}
        self.kept_fingerprints: frozenset[str] = frozenset()

    def observe(self, facts: PodFacts) -> None:
        """Note harm that a pod shows: it may be deleted before the next round."""
        if not facts.out_of_memory and facts.restarts < faults.MOST_RESTARTS:
            return
        role = find_role(facts)
        if role is not None and role.is_smaller:
            noted = self._hurt.setdefault((facts.key.namespace, role.key), [])
            noted[:] = [subjects.describe_outcome(facts, 0.0)]

    async def decide_all(self, now_s: float) -> None:
        """Look at all namespaces once."""
        stored = {
            each.metadata.namespace: each
            for each in await self._client.list(resources.RIGHTSIZING_DECISION)
            if each.metadata.name == rightsizingdecision.NAME
        }
        self.kept_fingerprints = frozenset(
            each.fingerprint for found in stored.values() for each in found.spec.decisions.values() if each.fingerprint
        )
        groups = subjects.group_by_namespace(self._evidence.list_pods())
        offer = self._evidence.find_offer()
        for meta in self._evidence.list_namespaces():
            policy, problems = read_policy(meta.labels, meta.annotations)
            before = stored.get(meta.name)
            if policy.mode is Mode.OFF and before is None and not problems:
                continue
            case = _Case(meta.name, policy, problems, before, offer)
            try:
                await self._decide_namespace(case, groups.get(meta.name, {}), now_s)
            except errors.KgweError as exc:
                log.warning("rightsizing_failed", namespace=meta.name, error=str(exc))

    async def _decide_namespace(self, case: _Case, groups: Mapping[str, subjects.KeyPods], now_s: float) -> None:
        old = objects.read_ledger(case.before.spec if case.before is not None else None)
        found: dict[str, Decided | str] = {}
        hurt: dict[str, Fault] = {}
        if case.policy.mode is not Mode.OFF:
            quotas = await self._read_quotas(case.namespace)
            outcomes: dict[str, tuple[faults.Outcome, ...]] = {}
            for key, pods in groups.items():
                kept = old.decided.get(key)
                seen = subjects.describe_key(
                    key,
                    pods,
                    history_of=self._evidence.history_of,
                    run_p95_of=self._evidence.run_p95_of,
                    is_preallocator=self._evidence.is_preallocator,
                    kept_fingerprint=kept.fingerprint if kept is not None else "",
                    now_s=now_s,
                )
                found[key] = self._decide_key(seen, case, quotas, kept)
                outcomes[key] = seen.outcomes
            found |= _recheck_others(old, found, case.offer)
            hurt = self._find_faults(case.namespace, old, outcomes)
        new = ledger.advance(old, case.policy, found, hurt, now_s)
        await self._write(case, new)
        self._hurt = {each: seen for each, seen in self._hurt.items() if each[0] != case.namespace}
        for event in new.events:
            if event not in old.events:
                self._count(event.what)
                log.info("rightsizing", namespace=case.namespace, key=event.key, what=event.what, message=event.message)

    def _decide_key(
        self, seen: subjects.Found, case: _Case, quotas: list[Quota], kept: Decided | None
    ) -> Decided | str:
        subject, offer = seen.subject, case.offer
        choices = decide.list_choices(offer, subject.gpu_memory_mib)
        chosen = decide.choose(subject, case.policy, choices, quotas, self._rules)
        if isinstance(chosen, str):
            return chosen
        for each in chosen:
            if (
                kept is not None
                and kept.choice.describe() == each.describe()
                and offer.totals.get(each.resource, 0) > 0
            ):
                return kept  # its own pods may hold all of them
            if seen.uid and self._evidence.check(seen.uid, _build_alternative(each)):
                return Decided(each, subject.fingerprint, 0.0, subject.run_p95_s, subject.rate)
        if not seen.uid:
            return "none of its pods runs with a whole GPU, so room was not checked"
        return f"no node has {chosen[0].describe()} or a larger slice free for it"

    def _find_faults(
        self, namespace: str, old: Ledger, outcomes: Mapping[str, tuple[faults.Outcome, ...]]
    ) -> dict[str, Fault]:
        """Return the keys whose smaller request did harm: by their pods, or by pods that are gone."""
        found = {}
        for key, kept in old.decided.items():
            seen = [*self._hurt.get((namespace, key), ()), *outcomes.get(key, ())]
            fault = faults.find_fault(seen, run_p95_s=kept.run_p95_s, rate=kept.rate)
            if fault is not None:
                found[key] = fault
        return found

    async def _read_quotas(self, namespace: str) -> list[Quota]:
        """Return the quotas of GPUs. A LimitRange that names GPUs counts as a quota that has no room."""
        found = []
        for each in await self._client.list(_QUOTAS, namespace):
            hard, used = (_read_amounts(part) for part in (each.status.hard, each.status.used))
            if hard:
                found.append(Quota(str(each.metadata.get("name", "")), hard, used))
        for limits in await self._client.list(_LIMITS, namespace):
            if "nvidia.com/" in str(limits.spec):
                name = str(limits.metadata.get("name", ""))
                found.append(Quota(f"{name} (LimitRange)", {"requests.nvidia.com/gpu": 0}, {}))
        return found

    async def _write(self, case: _Case, new: Ledger) -> None:
        """Store the ledger, if it changed."""
        offered = (name for name, total in case.offer.totals.items() if total > 0)
        spec = objects.build_spec(new, case.policy, offered)
        if case.problems:
            spec = msgspec.structs.replace(spec, problem="; ".join(case.problems)[:512])
        kind, name = resources.RIGHTSIZING_DECISION, rightsizingdecision.NAME
        if case.before is None:
            await self._client.create(kind, objects.build_body({"name": name}, spec), case.namespace)
        elif case.before.spec != spec:
            kept = {"name": name, "resourceVersion": case.before.metadata.resourceVersion}
            await self._client.replace(kind, name, objects.build_body(kept, spec), case.namespace)


def _recheck_others(old: Ledger, found: Mapping[str, Decided | str], offer: Offer) -> dict[str, str]:
    """Remove decisions of keys without pods whose slices no node offers any more."""
    return {
        key: f"no node offers {each.choice.resource} any more"
        for key, each in old.decided.items()
        if key not in found and offer.totals.get(each.choice.resource, 0) <= 0
    }


def _build_alternative(choice: decide.Choice) -> Alternative:
    """Return the choice as the engine takes it. It may be of any model: the pod says if it wants a certain one."""
    action = Action.MIG_PROFILE if choice.profile else Action.SHARE
    return Alternative(action, 1, "", choice.profile, max(choice.shares, 1))


def _read_amounts(listed: Mapping[str, str]) -> dict[str, int]:
    found = {}
    for name, text in listed.items():
        if "nvidia.com/" in name:
            try:
                found[name if name.startswith("requests.") else f"requests.{name}"] = quantity.parse_int(text)
            except errors.KgweError:
                found[name] = 0
    return found
