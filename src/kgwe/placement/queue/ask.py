"""How the queue sees an ask: the gang or pod it orders, with its age and its declared run time."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.placement.planning import planner
from kgwe.placement.queue.workloads import QueuedWorkload, RunTime

if TYPE_CHECKING:
    from kgwe.placement.fleet.node import Request
    from kgwe.placement.gang.request import GangRequest
    from kgwe.placement.planning.ask import Ask
    from kgwe.placement.pod.fit import Fitter

# Run times declared by users: one in twenty takes up to twice as long.
_LATE: Final = 2.0


def declared_run_time(expected_s: float | None) -> RunTime | None:
    """The distribution behind a duration that a user declared; None: none was declared."""
    return RunTime(expected_s, expected_s * _LATE) if expected_s else None


def workload_from_ask(ask: Ask, fitter: Fitter, since_s: float) -> QueuedWorkload:
    """The ask as the queue orders it; `since_s`: when it was made, in seconds since 1970."""
    try:
        whole = planner.divide_ask(fitter, ask)
    except Exception:  # noqa: BLE001 - planning it fails with the same error, and is counted there
        whole = ask
    request: Request | GangRequest = whole.request
    if whole.pods > 1 or whole.gang is not None:
        # An inconsistent gang is refused, with the reason, when it is planned.
        with contextlib.suppress(errors.Permanent):
            request = planner.gang_request(whole)
    return QueuedWorkload(
        key=ask.owner,
        request=request,
        namespace=ask.namespace,
        priority=ask.priority,
        since_s=since_s,
        run_time=declared_run_time(ask.expected_s),
        first_claim=ask.first_claim,
        request_class=ask.without_identity(),
        name=f"{ask.namespace}/{ask.name}" if ask.name else "",
    )
