"""Why a gang cannot start: the constraint in the way, how short the best domain is, and what would start the gang.

The reason is the first of network, segments, limits, wiring, model, taints and level whose change alone starts the
gang; otherwise capacity is short, and the statuses of the nodes show of what.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.units.phrasing import end_sentence, format_count, pluralize
from kgwe.placement.disruption.preemption import Evictable
from kgwe.placement.gang.request import CLUSTER
from kgwe.placement.planning.changes import Change, ChangeKind, describe_domain, find_changes
from kgwe.placement.planning.fields import WORKLOAD_FIELDS, Fields
from kgwe.placement.planning.reasons import describe_gang, describe_node_counts
from kgwe.placement.planning.unmet import find_unmet
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.refusal import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.plan import LevelReport, Shortfall
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.gang.search import GangSearch
    from kgwe.placement.planning.unmet import Unmet

__all__ = ["Change", "ChangeKind", "Diagnosis", "Evictable", "GangReason", "diagnose", "refuse_gang"]


class GangReason(enum.StrEnum):
    """The constraint in the way."""

    TOO_LITTLE_ROOM = "TooLittleRoom"
    """Capacity is short, and no other single constraint is the cause."""
    NO_DOMAIN_LARGE_ENOUGH = "NoDomainLargeEnough"
    """The cluster has room, but no single domain of the required level."""
    SEGMENTS_DO_NOT_FIT = "SegmentsDoNotFit"
    NETWORK_TOO_SLOW = "NetworkTooSlow"
    """Or its speed is not known."""
    TOO_MANY_PER_DOMAIN = "TooManyPerDomain"
    """The gang's own limits of nodes or GPUs per leaf, or of pods per node."""
    WIRING_NOT_MET = "WiringNotMet"
    WRONG_GPU_MODEL = "WrongGPUModel"
    MODELS_DIFFER = "ModelsDiffer"
    """There is room, but not on GPUs of one model, which the gang requires."""
    NODES_TAINTED = "NodesTainted"
    NOT_ON_SPOT = "NotOnSpot"
    """There is room, but not on spot nodes, which the gang requires."""
    ROLES_DO_NOT_FIT_TOGETHER = "RolesDoNotFitTogether"
    """Each role would fit alone; no way was found to place them together, which is not a proof that there is none."""


@dataclass(frozen=True, slots=True)
class GpuSupply:
    """Whole GPUs of the nodes that match a request."""

    model: str
    """The GPU model that was asked for; empty: any."""
    total: int
    free: int

    def describe(self, wanted: int) -> str:
        """`400 GPUs are requested; nodes with GPU model H100 have 256, 40 of them free`."""
        nodes = f"nodes with GPU model {self.model}" if self.model else "nodes that match"
        return f"{wanted} GPUs are requested; {nodes} have {self.total}, {self.free} of them free"


