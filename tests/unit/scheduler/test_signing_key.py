"""The key that decisions are signed with: made once, followed, put back when it was lost."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.apps.scheduler.signing_key import NAME, SigningKeys
from kgwe.cluster.workload.signatures import Signer
from kgwe.kube.client.client import KubeClient

if TYPE_CHECKING:
    from collections.abc import Mapping


FOLDER = "/api/v1/namespaces/kgwe-system/secrets"
PATH = f"{FOLDER}/{NAME}"


class Cluster:
    """An API server with one Secret, as deploy/rbac.yaml creates it."""

    def __init__(self, data: Mapping[str, str] | None = None) -> None:
        self._api = MemoryApi()
        self.client = KubeClient(self._api)
        self._api.call("POST", FOLDER, {"metadata": {"name": NAME}, "data": dict(data or {})})

    @property
    def data(self) -> dict[str, str]:
        return dict(self._api.call("GET", PATH)["data"])

    def set_data(self, data: Mapping[str, str]) -> None:
        self.delete()
        self._api.call("POST", FOLDER, {"metadata": {"name": NAME}, "data": dict(data)})

    def delete(self) -> None:
        self._api.call("DELETE", PATH)


def keys(cluster: Cluster, signer: Signer) -> SigningKeys:
    return SigningKeys(cluster.client, signer, "kgwe-system")


async def test_the_first_replica_fills_the_secret_and_the_next_reads_it() -> None:
    cluster, one, other = Cluster(), Signer(), Signer()
    assert await keys(cluster, one).load()
    assert await keys(cluster, other).load()
    assert one.newest == other.newest
    assert len(one.newest) == 32
    assert not await keys(cluster, one).load(), "nothing changed"


async def test_the_key_before_a_rotation_is_still_accepted() -> None:
    cluster, signer = Cluster(), Signer()
    await keys(cluster, signer).load()
    before = signer.newest
    await keys(cluster, signer).rotate()
    assert await keys(cluster, signer).load()
    assert signer.newest != before
    assert before in signer._keys.values()


async def test_a_secret_that_was_lost_gets_the_key_in_use_back() -> None:
    cluster, signer = Cluster(), Signer()
    await keys(cluster, signer).load()
    cluster.set_data({})
    assert not await keys(cluster, signer).load()
    assert cluster.data["current"] == base64.b64encode(signer.newest).decode()


async def test_a_secret_that_was_lost_gets_the_key_before_the_last_rotation_back() -> None:
    cluster, signer, other = Cluster(), Signer(), Signer()
    await keys(cluster, signer).load()
    await keys(cluster, signer).rotate()
    await keys(cluster, signer).load()
    known, stored = signer.keys, cluster.data
    for lose in (lambda: cluster.set_data({}), cluster.delete):
        lose()
        assert not await keys(cluster, signer).load()
        assert cluster.data == stored
        assert signer.keys == known
    await keys(cluster, other).load()
    assert other.keys == known, "a replica that starts now accepts what was signed before the rotation"


async def test_a_key_that_was_moved_to_previous_by_hand_is_replaced() -> None:
    cluster, signer = Cluster(), Signer()
    await keys(cluster, signer).load()
    cluster.set_data({"previous": cluster.data["current"]})
    assert await keys(cluster, signer).load()
    assert cluster.data["current"] != cluster.data["previous"]


@pytest.mark.parametrize(("text", "why"), [("%%", "not base64"), ("c2hvcnQ=", "shorter than 16 bytes")])
async def test_a_key_that_is_none_is_refused(text: str, why: str) -> None:
    cluster = Cluster({"current": text})
    with pytest.raises(errors.Permanent, match=why):
        await keys(cluster, Signer()).load()


@pytest.mark.parametrize("text", ["%%", "c2hvcnQ="])
async def test_a_broken_previous_key_is_ignored(text: str) -> None:
    cluster, running, new = Cluster(), Signer(), Signer()
    await keys(cluster, running).load()
    await keys(cluster, running).rotate()
    await keys(cluster, running).load()
    known = running.keys
    cluster.set_data({"current": base64.b64encode(running.newest).decode(), "previous": text})
    with capture_logs() as logs:
        assert await keys(cluster, new).load()
    assert new.keys == known[:1]
    assert [(each["event"], each["log_level"]) for each in logs] == [("previous_key_ignored", "warning")]
    assert not await keys(cluster, running).load(), "a replica that knows the key goes on with it"
    assert running.keys == known
