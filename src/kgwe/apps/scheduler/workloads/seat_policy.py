"""Whether pods get their seats while they are created: the policy kgwe-seats or KGWE's webhook is installed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.kube.api import resources
from kgwe.kube.client.client import Forbidden

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient

log = structlog.get_logger(__name__)

_NAME: Final = "kgwe-seats"
_WEBHOOK: Final = "kgwe-webhook"
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
        """Whether one of them is installed. Unknown counts as no: without both, the seats are dead weight in pods."""
        if self._clock() >= self._ask_at:
            self._ask_at = self._clock() + _KEPT_S
            self._installed = await self._look()
        return self._installed

    async def _look(self) -> bool:
        # Before Kubernetes 1.36 there are no such policies, and the webhook does the same.
        if await self._exists(resources.MUTATING_POLICY_BINDING, _NAME):
            return True
        return await self._exists(resources.MUTATING_WEBHOOK_CONFIGURATION, _WEBHOOK)

    async def _exists(self, kind: Resource[Any], name: str) -> bool:
        try:
            await self._client.get(kind, name)
        except errors.NotFound:
            return False
        except Forbidden as exc:
            log.warning("seat_policy_unknown", error=str(exc), next="apply deploy/rbac.yaml")
            return False
        except errors.KgweError as exc:
            log.warning("seat_policy_unknown", error=str(exc))
            return False
        return True
