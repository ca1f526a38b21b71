"""Why no node can run a pod even when empty: the requirement that none meets, the largest value there is, and a fix.

Each node fails at the first static rule it does not meet (`FitStatus`). The nodes that pass the most rules show which
requirement is in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.gpu import catalog
from kgwe.model.units.phrasing import (
    end_sentence,
    find_similar,
    format_bytes,
    format_cores,
    format_mib,
    join_words,
    list_names,
)
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import SpotPolicy
from kgwe.placement.planning.exclusions import list_untolerated, name_taints
from kgwe.placement.planning.fields import WORKLOAD_FIELDS
from kgwe.placement.planning.unmet_case import LISTED, Answer, Case
from kgwe.placement.planning.unmet_devices import explain_devices, explain_wiring
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.refusal import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.placement.fleet.node import Node, Request
    from kgwe.placement.planning.fields import Fields
    from kgwe.placement.pod.fit import Fitter

_GB_PER_MIB: Final = 2**20 / 1e9
_CODES: Final = {
    FitStatus.TOO_FEW_GPUS: Reason.TOO_LARGE,
    FitStatus.WIRING: Reason.TOPOLOGY_NOT_MET,
    FitStatus.CPU: Reason.TOO_LARGE,
    FitStatus.MEMORY: Reason.TOO_LARGE,
}
_SUM: Final = "all containers together"


@dataclass(frozen=True, slots=True)
class Unmet:
    """A requirement that no node meets."""

    status: FitStatus
    problem: str
    """A sentence without its full stop, as in `Each pod asks for 16 GPUs; the largest node has 8`, or a question."""
    fix: str
    """What to change, as a sentence without its full stop; empty: nothing is known to help."""
    code: Reason
    """The reason of the condition."""

    @property
    def text(self) -> str:
        return f"{end_sentence(self.problem)} {end_sentence(self.fix)}".rstrip()


def find_unmet(fitter: Fitter, request: Request, fields: Fields = WORKLOAD_FIELDS, *, pods: int = 1) -> Unmet | None:
    """The requirement that keeps a pod off every node even if nothing ran; None if some node could run it."""
    codes = fitter.check_empty_nodes(request)
    if not len(codes) or (codes == FitStatus.FITS).any():
        return None
    status = FitStatus(int(codes.max()))
    case = Case(fitter, request, np.flatnonzero(codes == status).tolist(), fields, pods)
    return Unmet(status, *_EXPLAIN[status](case), code=_find_code(status, request))


def _find_code(status: FitStatus, request: Request) -> Reason:
    if status is FitStatus.TOO_FEW_GPUS and not request.gpus.count:
        return Reason.NOT_OFFERED
    return _CODES.get(status, Reason.NO_MATCHING_NODE)


# --- one requirement each ---------------------------------------------------------------------------------


def _no_node_ready(case: Case) -> Answer:
    return _describe_unready("GPU node", case.nodes)


def _describe_unready(noun: str, nodes: Sequence[Node]) -> Answer:
    """All nodes that matter are cordoned or not ready: which, and the command for each."""
    which = f"The only {noun} is" if len(nodes) == 1 else f"All {len(nodes)} {noun}s are"
    cordoned = [node.name for node in nodes if node.cordoned]
    broken = [node.name for node in nodes if not node.cordoned]
    causes = [
        f"{cause} ({list_names(names, LISTED)})"
        for cause, names in (("cordoned", cordoned), ("not ready", broken))
        if names
    ]
    fixes = [f"run `kubectl uncordon {cordoned[0]}`"] if cordoned else []
    fixes += [f"find out why with `kubectl describe node {broken[0]}`"] if broken else []
    fix = join_words(fixes, "or")
    return Answer(f"{which} {join_words(causes, 'or')}", fix[:1].upper() + fix[1:])


def _not_allowed(case: Case) -> Answer:
    request, snapshot, spot = case.request, case.fitter.snapshot, case.fields.spot_policy
    bound = request.constraints
    if request.spot is SpotPolicy.REQUIRE and not any(node.spot for node in case.nodes):
        return Answer(f"Only spot nodes are allowed ({spot}: Require), but no node is one", f"Set {spot} to Allow")
    for key, value in bound.selector:
        values = sorted({node.labels[key] for node in snapshot.nodes if key in node.labels})
        if value not in values:
            there = f"values here: {list_names(values, LISTED)}" if values else f"no GPU node has a label {key}"
            return Answer(f"No GPU node has label {key}={value} ({there})", "Change nodeSelector, or label a node")
    if bound.selector and not snapshot.labels.match_selectors(Constraints(selector=bound.selector)).any():
        listed = ", ".join(f"{key}={value}" for key, value in bound.selector)
        return Answer(f"No GPU node has all labels of nodeSelector ({listed})", "Change nodeSelector")
    if not snapshot.labels.match_selectors(replace(bound, avoid=frozenset())).any():
        return Answer("No GPU node matches the required node affinity", "Change nodeAffinity")
    return _none_left(case)


def _none_left(case: Case) -> Answer:
    """Some nodes match selector, affinity and spot policy: why none of them takes the pod."""
    request, snapshot = case.request, case.fitter.snapshot
    bound = request.constraints
    matching = snapshot.labels.match_selectors(replace(bound, avoid=frozenset()))
    if request.spot is SpotPolicy.REQUIRE:
        matching &= snapshot.spot
    ready = [snapshot.nodes[number] for number in np.flatnonzero(matching & snapshot.ready).tolist()]
    if not ready:
        return _describe_unready("matching node", [snapshot.nodes[n] for n in np.flatnonzero(matching).tolist()])
    taints = list_untolerated([node for node in ready if node.name not in bound.avoid], request)
    if taints:
        which = "The only matching node has" if len(ready) == 1 else "Every matching node has"
        return _describe_taints(case, which, taints, ready)
    named = list_names(sorted(bound.avoid), LISTED)
    return Answer(f"Every matching node is excluded because it rejected its pods ({named})", "Repair these nodes")


def _describe_taints(case: Case, which: str, taints: Sequence[str], nodes: Sequence[Node]) -> Answer:
    named = list_names([node.name for node in nodes], LISTED)
    return Answer(
        f"{which} an untolerated {name_taints(taints)} ({named})", f"Add a toleration to {case.fields.template}"
    )


def _wrong_model(case: Case) -> Answer:
    model, nodes = case.request.model, case.fitter.snapshot.nodes
    if having := [node for node in nodes if catalog.name_matches(model, node.shape.model)]:
        return _excluded_model(case, having)
    models = sorted({node.shape.model for node in nodes if node.shape.model})
    meant = find_similar(model, models)
    question = f"; did you mean {meant}?" if meant else ""
    field = case.fields.model
    fix = f"Set {field} to {meant}" if meant else f"Change {field}"
    return Answer(f"No GPU has model {model}{question}", f"{fix} (models here: {list_names(models, LISTED)})")


def _excluded_model(case: Case, nodes: Sequence[Node]) -> Answer:
    """Nodes have the GPU model, but another rule excludes each of them."""
    request, fields = case.request, case.fields
    noun = f"node with GPU model {request.model}"
    which = f"The only {noun}" if len(nodes) == 1 else f"All {len(nodes)} nodes with GPU model {request.model}"
    named = list_names([node.name for node in nodes], LISTED)
    ready = [node for node in nodes if node.ready and not node.cordoned]
    if not ready:
        problem, fix = _describe_unready(noun, nodes)
        problem = problem.replace(f"{noun}s", f"nodes with GPU model {request.model}")
        return Answer(problem, f"{fix}, or change {fields.model}")
    if request.spot is SpotPolicy.REQUIRE and not any(node.spot for node in ready):
        fix = f"Set {fields.spot_policy} to Allow, or change {fields.model}"
        return Answer(f"No spot node has GPU model {request.model} ({named})", fix)
    taints = list_untolerated([node for node in ready if node.name not in request.constraints.avoid], request)
    if taints:
        return _describe_taints(case, f"{which} {'has' if len(nodes) == 1 else 'have'}", taints, nodes)
    verb = "does" if len(nodes) == 1 else "do"
    return Answer(
        f"{which} {verb} not match the other requirements ({named})",
        f"Change nodeSelector, nodeAffinity or {fields.model}",
    )


def _wrong_architecture(case: Case) -> Answer:
    nodes = case.fitter.snapshot.nodes
    here = list_names(sorted({node.shape.architecture for node in nodes if node.shape.architecture}), LISTED)
    problem = f"No GPU has architecture {case.request.architecture} (here: {here or 'not known'})"
    return Answer(problem, f"Change {case.fields.architecture}")


def _gpu_memory(case: Case) -> Answer:
    gpus, field = case.request.gpus, case.fields.min_memory
    most_mib = max(node.shape.memory_mib or 0 for node in case.nodes)
    if gpus.milli and gpus.share_mib > most_mib:
        asks = f"The share asks for {format_mib(gpus.share_mib)} of GPU memory"
        return Answer(f"{asks}; the largest GPU has {format_mib(most_mib)}", "Ask for less")
    if not most_mib:
        return Answer(
            f"GPU memory is required ({field}), but the memory of the GPUs is not known",
            f"Remove {field}, or run the KGWE agent",
        )
    most_gb = int(most_mib * _GB_PER_MIB)
    largest = f"the largest GPU that matches has {most_gb} GB ({format_mib(most_mib)})"
    return Answer(
        f"Each GPU needs {case.request.min_memory_gb} GB of memory ({field}); {largest}",
        f"Set {field} to {most_gb} or less",
    )


def _cpu(case: Case) -> Answer:
    most = format_cores(max(node.cpu_milli for node in case.nodes))
    asks = f"Each pod requests {format_cores(case.request.cpu_milli)} ({_SUM})"
    return Answer(f"{asks}; the largest node that matches has {most}", f"Request {most} or less")


def _memory(case: Case) -> Answer:
    most = max(node.memory_bytes for node in case.nodes)
    asks = f"Each pod requests {format_bytes(case.request.memory_bytes)} of memory ({_SUM})"
    # A quantity that fits: rounded down, as it can be written into a manifest.
    fitting = f"{most >> 30}Gi" if most >> 30 else f"{most >> 20}Mi"
    return Answer(f"{asks}; the largest node that matches has {format_bytes(most)}", f"Request {fitting} or less")


def _pods(case: Case) -> Answer:
    named = list_names([node.name for node in case.nodes], LISTED)
    return Answer(f"Nodes that match allow no pods ({named})", "Raise maxPods of the kubelet there, or add nodes")


_EXPLAIN: Final[Mapping[FitStatus, Callable[[Case], Answer]]] = {
    FitStatus.NOT_READY: _no_node_ready,
    FitStatus.NOT_ALLOWED: _not_allowed,
    FitStatus.WRONG_MODEL: _wrong_model,
    FitStatus.WRONG_ARCHITECTURE: _wrong_architecture,
    FitStatus.GPU_MEMORY: _gpu_memory,
    FitStatus.TOO_FEW_GPUS: explain_devices,
    FitStatus.WIRING: explain_wiring,
    FitStatus.CPU: _cpu,
    FitStatus.MEMORY: _memory,
    FitStatus.PODS: _pods,
}
