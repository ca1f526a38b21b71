"""The informer at the size of a big cluster; `kgwe bench informer` tells what it costs."""

from __future__ import annotations

import asyncio
import collections

import msgspec
import pytest
from tests.support.clusters import clients

from kgwe.bench import report
from kgwe.bench.nodes import informer as informer_bench
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer
from kgwe.local.host.progress import Silent

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

PODS = 10_000


async def test_ten_thousand_pods_are_listed_followed_and_listed_again_without_a_word_too_many(
    private_cluster, watching
):
    cluster = await asyncio.to_thread(private_cluster)
    async with clients.connect(cluster.kubeconfig) as client:
        await informer_bench.create_pods(client, PODS)
        informer = Informer(client, resources.POD)
        async with watching(informer) as seen:
            await seen.synced(within_s=120)
            assert len(informer.store) == PODS
            assert len(seen.changes) == len({change.key for change in seen.changes}) == PODS
            assert all(change.old is None for change in seen.changes)
            seen.changes.clear()

            # While some go and some change, list again and again: every change is told once, whoever saw it first.
            async def disturb(index: int) -> None:
                meta = informer_bench.build_pod(index)["metadata"]
                if index % 2:
                    await client.delete(resources.POD, meta["name"], "default", grace_s=0)
                else:
                    await client.patch(resources.POD, meta["name"], {"metadata": {"labels": {"x": "y"}}}, "default")

            async with asyncio.TaskGroup() as group:
                for index in range(200):
                    group.create_task(disturb(index))
                for _ in range(3):
                    group.create_task(informer.resync())
            async with asyncio.timeout(120):
                await informer.resync()

            assert len(informer.store) == PODS - 100
            words = collections.defaultdict(list)
            for word in seen.words:
                what, name = word.split()
                words[name].append(what)
            for index in range(200):
                told = words.pop(informer_bench.build_pod(index)["metadata"]["name"])
                # A deletion may be seen in two steps: marked, then done.
                assert told in ([["gone"], ["changed", "gone"]] if index % 2 else [["changed"]])
            assert not words


def test_the_benchmark_runs_and_says_what_it_promises():
    measured = informer_bench.run(informer_bench.Options(pods=600, lists=1, repeat=1), Silent())

    line = report.to_json(measured)
    told = msgspec.json.decode(line)
    assert told["name"] == "informer"
    assert {way: numbers["pods"] for way, numbers in told["metrics"]["ways"].items()} == {
        "informer": 600,
        "json": 600,
        "lightkube": 600,
        "dicts": 600,
    }
    for key in ("us_per_pod", "cpu_us_per_pod", "rss_mb", "lightkube_us_per_pod", "cpu_ratio"):
        assert told["metrics"][key] > 0