@dataclass(frozen=True)
class Diagnosis:
    """Why a gang cannot start now, and what would start it: the detail of a gang's refusal."""

    gang: GangRequest
    reason: GangReason
    role: str
    needed: int
    room: int
    level: str
    domain: str
    statuses: Mapping[FitStatus, int]
    """Status of a pod of the role -> nodes of the whole fleet with it."""
    level_reports: tuple[LevelReport, ...]
    changes: tuple[Change, ...]
    most_when_empty: int | None
    """Pods of the role that one domain could take if nothing ran there; None: not known."""
    proven: bool
    """Whether it is certain that nothing fits; False only for roles that compete for the same nodes."""
    nodes: int = 0
    """Nodes of the fleet."""
    node_counts: str = ""
    """Nodes that do not take a pod of the role, by reason, for people."""
    unmet: Unmet | None = None
    """The requirement of a single pod that no node meets even when empty."""
    supply: GpuSupply | None = None
    """Whole GPUs that match the role; None: it asks for shares or slices."""
    short_of_gpus: bool = True
    """Whether GPUs are short; False: CPU, memory or pod slots are."""
    fields: Fields = WORKLOAD_FIELDS
    """Names of the fields to change."""

    @property
    def short(self) -> int:
        """Pods that the best domain is short of."""
        return max(0, self.needed - self.room)

    @property
    def is_hopeless(self) -> bool:
        """Whether waiting cannot help: not even with nothing running would it start as it is asked for."""
        return self.most_when_empty is not None and self.most_when_empty < self.needed

    @property
    def binding_constraint(self) -> str:
        """The constraint in the way, for people."""
        if self.unmet is not None:
            return self.unmet.problem
        if self.is_hopeless and self.reason in _IN_COUNTS:
            return self._describe_limit().removesuffix(".")
        return self._describe_room() if self.reason is GangReason.TOO_LITTLE_ROOM else _REASONS[self.reason]

    @property
    def fix(self) -> str:
        """What to change where waiting cannot help; empty: waiting may help, or a change is suggested."""
        if self.unmet is not None:
            return self.unmet.fix
        if not self.is_hopeless or self.changes:
            return ""
        fewer = f"run at most {self._describe_pods(self.most_when_empty)}, " if self.most_when_empty else ""
        required = self.gang.required
        wider = f"require a higher level than {required}" if required not in ("", CLUSTER) else "ask for less per pod"
        text = f"{fewer}{wider}, or add nodes"
        return text[:1].upper() + text[1:]

    def _describe_pods(self, pods: int) -> str:
        """`4 pods`, with the `count` of a GPUWorkload: `4 pods (count: 32)`."""
        per_pod = self.gang.roles[0].request.gpus.count if len(self.gang.roles) == 1 else 0
        count = f" (count: {pods * per_pod})" if per_pod and not self.fields.is_pod else ""
        return f"{format_count(pods, 'pod')}{count}"

    def _describe_room(self) -> str:
        role = f" {self.role}" if len(self.gang.roles) > 1 else ""
        if not self.room:
            return f"None of the {self.needed}{role} pods fits now" if self.needed > 1 else "The pod does not fit now"
        return f"Only {self.room} of {self.needed}{role} pods fit now"

    def summary(self) -> str:
        """The diagnosis in the form of every refusal."""
        text = self._count_domains()
        if self.unmet is not None:
            return f"{text} {self.unmet.text}"
        if self.reason not in _IN_COUNTS:
            text += f" {_REASONS[self.reason]}."
        if self.is_hopeless:
            text += f" {self._describe_limit()}"
        if self.changes:
            return f"{text} Try: {self.changes[0].text}."
        return f"{text} {self.fix}." if self.fix else text

    def _count_domains(self) -> str:
        """`0/4 leaves available for 3 pods of 8 GPUs (nodes: 3 insufficient GPUs). Best: leaf a (2 of 3 pods fit).`"""
        wanted = describe_gang(self.gang)
        counts = f": {self.node_counts}" if self.node_counts else ""
        role = f" {self.role}" if len(self.gang.roles) > 1 else ""
        fit = f"{self.room} of {self.needed}{role} pods fit"
        report = next((each for each in self.level_reports if each.level == self.gang.required), None)
        if report is None or self.gang.required == CLUSTER:
            available = self.statuses.get(FitStatus.FITS, 0)
            text = f"{available}/{self.nodes} nodes available for {wanted}{counts}."
            return text if self.unmet is not None else f"{text} {self._describe_room()}."
        text = f"{report.holding}/{report.domains} {pluralize(report.level)} available for {wanted}"
        nodes = f"{text} (nodes{counts})." if counts else f"{text}."
        return nodes if self.unmet is not None else f"{nodes} Best: {describe_domain(self.level, self.domain)} ({fit})."

    def _describe_limit(self) -> str:
        role = next(role for role in self.gang.roles if role.name == self.role)
        wanted = self.needed * role.request.gpus.count
        if self.supply is not None and self.supply.total < wanted:
            return f"{self.supply.describe(wanted)}."
        where = _name_level(self.gang.required or CLUSTER)
        return f"Even with nothing running, {where} holds {self.most_when_empty} of {self.needed} pods."

    def describe(self) -> str:
        """The diagnosis in lines, for people."""
        where = describe_domain(self.level, self.domain)
        name = f"Gang {self.gang.name}" if self.gang.name else "The gang"
        role = f" {self.role}" if len(self.gang.roles) > 1 else ""
        lines = [
            f"{name} cannot start. {end_sentence(self.binding_constraint)}",
            f"Best: {where}, {self.room} of {self.needed}{role} pods fit, {self.short} short.",
        ]
        fits = self.statuses.get(FitStatus.FITS, 0)
        counts = [f"{fits} available"] if fits else []
        lines.append(f"Nodes: {', '.join([*counts, *([self.node_counts] if self.node_counts else [])])}.")
        lines += [f"Level {report.describe()}." for report in self.level_reports if not report.holding]
        if self.unmet is not None:
            lines += [f"Will not start by waiting. {self.unmet.fix}."] if self.unmet.fix else []
        elif self.is_hopeless:
            limit = "" if self.reason in _IN_COUNTS else self._describe_limit()
            lines.append(" ".join(["Will not start by waiting.", *filter(None, [limit, end_sentence(self.fix)])]))
        if self.changes:
            lines.append("One of these changes is enough:")
            lines += [f"  - {change.text}" for change in self.changes]
        elif self.unmet is None:
            lines.append("No single change that was tried would start it.")
        return "\n".join(lines)


