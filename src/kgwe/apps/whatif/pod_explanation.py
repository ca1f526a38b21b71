"""The explanation of a pod that is on its node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors
from kgwe.apps.whatif import words
from kgwe.apps.whatif.explanation import Explanation, Placed, Seat
from kgwe.apps.whatif.parts import find_seat_problems, replace_fields
from kgwe.cluster.state import effective_seats
from kgwe.placement.fleet.snapshot import list_gpus

if TYPE_CHECKING:
    from kgwe.cluster.offline import View
    from kgwe.kube.api import core


def explain_bound(view: View, pod: core.Pod, base: Explanation) -> Explanation:
    holding = view.fleet.holding(pod.metadata.uid)
    known = effective_seats.effective_cards(view.state, pod)
    seats = (Seat(pod.spec.nodeName, tuple(list_gpus(known)), pod=pod.metadata.name, phase=pod.status.phase),)
    unknown = () if known else ("GPU numbers unknown: the device plugin chose them",)
    problems = (*base.problems, *find_seat_problems(view, seats))
    asks: tuple[str, ...] = ()
    try:
        asks = words.describe_ask(view.ask_of_pod(pod))
    except errors.Permanent as exc:
        # It runs, although KGWE would not place it.
        problems += (str(exc),)
    short = holding is not None and not view.fleet.is_fully_booked(pod.metadata.uid)
    if short:
        problems += (f"node {pod.spec.nodeName} does not exist, or has fewer GPUs than its pods hold",)
    summary = f"on {pod.spec.nodeName}, placed by {pod.spec.schedulerName or 'kube-scheduler'}"
    summary += "" if problems else "; no problems found"
    return replace_fields(
        base, state="Placed", summary=summary, asked=asks, placed=Placed(seats, why=unknown), problems=problems
    )
