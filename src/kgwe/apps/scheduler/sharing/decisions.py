"""Decides for workloads without a run whether a GPUSharingPolicy gives them a slice or share instead of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe import errors
from kgwe.cluster.workload import effective_request
from kgwe.cluster.workload.description import describe_workload
from kgwe.cluster.workload.effective_request import SmallerRequest
from kgwe.cluster.workload.manifests import pod_template, workload_ask
from kgwe.forecast.podfacts import PodFacts
from kgwe.forecast.preallocators import Answer, detect_preallocation
from kgwe.model.units import amounts
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.sharing import policies
from kgwe.sharing.policies import Facts, Part, Policy, Why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.cluster.state.cluster_state import ClusterState
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.api.core import NamespaceLabels
    from kgwe.kube.api.kgwe.gpusharingpolicy import GPUSharingPolicy
    from kgwe.kube.client.informer import Change

SOURCE: Final = "GPUSharingPolicy"
# How long a workload keeps its whole GPU after a part that was free for it was taken by others.
_BLOCKED_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was decided about a workload, and by which policy."""

    policy: str
    #: policies that also select it, and do otherwise
    others: tuple[str, ...] = ()
    request: SmallerRequest | None = None
    why: str = ""
    message: str = ""


class SharingDecisions:
    """A decision source of the cluster state. It reads policies and namespaces, and writes nothing."""

    def __init__(self, default_image: str, clock: Callable[[], float]) -> None:
        self._default_image = default_image
        self._clock = clock
        self._state: ClusterState | None = None
        self.objects: dict[str, GPUSharingPolicy] = {}
        self.policies: list[Policy] = []
        self._namespaces: dict[str, Mapping[str, str]] = {}
        #: uid -> what was decided
        self.verdicts: dict[str, Verdict] = {}
        self._blocked: dict[str, float] = {}  # uid -> until when it keeps its whole GPU

    def attach(self, state: ClusterState) -> None:
        """Decide on the workloads of this state."""
        self._state = state

    # --- what is read -----------------------------------------------------------------------------------

    def on_policy(self, change: Change[GPUSharingPolicy]) -> None:
        self.objects.pop(change.key, None)
        if change.new is not None and change.new.metadata.deletionTimestamp is None:
            self.objects[change.key] = change.new
        if change.old is None or change.new is None or change.old.spec != change.new.spec:
            self.policies = policies.sort_policies(read_policy(each) for each in self.objects.values())
            self.renew()

    def on_namespace(self, change: Change[NamespaceLabels]) -> None:
        self._namespaces.pop(change.key, None)
        if change.new is not None:
            self._namespaces[change.key] = change.new.metadata.labels
            if change.old is not None and change.old.metadata.labels != change.new.metadata.labels:
                self.renew(change.key)

    def renew(self, namespace: str = "") -> None:
        """Decide again on workloads without a run, in one namespace or in all."""
        if self._state is None:
            return
        names = {namespace} if namespace else {each.meta.namespace for each in self._state.workloads.values()}
        for name in sorted(names):
            self._state.renew_decisions(name)

    def renew_waiting(self) -> None:
        """Decide again on workloads that wait: a part may have become free, or have been taken."""
        if not self.policies or self._state is None:
            return
        waiting = [
            each
            for each in self._state.workloads.values()
            if each.is_wanted and each.meta.uid in self.verdicts and each.meta.uid not in self._state.runs
        ]
        for namespace in sorted({each.meta.namespace for each in waiting}):
            self._state.renew_decisions(namespace)

    def handle_refusal(self, uid: str) -> None:
        """The planner found no room for a part: the workload keeps its whole GPU for a while."""
        verdict = self.verdicts.get(uid)
        workload = self._state.find_workload(uid) if self._state is not None else None
        if verdict is None or verdict.request is None or workload is None or self._state is None:
            return
        if workload.decision is not None and workload.decision.source == SOURCE and uid not in self._state.runs:
            self._blocked[uid] = self._clock() + _BLOCKED_S
            self._state.renew_decisions(workload.meta.namespace)

    def forget(self, uid: str) -> None:
        """The workload object no longer exists."""
        self.verdicts.pop(uid, None)
        self._blocked.pop(uid, None)

    # --- deciding ---------------------------------------------------------------------------------------

    def decide(self, workload: Workload) -> SmallerRequest | None:
        """What the workload, as written, gets instead of its GPU; None: no policy, or it keeps its GPU."""
        uid = workload.meta.uid
        if not self.policies or workload.resource != amounts.GPU:
            self.verdicts.pop(uid, None)
            return None
        labels = workload.meta.labels | _template_labels(workload.template)
        namespace = self._namespaces.get(workload.meta.namespace, {})
        mine = [each for each in self.policies if each.selects(namespace, labels)]
        if not mine:
            self.verdicts.pop(uid, None)
            return None
        others = tuple(each.name for each in mine[1:] if each.strategy != mine[0].strategy)
        known = self.verdicts.get(uid)
        if known is not None and known.request is not None and known.policy == mine[0].name and self._is_placed(uid):
            return known.request  # the part that is taken is its own
        found = self._apply(mine[0], workload)
        if isinstance(found, Part):
            what = f"one slice {found.profile}" if found.profile else f"{found.share:.3g} of a GPU"
            reason = f"policy {mine[0].name}: {what} instead of a whole one"
            request = SmallerRequest(found.profile, found.share, SOURCE, reason)
            self.verdicts[uid] = Verdict(mine[0].name, others, request)
            return request
        self.verdicts[uid] = Verdict(mine[0].name, others, None, str(found[0]), found[1])
        return None

    def _apply(self, policy: Policy, workload: Workload) -> Part | tuple[Why, str]:
        facts = Facts(
            workload.workload_type, workload.per_pod == 1 and workload.pods == 1, self._find_preallocator(workload)
        )
        if (refused := policies.refuse_workload(policy, facts)) is not None:
            return refused
        if self._blocked.get(workload.meta.uid, 0.0) > self._clock():
            return Why.NO_PART, "the part that was free for it has been taken"
        return policies.choose_part(
            policy,
            self._list_offered(),
            lambda part: effective_request.find_objection(workload, SmallerRequest(part.profile, part.share)),
            lambda part: self._has_room(workload, part),
        )

    def _is_placed(self, uid: str) -> bool:
        """Whether the workload has its place already, and its run is about to be created."""
        return self._state is not None and self._state.ledger.has_seats(uid)

    def _find_preallocator(self, workload: Workload) -> str:
        told = describe_workload(workload, self._default_image)
        if told is None:
            return "its template cannot be read"
        facts = PodFacts(told.image, told.command, told.environment, told.labels, framework=told.framework)
        found = detect_preallocation(facts)
        return "; ".join(found.evidence) if found.answer is Answer.YES else ""

    def _list_offered(self) -> list[Part]:
        """Parts that ready nodes offer."""
        if self._state is None:
            return []
        fleet = self._state.fleet
        shares = [Part(share=1 / count, size=1 / count) for count in fleet.fitter.share_counts]
        return shares + [Part(profile=name, size=size_of(name)) for name in sorted(fleet.snapshot.slices)]

    def _has_room(self, workload: Workload, part: Part) -> bool:
        """Whether a node has the part free now, and takes the pod otherwise."""
        if self._state is None:
            return False
        smaller = effective_request.apply_decision(workload, SmallerRequest(part.profile, part.share, SOURCE))
        try:
            template = pod_template.build_pod_template(smaller, self._default_image)
            ask = workload_ask.build_ask(smaller, template, frozenset())
        except (errors.Permanent, KeyError, TypeError, AttributeError, ValueError):
            return False
        return bool((self._state.fleet.fitter.check_nodes(ask.request) == FitStatus.FITS).any())


def read_policy(obj: GPUSharingPolicy) -> Policy:
    """The policy as decisions need it."""
    spec = obj.spec
    by_mps = spec.strategy == "mps"
    return Policy(
        name=obj.metadata.name,
        strategy=spec.strategy,
        priority=spec.priority,
        node_labels=tuple(sorted(spec.nodeSelector.items())),
        namespace_labels=tuple(sorted(spec.namespaceSelector.items())),
        pod_labels=tuple(sorted(spec.podSelector.items())),
        profile=spec.migConfig.profile,
        replicas=spec.mpsConfig.maxClients if by_mps else spec.timeSlicingConfig.replicasPerGPU,
    )


def _template_labels(template: dict[str, Any]) -> dict[str, str]:
    meta = template.get("metadata")
    labels = meta.get("labels") if isinstance(meta, dict) else None
    if not isinstance(labels, dict):
        return {}
    return {str(name): str(value) for name, value in labels.items()}


def size_of(profile: str) -> float:
    """The part of a GPU that a slice is, by its compute slices: 1 of 7 for 1g."""
    digits = profile.partition("g.")[0]
    return int(digits) / 7 if digits.isdecimal() else np.inf
