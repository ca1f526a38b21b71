"""Changes the plan of a running gang: stores the new plan, and finds the misplaced pods.

Misplaced pods are found from the run and its pods alone. A pod is misplaced if it is bound or pinned to another node
than its seat's, if it was started in an earlier round of a gang that is restarted as a whole, or if it has a GPU that
has failed since, while its seat has other GPUs now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, placement_annotations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kgwe.cluster.workload.runs import Run
    from kgwe.cluster.workload.signatures import Signer
    from kgwe.kube.api import core
    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.client.client import KubeClient
    from kgwe.placement.planning.plan import Seat

_TRIES: Final = 5


def round_of(annotations: Mapping[str, str]) -> int:
    return max(placement_annotations.count_in(annotations.get(metadata_keys.ROUND_ANNOTATION, "")), 0)


def mark_round(patch: dict[str, Any], run: Run | None) -> dict[str, Any]:
    """The patch that gives a pod its seat, with the round of its run."""
    if run is not None and (number := round_of(run.meta.annotations)):
        patch["metadata"]["annotations"][metadata_keys.ROUND_ANNOTATION] = str(number)
    return patch


async def store_plan(
    client: KubeClient,
    run: Run,
    before: tuple[Seat, ...],
    annotations: Mapping[str, str],
    signer: Signer | None = None,
) -> bool:
    """Store a new plan if the stored one is still `before`; returns whether it was stored."""
    name, namespace, meta = run.meta.name, run.meta.namespace, run.meta
    for _ in range(_TRIES):
        if meta.uid != run.meta.uid or not _has_plan(meta, before, signer):
            return False  # another run or another plan: the decision is out of date
        new = dict(annotations) if signer is None else signer.sign_new_plan(meta, annotations)
        body = {"metadata": {"resourceVersion": meta.resourceVersion, "annotations": new}}
        try:
            await client.patch(run.resource, name, body, namespace)
        except errors.Conflict:
            meta = (await client.get(run.resource, name, namespace)).metadata
        else:
            return True
    return False


def _has_plan(meta: ObjectMeta, before: tuple[Seat, ...], signer: Signer | None) -> bool:
    """Whether the stored plan is that one; a plan that KGWE did not write may be replaced by any."""
    if signer is not None and not signer.has_signed(meta):
        return True
    return placement_annotations.decode(meta.annotations.get(placement_annotations.PLAN_ANNOTATION, "")) == before


def find_misplaced(
    run: Run, pods: Iterable[core.Pod], sick: Callable[[str], int], cards: Callable[[core.Pod], int]
) -> Iterator[core.Pod]:
    """Pods that are not where the plan wants them. The Job of a single pod pins it, so it is never misplaced.

    `sick`: node -> mask of its unhealthy GPUs; `cards`: the GPUs that a pod has.
    """
    if len(run.seats) <= 1:
        return
    for pod in pods:
        number = run.seat_of(pod)
        if 0 <= number < len(run.seats) and _is_stray(run, number, pod, sick, cards(pod)):
            yield pod


def _is_stray(run: Run, number: int, pod: core.Pod, sick: Callable[[str], int], cards: int) -> bool:
    node = pod.spec.nodeName or placement_annotations.pinned_node(pod.spec)
    if placement_annotations.is_gated(pod) or not node:
        return False  # it has not been given its place yet
    seat = run.seats[number]
    if node != seat.node or round_of(pod.metadata.annotations) < round_of(run.meta.annotations):
        return True
    failed = cards & sick(node)
    return bool(failed and not failed & seat.gpus)
