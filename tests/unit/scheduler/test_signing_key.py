"""The key that decisions are signed with: made once, followed, put back when it was lost."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.support.builders.objects import make

from kgwe import errors
from kgwe.apps.scheduler.signing_key import SigningKeys
from kgwe.cluster.workload.signatures import Signer
from kgwe.kube.api import resources


class Client:
    """One Secret, as deploy/rbac.yaml creates it."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.exists = True
        self.version = 1

    async def get(self, *_: Any) -> Any:
        if not self.exists:
            raise errors.NotFound("there is no such Secret")
        meta = {"name": "kgwe-decision-key", "namespace": "kgwe-system", "resourceVersion": str(self.version)}
        return make(resources.SECRET.type, {"metadata": meta, "data": dict(self.data)})

    async def create(self, _resource: Any, body: Any, _namespace: str) -> Any:
        self.data, self.exists = dict(body["data"]), True
        return await self.get()

    async def patch(self, _resource: Any, _name: str, body: Any, _namespace: str) -> Any:
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise errors.Conflict("somebody was faster")
        self.version += 1
        self.data |= body["data"]
        return await self.get()


def keys(client: Any, signer: Signer) -> SigningKeys:
    return SigningKeys(client, signer, "kgwe-system")


async def test_the_first_replica_fills_the_secret_and_the_next_reads_it() -> None:
    client, one, other = Client(), Signer(), Signer()
    assert await keys(client, one).load()
    assert await keys(client, other).load()
    assert one.newest == other.newest
    assert len(one.newest) == 32
    assert not await keys(client, one).load(), "nothing changed"


async def test_the_key_before_a_rotation_is_still_accepted() -> None:
    client, signer = Client(), Signer()
    await keys(client, signer).load()
    before = signer.newest
    await keys(client, signer).rotate()
    assert await keys(client, signer).load()
    assert signer.newest != before
    assert before in signer._keys.values()


async def test_a_secret_that_was_lost_gets_the_key_in_use_back() -> None:
    client, signer = Client(), Signer()
    await keys(client, signer).load()
    client.data = {}
    assert not await keys(client, signer).load()
    assert client.data["current"] == base64.b64encode(signer.newest).decode()


async def test_a_secret_that_was_lost_gets_the_key_before_the_last_rotation_back() -> None:
    client, signer, other = Client(), Signer(), Signer()
    await keys(client, signer).load()
    await keys(client, signer).rotate()
    await keys(client, signer).load()
    known, stored = signer.keys, client.data
    for exists in (True, False):
        client.data, client.exists = {}, exists
        assert not await keys(client, signer).load()
        assert client.data == stored
        assert signer.keys == known
    await keys(client, other).load()
    assert other.keys == known, "a replica that starts now accepts what was signed before the rotation"


async def test_a_key_that_was_moved_to_previous_by_hand_is_replaced() -> None:
    client, signer = Client(), Signer()
    await keys(client, signer).load()
    client.data = {"previous": client.data["current"]}
    assert await keys(client, signer).load()
    assert client.data["current"] != client.data["previous"]


@pytest.mark.parametrize(("text", "why"), [("%%", "not base64"), ("c2hvcnQ=", "shorter than 16 bytes")])
async def test_a_key_that_is_none_is_refused(text: str, why: str) -> None:
    client = Client()
    client.data = {"current": text}
    with pytest.raises(errors.Permanent, match=why):
        await keys(client, Signer()).load()


@pytest.mark.parametrize("text", ["%%", "c2hvcnQ="])
async def test_a_broken_previous_key_is_ignored(text: str) -> None:
    client, running, new = Client(), Signer(), Signer()
    await keys(client, running).load()
    await keys(client, running).rotate()
    await keys(client, running).load()
    known = running.keys
    client.data = {"current": base64.b64encode(running.newest).decode(), "previous": text}
    with capture_logs() as logs:
        assert await keys(client, new).load()
    assert new.keys == known[:1]
    assert [(each["event"], each["log_level"]) for each in logs] == [("previous_key_ignored", "warning")]
    assert not await keys(client, running).load(), "a replica that knows the key goes on with it"
    assert running.keys == known