def _name_level(level: str) -> str:
    return "the cluster" if level == CLUSTER else f"one {level}"


_REASONS: Final[Mapping[GangReason, str]] = {
    GangReason.TOO_LITTLE_ROOM: "Not enough free capacity for all pods",
    GangReason.NO_DOMAIN_LARGE_ENOUGH: "The cluster has room, but no single domain of the required level has enough",
    GangReason.SEGMENTS_DO_NOT_FIT: "All pods would fit, but their segments would have to be split",
    GangReason.NETWORK_TOO_SLOW: "The network is slower than required where the pods fit, or its bandwidth is unknown",
    GangReason.TOO_MANY_PER_DOMAIN: "All pods would fit without the gang's own limits per leaf or node",
    GangReason.WIRING_NOT_MET: "Enough GPUs are free, but they are not connected as the pods require",
    GangReason.WRONG_GPU_MODEL: "All pods would fit, but only on other GPU models",
    GangReason.MODELS_DIFFER: "All pods would fit, but not on nodes of one GPU model and CPU architecture",
    GangReason.NOT_ON_SPOT: "All pods would fit, but not on spot nodes only",
    GangReason.NODES_TAINTED: "All pods would fit, but only on spot nodes whose taints they do not tolerate",
    GangReason.ROLES_DO_NOT_FIT_TOGETHER: "Each role would fit alone, but no placement of all roles together was found",
}
# Reasons that the counts of a refusal show already.
_IN_COUNTS: Final = (GangReason.TOO_LITTLE_ROOM, GangReason.NO_DOMAIN_LARGE_ENOUGH)

_BINDING: Final[Mapping[ChangeKind, GangReason]] = {
    ChangeKind.RELAX_NETWORK: GangReason.NETWORK_TOO_SLOW,
    ChangeKind.RELAX_SEGMENT: GangReason.SEGMENTS_DO_NOT_FIT,
    ChangeKind.RELAX_SPREAD: GangReason.TOO_MANY_PER_DOMAIN,
    ChangeKind.RELAX_WIRING: GangReason.WIRING_NOT_MET,
    ChangeKind.OTHER_MODEL: GangReason.WRONG_GPU_MODEL,
    ChangeKind.MIX_MODELS: GangReason.MODELS_DIFFER,
    ChangeKind.TOLERATE_SPOT: GangReason.NODES_TAINTED,
    ChangeKind.ALLOW_ON_DEMAND: GangReason.NOT_ON_SPOT,
    ChangeKind.LOWER_LEVEL: GangReason.NO_DOMAIN_LARGE_ENOUGH,
}


