"""Why no node can run a pod even when empty: the requirement that none meets, the largest value there is, and a fix.

Each node fails at the first static rule it does not meet (`FitStatus`). The nodes that pass the most rules show which
requirement is in the way.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.gpu import catalog
from kgwe.model.units.phrasing import (
    end_sentence,
    find_similar,
    format_bytes,
    format_cores,
    format_count,
    format_mib,
    join_words,
    list_names,
)
from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import Preference, SpotPolicy, share_milli
from kgwe.placement.planning.exclusions import list_untolerated, name_taints
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.wording import describe_share

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kgwe.placement.fleet.node import Node, Request
    from kgwe.placement.fleet.snapshot import Snapshot
    from kgwe.placement.pod.fit import Fitter

# Names and values that a message lists.
_LISTED: Final = 4
_GB_PER_MIB: Final = 2**20 / 1e9
_CONNECTED: Final = {
    Preference.NVLINK_REQUIRED: "connected by NVLink",
    Preference.SAME_NUMA: "on one NUMA node",
    Preference.SAME_PCIE_SWITCH: "connected by PCIe switches only",
}


@dataclass(frozen=True, slots=True)
class Unmet:
    """A requirement that no node meets."""

    status: FitStatus
    problem: str
    """A sentence without its full stop, as in `Each pod asks for 16 GPUs; the largest node has 8`, or a question."""
    fix: str
    """What to change, as a sentence without its full stop; empty: nothing is known to help."""

    @property
    def text(self) -> str:
        return f"{end_sentence(self.problem)} {end_sentence(self.fix)}".rstrip()


def find_unmet(fitter: Fitter, request: Request) -> Unmet | None:
    """The requirement that keeps a pod off every node even if nothing ran; None if some node could run it."""
    codes = fitter.check_empty_nodes(request)
    if not len(codes) or (codes == FitStatus.FITS).any():
        return None
    status = FitStatus(int(codes.max()))
    nearest = [fitter.snapshot.nodes[number] for number in np.flatnonzero(codes == status).tolist()]
    problem, fix = _EXPLAIN[status](fitter, request, nearest)
    return Unmet(status, problem, fix)


# --- one requirement each ---------------------------------------------------------------------------------

_Answer = tuple[str, str]


def _no_node_ready(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:  # noqa: ARG001 - one signature
    return _describe_unready("GPU node", nodes)


def _describe_unready(noun: str, nodes: Sequence[Node]) -> _Answer:
    """All nodes that matter are cordoned or not ready: which, and the command for each."""
    which = f"The only {noun} is" if len(nodes) == 1 else f"All {len(nodes)} {noun}s are"
    cordoned = [node.name for node in nodes if node.cordoned]
    broken = [node.name for node in nodes if not node.cordoned]
    causes = [
        f"{cause} ({list_names(names, _LISTED)})"
        for cause, names in (("cordoned", cordoned), ("not ready", broken))
        if names
    ]
    fixes = [f"run `kubectl uncordon {cordoned[0]}`"] if cordoned else []
    fixes += [f"find out why with `kubectl describe node {broken[0]}`"] if broken else []
    fix = join_words(fixes, "or")
    return f"{which} {join_words(causes, 'or')}", fix[:1].upper() + fix[1:]


def _not_allowed(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:
    bound, snapshot = request.constraints, fitter.snapshot
    if request.spot is SpotPolicy.REQUIRE and not any(node.spot for node in nodes):
        return "Only spot nodes are allowed (spotPolicy: Require), but no node is one", "Set spotPolicy to Allow"
    for key, value in bound.selector:
        values = sorted({node.labels[key] for node in snapshot.nodes if key in node.labels})
        if value not in values:
            there = f"values here: {list_names(values, _LISTED)}" if values else f"no GPU node has a label {key}"
            return f"No GPU node has label {key}={value} ({there})", "Change nodeSelector, or label a node"
    if bound.selector and not snapshot.labels.match_selectors(Constraints(selector=bound.selector)).any():
        listed = ", ".join(f"{key}={value}" for key, value in bound.selector)
        return f"No GPU node has all labels of nodeSelector ({listed})", "Change nodeSelector"
    if not snapshot.labels.match_selectors(replace(bound, avoid=frozenset())).any():
        return "No GPU node matches the required node affinity", "Change nodeAffinity"
    return _none_left(snapshot, request)


def _none_left(snapshot: Snapshot, request: Request) -> _Answer:
    """Some nodes match selector, affinity and spot policy: why none of them takes the pod."""
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
        named = list_names([node.name for node in ready], _LISTED)
        return f"{which} an untolerated {name_taints(taints)} ({named})", "Add a toleration to the pod template"
    named = list_names(sorted(bound.avoid), _LISTED)
    return f"Every matching node is excluded because it rejected its pods ({named})", "Repair these nodes"


def _wrong_model(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:  # noqa: ARG001 - one signature
    having = [node for node in fitter.snapshot.nodes if catalog.name_matches(request.model, node.shape.model)]
    if having:
        return _excluded_model(request, having)
    models = sorted({node.shape.model for node in fitter.snapshot.nodes if node.shape.model})
    meant = find_similar(request.model, models)
    question = f"; did you mean {meant}?" if meant else ""
    fix = f"Set gpuModel to {meant}" if meant else "Change gpuModel"
    return f"No GPU has model {request.model}{question}", f"{fix} (models here: {list_names(models, _LISTED)})"


def _excluded_model(request: Request, nodes: Sequence[Node]) -> _Answer:
    """Nodes have the GPU model, but another rule excludes each of them."""
    noun = f"node with GPU model {request.model}"
    which = f"The only {noun}" if len(nodes) == 1 else f"All {len(nodes)} nodes with GPU model {request.model}"
    named = list_names([node.name for node in nodes], _LISTED)
    ready = [node for node in nodes if node.ready and not node.cordoned]
    if not ready:
        problem, fix = _describe_unready(noun, nodes)
        return problem.replace(f"{noun}s", f"nodes with GPU model {request.model}"), f"{fix}, or change gpuModel"
    if request.spot is SpotPolicy.REQUIRE and not any(node.spot for node in ready):
        return f"No spot node has GPU model {request.model} ({named})", "Set spotPolicy to Allow, or change gpuModel"
    taints = list_untolerated([node for node in ready if node.name not in request.constraints.avoid], request)
    if taints:
        verb = "has" if len(nodes) == 1 else "have"
        return f"{which} {verb} an untolerated {name_taints(taints)} ({named})", "Add a toleration to the pod template"
    verb = "does" if len(nodes) == 1 else "do"
    return f"{which} {verb} not match the other requirements ({named})", "Change nodeSelector, nodeAffinity or gpuModel"


def _wrong_architecture(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:  # noqa: ARG001
    found = sorted({node.shape.architecture for node in fitter.snapshot.nodes if node.shape.architecture})
    here = list_names(found, _LISTED) or "not known"
    return f"No GPU has architecture {request.architecture} (here: {here})", "Change architecture"


def _gpu_memory(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:  # noqa: ARG001
    most_mib = max(node.shape.memory_mib or 0 for node in nodes)
    if request.gpus.milli and request.gpus.share_mib > most_mib:
        wanted = format_mib(request.gpus.share_mib)
        return f"The share asks for {wanted} of GPU memory; the largest GPU has {format_mib(most_mib)}", "Ask for less"
    if not most_mib:
        return (
            "GPU memory is required (minMemoryGB), but the memory of the GPUs is not known",
            "Remove minMemoryGB, or run the KGWE agent",
        )
    most_gb = int(most_mib * _GB_PER_MIB)
    largest = f"the largest GPU that matches has {most_gb} GB ({format_mib(most_mib)})"
    return (
        f"Each GPU needs {request.min_memory_gb} GB of memory (minMemoryGB); {largest}",
        f"Set minMemoryGB to {most_gb} or less",
    )


def _too_few_gpus(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:
    gpus = request.gpus
    if gpus.milli:
        return _no_share(fitter, request)
    if gpus.slices:
        return _no_slices(request, nodes)
    most = max((node.usable.bit_count() for node in nodes if not node.shares_per_gpu), default=0)
    if not most:
        if any(node.shares_per_gpu for node in nodes):
            return "All GPUs that match are offered as shares, none as a whole GPU", "Ask for a share instead of count"
        return "No node that matches has a healthy GPU that is not partitioned", "Check GPU health and MIG layouts"
    which = "the largest node" if most == fitter.most_gpus else "the largest node that matches"
    problem = f"Each pod asks for {format_count(gpus.count, 'GPU')}; {which} has {most}"
    equal = next((each for each in range(most, 1, -1) if gpus.count % each == 0), 0)
    return (
        problem,
        f"Set gpusPerPod to {equal} or less" if equal else f"Ask for at most {format_count(most, 'GPU')} per pod",
    )


def _no_share(fitter: Fitter, request: Request) -> _Answer:
    wanted = describe_share(request.gpus.milli)
    offered = [describe_share(share_milli(pieces)) for pieces in fitter.share_counts]
    if not offered:
        return (
            f"No node offers GPU shares, and {wanted} was requested",
            "Ask for whole GPUs, or enable GPU sharing on a node",
        )
    best = share_milli(fitter.share_counts[0]) / 1000
    return f"No node offers shares of {wanted}; nodes here offer {join_words(offered)}", f"Set share to {best:g}"


def _no_slices(request: Request, nodes: Sequence[Node]) -> _Answer:
    gpus = request.gpus
    by_node = [Counter(each.profile.name for cut in node.cut.values() for each in cut) for node in nodes]
    most = max((counts[gpus.profile] for counts in by_node), default=0)
    if most:
        problem = (
            f"Each pod asks for {format_count(gpus.slices, 'slice')} of {gpus.profile}; the largest node has {most}"
        )
        return problem, f"Ask for {most} or fewer per pod"
    profiles = sorted({profile for counts in by_node for profile in counts})
    here = f"profiles here: {list_names(profiles, _LISTED)}" if profiles else "no GPU is partitioned"
    fix = "Create a MIGStrategy that makes such slices"
    return f"No GPU has a {gpus.profile} slice ({here})", f"{fix}, or ask for another profile" if profiles else fix


def _wiring(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:
    count = request.gpus.count
    groups = [each for each in range(count - 1, 1, -1) if _is_connected_anywhere(fitter, _with_count(request, each))]
    largest = f"; the largest such group has {groups[0]}" if groups else ""
    equal = next((each for each in groups if count % each == 0), 0)
    relax = _relax_connection(fitter, request)
    fix = f"Set gpusPerPod to {equal}, or {relax}" if equal else relax[:1].upper() + relax[1:]
    listed = f" ({list_names([node.name for node in nodes], _LISTED)})"
    return f"No node has {format_count(count, 'GPU')} {_describe_connection(request)}{listed}{largest}", fix


def _describe_connection(request: Request) -> str:
    """`connected by NVLink with at least 600 GB/s`."""
    how = _CONNECTED.get(request.preference, "")
    if not request.min_bandwidth_gbps:
        return how
    rate = f"with at least {request.min_bandwidth_gbps:g} GB/s"
    if request.preference is Preference.SAME_NUMA:
        return f"{how} and connected {rate}"
    return f"{how or 'connected'} {rate}"


def _relax_connection(fitter: Fitter, request: Request) -> str:
    """Which fields of `topology` to relax: those that are enough alone, or all that are set."""
    relaxed = {
        "preference": ("relax topology.preference", replace(request, preference=Preference.NONE)),
        "minBandwidthGBps": ("lower topology.minBandwidthGBps", replace(request, min_bandwidth_gbps=0.0)),
    }
    fields = [relaxed[field] for field in request.connection_fields]
    enough = [text for text, changed in fields if _is_connected_anywhere(fitter, changed)]
    return " or ".join(enough) or " and ".join(text for text, _ in fields)


def _with_count(request: Request, count: int) -> Request:
    return replace(request, gpus=replace(request.gpus, count=count))


def _is_connected_anywhere(fitter: Fitter, request: Request) -> bool:
    """Whether some node has the GPUs connected, with as much CPU and memory as needed."""
    request = replace(request, cpu_milli=0, memory_bytes=0)
    return bool((fitter.check_empty_nodes(request) == FitStatus.FITS).any())


def _cpu(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:  # noqa: ARG001 - one signature
    most = max(node.cpu_milli for node in nodes)
    asks = f"Each pod requests {format_cores(request.cpu_milli)}"
    return f"{asks}; the largest node that matches has {format_cores(most)}", f"Request {format_cores(most)} or less"


def _memory(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:  # noqa: ARG001 - one signature
    most = max(node.memory_bytes for node in nodes)
    asks = f"Each pod requests {format_bytes(request.memory_bytes)} of memory"
    # A quantity that fits: rounded down, as it can be written into a manifest.
    fitting = f"{most >> 30}Gi" if most >> 30 else f"{most >> 20}Mi"
    return f"{asks}; the largest node that matches has {format_bytes(most)}", f"Request {fitting} or less"


def _pods(fitter: Fitter, request: Request, nodes: Sequence[Node]) -> _Answer:  # noqa: ARG001 - one signature
    return f"Nodes that match allow no pods ({list_names([node.name for node in nodes], _LISTED)})", ""


_EXPLAIN: Final[Mapping[FitStatus, Callable[[Fitter, Request, Sequence[Node]], _Answer]]] = {
    FitStatus.NOT_READY: _no_node_ready,
    FitStatus.NOT_ALLOWED: _not_allowed,
    FitStatus.WRONG_MODEL: _wrong_model,
    FitStatus.WRONG_ARCHITECTURE: _wrong_architecture,
    FitStatus.GPU_MEMORY: _gpu_memory,
    FitStatus.TOO_FEW_GPUS: _too_few_gpus,
    FitStatus.WIRING: _wiring,
    FitStatus.CPU: _cpu,
    FitStatus.MEMORY: _memory,
    FitStatus.PODS: _pods,
}
