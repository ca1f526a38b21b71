"""Whether seats are written into templates: only where the API server will read them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fakes.recording_client import RecordingClient

from kgwe import errors
from kgwe.apps.scheduler.workloads.seat_policy import SeatPolicy
from kgwe.kube.client.client import Forbidden


class Asked(RecordingClient):
    """Counts reads, and fails them as it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.failure: Exception | None = None
        self.installed = ""

    async def get(self, _resource: Any, name: str, _namespace: str = "") -> Any:
        self.reads += 1
        if self.failure is not None and name != self.installed:
            raise self.failure
        return {}


async def test_the_api_server_is_asked_again_after_a_while_only() -> None:
    now, client = [0.0], Asked()
    policy = SeatPolicy(client, clock=lambda: now[0])  # type: ignore[arg-type] # reads alone
    assert await policy.is_installed()
    assert await policy.is_installed()
    assert client.reads == 1
    now[0], client.failure = 31.0, errors.NotFound("no such binding")
    assert not await policy.is_installed()
    now[0], client.failure = 62.0, None
    assert await policy.is_installed()


@pytest.mark.parametrize("failure", [errors.NotFound("x"), Forbidden("x"), errors.Transient("x")])
async def test_unknown_counts_as_not_installed(failure: Exception) -> None:
    client = Asked()
    client.failure = failure
    assert not await SeatPolicy(client).is_installed()  # type: ignore[arg-type] # reads alone


async def test_without_the_policy_the_webhook_gives_seats() -> None:
    client = Asked()
    client.failure, client.installed = errors.NotFound("no such kind"), "kgwe-webhook"
    assert await SeatPolicy(client).is_installed()  # type: ignore[arg-type] # reads alone
