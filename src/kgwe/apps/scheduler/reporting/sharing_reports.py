"""What each GPUSharingPolicy reports, and the division of nodes that it asks for: written by the leader."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.apps.scheduler.sharing.decisions import SOURCE, size_of
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe.gpusharingpolicy import GPUSharingPolicyStatus, NotApplied
from kgwe.kube.api.meta import Condition
from kgwe.sharing import policies
from kgwe.sharing.policies import Policy, Why

if TYPE_CHECKING:
    from kgwe.apps.scheduler.deps import Deps
    from kgwe.apps.scheduler.sharing.decisions import SharingDecisions
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.kgwe.gpusharingpolicy import GPUSharingPolicy

log = structlog.get_logger(__name__)

CONFLICT: Final = "Conflict"
READY: Final = "Ready"
_MOST_NAMED: Final = 100
_EXAMPLES: Final = 5
_MOST_REASONS: Final = 16
_MOST_MESSAGE: Final = 1024
_GONE: Final = (errors.NotFound, errors.Conflict)
# GPUNodes changed in one round.
_PER_ROUND: Final = 50


class SharingReports:
    """One round every few seconds; an object is written only if it changes."""

    def __init__(self, deps: Deps, decisions: SharingDecisions) -> None:
        self._client = deps.client
        self._state = deps.state
        self._decisions = decisions
        self._cut: dict[str, dict[str, Any]] = {}  # policy -> spec of its MIGStrategy, as it was written

    async def write_due(self) -> None:
        """Decide again on waiting workloads, divide nodes, and write the status of each policy."""
        if not self._decisions.policies and not self._is_any_divided():
            return
        self._decisions.renew_waiting()
        divided, rivals = await self._divide_nodes()
        await self._cut_nodes()
        applied: dict[str, list[Workload]] = defaultdict(list)
        refused: dict[str, dict[str, list[tuple[Workload, str]]]] = defaultdict(lambda: defaultdict(list))
        for uid, verdict in list(self._decisions.verdicts.items()):
            workload = self._state.find_workload(uid)
            if workload is None or workload.finished:
                continue
            for other in verdict.others:
                rivals[verdict.policy].add((other, "workloads"))
            decision = workload.decision
            if decision is not None and decision.source == SOURCE:
                applied[_policy_of(decision.reason) or verdict.policy].append(workload)
            elif uid in self._state.runs:
                words = "it runs already; a policy never changes pods that run"
                why, words = (verdict.why, verdict.message) if verdict.why else (str(Why.ALREADY_RUNS), words)
                refused[verdict.policy][why].append((workload, words))
            else:
                refused[verdict.policy][verdict.why or str(Why.NO_PART)].append((workload, verdict.message))
        for name, obj in list(self._decisions.objects.items()):
            status = self._build_status(obj, applied[name], refused[name], divided.get(name, 0), rivals)
            await self._write(obj, status)

    # --- nodes ------------------------------------------------------------------------------------------

    def _is_any_divided(self) -> bool:
        """Whether a node is still divided as a policy said that is gone."""
        found = (self._state.reader.objects(name)[1] for name in self._state.reader.node_names())
        return any(node is not None and node.spec.sharing is not None and node.spec.sharing.policy for node in found)

    async def _divide_nodes(self) -> tuple[dict[str, int], dict[str, set[tuple[str, str]]]]:
        """Write the wanted division to GPUNodes; returns how many nodes each policy has, and who lost to whom."""
        counts: dict[str, int] = defaultdict(int)
        rivals: dict[str, set[tuple[str, str]]] = defaultdict(set)
        writes = 0
        for name in self._state.reader.node_names():
            known, node = self._state.reader.objects(name)
            if node is None:
                continue
            labels = known.metadata.labels
            mine = [each for each in self._decisions.policies if each.selects_node(labels)]
            sharing: dict[str, Any] | None = None
            if mine:
                counts[mine[0].name] += 1
                for other in mine[1:]:
                    if (other.strategy, other.replicas) != (mine[0].strategy, mine[0].replicas):
                        rivals[mine[0].name].add((other.name, "nodes"))
                sharing = _describe_division(mine[0], is_mig_capable=any(each.mig.capable for each in node.status.gpus))
            stored = node.spec.sharing
            before = msgspec.to_builtins(stored) if stored is not None else None
            if before == sharing or writes >= _PER_ROUND:
                continue
            if sharing is None and (stored is None or not stored.policy):
                continue  # an administrator divided it
            writes += 1
            try:
                body = {"spec": {"sharing": sharing}}
                await self._client.patch(resources.GPU_NODE, node.metadata.name, body)
            except _GONE:
                continue
        return counts, rivals

    async def _cut_nodes(self) -> None:
        """Let the MIG controller cut the selected nodes, for policies that name a profile."""
        for policy in self._decisions.policies:
            obj = self._decisions.objects.get(policy.name)
            if obj is None or policy.strategy not in ("mig", "auto") or not (policy.profile and policy.node_labels):
                continue
            spec = {
                "nodeSelector": dict(policy.node_labels),
                "profileDistribution": {policy.profile: 1.0},
                "priority": policy.priority,
            }
            if self._cut.get(policy.name) == spec:
                continue
            owner = {
                "apiVersion": obj.definition.api_version,
                "kind": obj.definition.kind,
                "name": policy.name,
                "uid": obj.metadata.uid,
                "controller": True,
            }
            meta = {"name": f"sharing-{policy.name}", "ownerReferences": [owner]}
            await self._client.apply(resources.MIG_STRATEGY, {"metadata": meta, "spec": spec})
            self._cut[policy.name] = spec

    # --- status -----------------------------------------------------------------------------------------

    def _build_status(
        self,
        obj: GPUSharingPolicy,
        applied: list[Workload],
        refused: dict[str, list[tuple[Workload, str]]],
        nodes: int,
        rivals: dict[str, set[tuple[str, str]]],
    ) -> GPUSharingPolicyStatus:
        reasons = [
            NotApplied(
                why, found[0][1][:512], len(found), tuple(sorted(each.meta.key for each, _ in found)[:_EXAMPLES])
            )
            for why, found in sorted(refused.items())
        ]
        parts = sum(_part_of(each) for each in applied)
        return GPUSharingPolicyStatus(
            appliedPods=len(applied),
            appliedWorkloads=tuple(sorted(each.meta.key for each in applied)[:_MOST_NAMED]),
            wholeGPUs=len(applied),
            effectiveGPUs=round(parts, 2),
            notApplied=tuple(reasons[:_MOST_REASONS]),
            nodes=nodes,
            observedGeneration=obj.metadata.generation,
            conditions=self._build_conditions(obj, rivals),
        )

    def _build_conditions(
        self, obj: GPUSharingPolicy, rivals: dict[str, set[tuple[str, str]]]
    ) -> tuple[Condition, ...]:
        name = obj.metadata.name
        wins = sorted(f"{other} ({what})" for other, what in rivals.get(name, ()))
        losses = sorted(
            f"{winner} ({what})" for winner, losers in rivals.items() for loser, what in losers if loser == name
        )
        words = [f"policy {each} also selects them and has a lower priority" for each in wins]
        words += [f"policy {each} has a higher priority, and applies instead" for each in losses]
        found = {
            READY: ("True", "Applied", "the policy is in use"),
            CONFLICT: ("True", "Overlap", "; ".join(words)[:_MOST_MESSAGE]) if words else ("False", "None", ""),
        }
        before = {each.type: each for each in obj.status.conditions}
        built = []
        for type_, (status, reason, message) in found.items():
            old = before.get(type_)
            since = old.lastTransitionTime if old is not None and old.status == status else timestamp.seconds()
            built.append(Condition(type_, status, reason, message, since, obj.metadata.generation))
        return tuple(built)

    async def _write(self, obj: GPUSharingPolicy, status: GPUSharingPolicyStatus) -> None:
        if status == obj.status:
            return
        # Empty lists are written, so that a merge patch removes what was there.
        defaults = {"appliedWorkloads": [], "notApplied": [], "appliedPods": 0, "wholeGPUs": 0, "effectiveGPUs": 0.0}
        body = {"status": defaults | {"nodes": 0} | msgspec.to_builtins(status)}
        try:
            await self._client.patch(resources.GPU_SHARING_POLICY, obj.metadata.name, body, subresource="status")
        except _GONE:
            log.debug("policy_status_not_written", policy=obj.metadata.name)


def _describe_division(policy: Policy, *, is_mig_capable: bool) -> dict[str, Any] | None:
    method, replicas = policies.divide_node(policy, is_mig_capable=is_mig_capable)
    if not method:
        return {"policy": policy.name, "replicas": 0}
    if method == "mig":
        return None
    return {"method": method, "policy": policy.name, "replicas": replicas}


def _policy_of(reason: str) -> str:
    """The name of the policy in the reason of a decision."""
    head, colon, _ = reason.partition(":")
    return head.removeprefix("policy ") if colon and head.startswith("policy ") else ""


def _part_of(workload: Workload) -> float:
    decision = workload.decision
    if decision is None:
        return 1.0
    return decision.share or size_of(decision.profile)
