"""Whether the API server gives pods their seats while it creates them: the policy kgwe-seats is installed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

_NAME: Final = "kgwe-seats"
# How long an answer is used. Pods created without the policy keep their gate, and the scheduler pins them.
_KEPT_S: Final = 30.0


class SeatPolicy:
    """Asks the API server rarely, and only when it matters."""

    def __init__(self, client: KubeClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._installed = False
        self._ask_at = float("-inf")

    async def is_installed(self) -> bool:
        """Whether the policy is bound. Unknown counts as no: without the policy, the seats are dead weight in pods."""
        if self._clock() >= self._ask_at:
            self._ask_at = self._clock() + _KEPT_S
            self._installed = await self._look()
        return self._installed

    async def _look(self) -> bool:
        try:
            await self._client.get(resources.MUTATING_POLICY_BINDING, _NAME)
        except errors.NotFound:
            return False
        except Forbidden as exc:
            log.warning("seat_policy_unknown", error=str(exc), next="apply deploy/rbac.yaml")
            return False
        except errors.KgweError as exc:
            log.warning("seat_policy_unknown", error=str(exc))
            return False
        return True
