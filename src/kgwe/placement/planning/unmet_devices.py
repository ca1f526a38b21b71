"""Why no node offers the GPUs of a pod even when empty: too many whole GPUs, a share or a slice that does not exist, or
GPUs that are not connected as required."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from kgwe.model.units.phrasing import format_count, format_number, join_words, list_names
from kgwe.placement.fleet.node import SOFTER, Preference, share_milli
from kgwe.placement.planning.unmet_case import LISTED, Answer, Case
from kgwe.placement.pod.fit_status import FitStatus
from kgwe.placement.pod.wording import describe_share

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.placement.fleet.node import Request
    from kgwe.placement.planning.fields import Fields
    from kgwe.placement.pod.fit import Fitter

_CONNECTED: Final = {
    Preference.NVLINK_REQUIRED: "connected by NVLink",
    Preference.SAME_NUMA: "on one NUMA node",
    Preference.SAME_PCIE_SWITCH: "connected by PCIe switches only",
}
# Compute slices and gigabytes in the name of a MIG profile.
_PROFILE: Final = re.compile(r"(\d+)g\.(\d+)gb")


def explain_devices(case: Case) -> Answer:
    """No node has that many GPUs, a share of that size, or slices of the profile."""
    gpus = case.request.gpus
    if gpus.milli:
        return _no_share(case)
    if gpus.slices:
        return _no_slices(case)
    return _too_few_gpus(case)


def _too_few_gpus(case: Case) -> Answer:
    count, nodes = case.request.gpus.count, case.nodes
    by_node = [node.usable.bit_count() for node in nodes if not node.shares_per_gpu]
    most = max(by_node, default=0)
    if not most:
        if any(node.shares_per_gpu for node in nodes):
            advice = "Request a share instead of whole GPUs" if case.fields.is_pod else "Ask for a share, not for count"
            return Answer("All GPUs that match are offered as shares, none as a whole GPU", advice)
        return Answer(
            "No node that matches has a healthy GPU that is not partitioned", "Check GPU health and MIG layouts"
        )
    which = "the largest node" if most == case.fitter.most_gpus else "the largest node that matches"
    problem = f"Each pod asks for {format_count(count, 'GPU')}; {which} has {most}"
    if most < sum(by_node) < count:
        problem += f", and all nodes that match have {sum(by_node)} together"
    if case.fields.is_pod:
        return Answer(problem, f"Request nvidia.com/gpu: {most} or less, and create several pods")
    equal = next((each for each in range(most, 1, -1) if count * case.pods % each == 0), 0)
    fix = f"Set gpusPerPod to {equal} or less" if equal else f"Ask for at most {format_count(most, 'GPU')} per pod"
    return Answer(problem, fix)


def _no_share(case: Case) -> Answer:
    wanted = describe_share(case.request.gpus.milli)
    offered = [describe_share(share_milli(pieces)) for pieces in case.fitter.share_counts]
    if not offered:
        return Answer(
            f"No node offers GPU shares, and {wanted} was requested",
            "Ask for whole GPUs, or enable GPU sharing on a node",
        )
    best = share_milli(case.fitter.share_counts[0]) / 1000
    return Answer(
        f"No node offers shares of {wanted}; nodes here offer {join_words(offered)}",
        f"Set {case.fields.share} to {best:g}",
    )


# --- slices ----------------------------------------------------------------------------------------------


def _no_slices(case: Case) -> Answer:
    wanted, nodes = case.request.gpus, case.nodes
    by_node = [Counter(each.profile.name for cut in node.cut.values() for each in cut) for node in nodes]
    most = max((counts[wanted.profile] for counts in by_node), default=0)
    if most:
        asks = f"Each pod asks for {format_count(wanted.slices, 'slice')} of {wanted.profile}"
        return Answer(f"{asks}; the largest node has {most}", f"Ask for {most} or fewer per pod")
    possible = {name for node in nodes if node.shape.geometry is not None for name in node.shape.geometry.profiles}
    existing = {profile for counts in by_node for profile in counts}
    if wanted.profile not in possible | existing:
        return _no_such_profile(case, possible | existing)
    here = f"slices here: {list_names(_sort_nearest(wanted.profile, existing), LISTED)}"
    if not existing:
        here = "no GPU is partitioned"
    fix = "Create a MIGStrategy that makes such slices"
    change = f", or change {case.fields.profile}" if existing else ""
    return Answer(f"No GPU has a {wanted.profile} slice ({here})", f"{fix}{change}")


def _no_such_profile(case: Case, known: set[str]) -> Answer:
    """No GPU model of the fleet can have the profile."""
    profile, field = case.request.gpus.profile, case.fields.profile
    if not known:
        models = list_names(sorted({node.shape.model for node in case.nodes if node.shape.model}), LISTED)
        return Answer(
            f"No GPU that matches can be partitioned with MIG (models here: {models or 'not known'})",
            "Ask for whole GPUs or a share instead of a MIG slice",
        )
    nearest = _sort_nearest(profile, (name for name in known if "+" not in name and "-" not in name)) or sorted(known)
    return Answer(
        f"No GPU model here has MIG profile {profile} (nearest profiles: {list_names(nearest, LISTED)})",
        f"Set {field} to one of these, such as {nearest[0]}",
    )


def _sort_nearest(profile: str, names: Iterable[str]) -> list[str]:
    """The profiles that come nearest in memory first, then in compute slices."""
    compute, memory_gb = _read_size(profile)

    def distance(name: str) -> tuple[int, int, str]:
        own_compute, own_gb = _read_size(name)
        return abs(own_gb - memory_gb), abs(own_compute - compute), name

    return sorted(names, key=distance)


def _read_size(profile: str) -> tuple[int, int]:
    found = _PROFILE.match(profile)
    return (int(found[1]), int(found[2])) if found else (0, 0)


# --- connections -----------------------------------------------------------------------------------------


def explain_wiring(case: Case) -> Answer:
    """Nodes have enough GPUs, but no set of them meets the preference and the bandwidth."""
    fitter, request, fields = case.fitter, case.request, case.fields
    count = request.gpus.count
    groups = [each for each in range(count - 1, 1, -1) if _is_connected_anywhere(fitter, _with_count(request, each))]
    largest = f"; the largest such group has {groups[0]}" if groups else ""
    rate = fitter.fastest_gb_per_s(request, case.numbers) if request.min_bandwidth_gbps else -1.0
    # Rounded down: a bandwidth that can be asked for.
    fastest = max(math.floor(10 * rate) / 10, 0.0)
    if rate == 0:
        largest = f"; the bandwidth between these GPUs is not known (it comes from the KGWE agent){largest}"
    if fastest:
        largest = f"; the fastest {count} have {format_number(fastest)} GB/s{largest}"
    equal = next((each for each in groups if count % each == 0), 0)
    ways = [f"set gpusPerPod to {equal}"] if equal and not fields.is_pod else []
    if rate == 0:
        ways.append("start the KGWE agent there")
    ways += [_relax_connection(case, fastest), *_name_other_gpus(case)]
    fix = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])}, or {ways[-1]}"
    listed = list_names([node.name for node in case.nodes], LISTED)
    where = f"node {listed}" if len(case.nodes) == 1 else f"any of the nodes {listed}"
    problem = f"No {format_count(count, 'GPU')} on {where} are {_describe_connection(request)}{largest}"
    return Answer(problem, fix[:1].upper() + fix[1:])


def _name_other_gpus(case: Case) -> list[str]:
    """The GPU model or architecture that satisfies the requirement, if the request excludes it."""
    request, fields, fitter = case.request, case.fields, case.fitter
    if not request.model and not request.architecture:
        return []
    other = replace(request, model="") if request.model else replace(request, architecture="")
    other = replace(other, cpu_milli=0, memory_bytes=0)
    numbers = np.flatnonzero(fitter.check_empty_nodes(other) == FitStatus.FITS).tolist()
    shapes = [fitter.snapshot.nodes[number].shape for number in numbers]
    known = (shape.model if request.model else shape.architecture for shape in shapes)
    names = sorted({name for name in known if name})
    field = fields.model if request.model else fields.architecture
    return [f"set {field} to {join_words(names[:LISTED], 'or')}, which meets it"] if names else []


def _describe_connection(request: Request) -> str:
    """`connected by NVLink with at least 600 GB/s`."""
    how = _CONNECTED.get(request.preference, "")
    if not request.min_bandwidth_gbps:
        return how
    rate = f"with at least {request.min_bandwidth_gbps:g} GB/s"
    if request.preference is Preference.SAME_NUMA:
        return f"{how} and connected {rate}"
    return f"{how or 'connected'} {rate}"


def _relax_connection(case: Case, fastest: float) -> str:
    """The values to set: one field if that is enough, else all that are set."""
    request, fields, fitter = case.request, case.fields, case.fitter
    softer = [replace(request, preference=each) for each in SOFTER.get(request.preference, ())]
    texts = {each: f"set {fields.preference} to {each.preference}" for each in softer}
    enough = [text for each, text in texts.items() if _is_connected_anywhere(fitter, each)][:1]
    if request.min_bandwidth_gbps and _is_connected_anywhere(fitter, replace(request, min_bandwidth_gbps=0.0)):
        enough.append(_lower_bandwidth(fields, fastest))
    if enough:
        return " or ".join(enough)
    changes = [texts[softer[-1]]] if softer else []
    if request.min_bandwidth_gbps:
        rate = fitter.fastest_gb_per_s(softer[-1] if softer else request, case.numbers)
        changes.append(_lower_bandwidth(fields, math.floor(10 * rate) / 10))
    return " and ".join(changes)


def _lower_bandwidth(fields: Fields, fastest: float) -> str:
    if fastest <= 0:
        return f"remove {fields.min_bandwidth}"
    return f"set {fields.min_bandwidth} to {format_number(fastest)} or less"


def _with_count(request: Request, count: int) -> Request:
    return replace(request, gpus=replace(request.gpus, count=count))


def _is_connected_anywhere(fitter: Fitter, request: Request) -> bool:
    """Whether some node has the GPUs connected, with as much CPU and memory as needed."""
    request = replace(request, cpu_milli=0, memory_bytes=0)
    return bool((fitter.check_empty_nodes(request) == FitStatus.FITS).any())