def diagnose(
    search: GangSearch,
    gang: GangRequest,
    shortfall: Shortfall,
    evictable: Evictable | None = None,
    fields: Fields = WORKLOAD_FIELDS,
) -> Diagnosis:
    """Find out why a gang has no place; tries every change on the snapshot and leaves it as it was."""
    changes = list(find_changes(search, gang, shortfall, evictable, fields))
    request = next(role.request for role in gang.roles if role.name == shortfall.role)
    counts = Counter(search.fitter.check_nodes(request).tolist())
    reason = next((_BINDING[change.kind] for change in changes if change.kind in _BINDING), None)
    if reason is None:
        alone = shortfall.room >= shortfall.needed
        reason = GangReason.ROLES_DO_NOT_FIT_TOGETHER if alone else GangReason.TOO_LITTLE_ROOM
    return Diagnosis(
        gang=gang,
        reason=reason,
        role=shortfall.role,
        needed=shortfall.needed,
        room=shortfall.room,
        level=shortfall.level,
        domain=shortfall.domain,
        statuses={status: counts[status] for status in FitStatus if counts[status]},
        level_reports=shortfall.level_reports,
        changes=tuple(changes),
        most_when_empty=shortfall.most_when_empty,
        proven=shortfall.proven,
        nodes=len(search.fitter.snapshot),
        node_counts=_describe_nodes(search, request, counts),
        unmet=find_unmet(search.fitter, request, fields, pods=shortfall.needed),
        supply=_count_supply(search, request),
        short_of_gpus=_is_short_of_gpus(search, request, shortfall.needed),
        fields=fields,
    )


def _count_supply(search: GangSearch, request: Request) -> GpuSupply | None:
    """Whole GPUs of all nodes that match but for the number of GPUs, CPU and memory."""
    if not request.gpus.count:
        return None
    codes, snapshot = search.fitter.check_empty_nodes(request), search.fitter.snapshot
    matching = np.flatnonzero((codes == FitStatus.FITS) | (codes >= FitStatus.TOO_FEW_GPUS)).tolist()
    whole = [number for number in matching if not snapshot.nodes[number].shares_per_gpu]
    total = sum(snapshot.nodes[number].usable.bit_count() for number in whole)
    free = sum(int(snapshot.free[number]).bit_count() for number in whole)
    return GpuSupply(request.model, total, free)


def _is_short_of_gpus(search: GangSearch, request: Request, needed: int) -> bool:
    """Whether the pods would not fit either if they asked for no CPU and no memory."""
    if not (request.cpu_milli or request.memory_bytes):
        return True
    only_gpus = replace(request, cpu_milli=0, memory_bytes=0)
    return int(search.fitter.count_pods(only_gpus).sum()) < needed


def _describe_nodes(search: GangSearch, request: Request, counts: Counter[int]) -> str:
    refusing = {status.reason: counts[status] for status in FitStatus if status and counts[status]}
    ordered = dict(sorted(refusing.items(), key=lambda each: -each[1]))
    return describe_node_counts(search.fitter.snapshot, request, ordered)


def refuse_gang(found: Diagnosis) -> Refusal:
    """The refusal of a gang, with its diagnosis."""
    if found.unmet is not None:
        code = found.unmet.code
    elif found.is_hopeless:
        code = Reason.TOO_LARGE
    elif found.reason is GangReason.TOO_LITTLE_ROOM:
        code = Reason.INSUFFICIENT_GPU if found.short_of_gpus else Reason.INSUFFICIENT_RESOURCES
    else:
        code = Reason.TOPOLOGY_NOT_MET
    counts = {status.reason: count for status, count in found.statuses.items()}
    return Refusal(code, found.summary(), counts, not found.is_hopeless, found)
