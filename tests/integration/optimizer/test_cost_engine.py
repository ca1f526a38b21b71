"""The cost engine as a process: pods of known length cost what they should, also when it is killed in between."""

from __future__ import annotations

import calendar
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from tests.support.clusters.optimizer import PODS

from kgwe.cli.cost import ledger_access
from kgwe.cli.cost.cost import cost
from kgwe.costing.books import Dimension
from kgwe.costing.prices.book import Capacity, NodeKind, Quote
from kgwe.costing.reports.values import describe
from kgwe.kube.api import resources
from kgwe.store.ledger.ledger import Ledger
from kgwe.store.ledger.price_files import load_default_book
from kgwe.store.ledger.reader import LedgerReader

if TYPE_CHECKING:
    from tests.support.clusters.optimizer import OptimizerBed, Process

pytestmark = pytest.mark.cluster

COUNTED = "kgwe_gpu_cost_counted_until_timestamp_seconds"


def make_pod(name: str, node: str, gpus: int, seconds: int, **labels: str) -> dict[str, Any]:
    needs = {"requests": {"nvidia.com/gpu": str(gpus)}, "limits": {"nvidia.com/gpu": str(gpus)}}
    notes = {"kgwe.nvidia.io/simulated-duration": f"{seconds}s"}
    return {
        "metadata": {"name": name, "annotations": notes, "labels": labels},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "example.com/short:1", "resources": needs}],
        },
    }


def parse(text: str) -> int:
    return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))


def held_seconds(pod: dict[str, Any]) -> int:
    """The oracle: from the binding to the end, as the API shows it."""
    conditions = {each["type"]: each for each in pod["status"].get("conditions") or ()}
    bound = conditions.get("PodScheduled", {}).get("lastTransitionTime") or pod["status"]["startTime"]
    (status,) = pod["status"]["containerStatuses"]
    return parse(status["state"]["terminated"]["finishedAt"]) - parse(bound)


async def wait_ended(bed: OptimizerBed, name: str) -> dict[str, Any]:
    async def ended() -> Any:
        pod = await bed.client.get(PODS, name, bed.namespace)
        return pod if pod["status"].get("phase") == "Succeeded" else None

    return dict(await bed.until(ended, f"the end of {name}"))


async def wait_counted(bed: OptimizerBed, engine: Process, until_s: float) -> None:
    async def counted() -> bool:
        return await engine.metric(COUNTED) >= until_s

    await bed.until(counted, f"a count up to {until_s}")


async def find_node(bed: OptimizerBed, instance_type: str) -> str:
    for node in await bed.client.list(resources.NODE):
        if (
            node.metadata.labels.get("node.kubernetes.io/instance-type") == instance_type
            and not node.spec.unschedulable
        ):
            return str(node.metadata.name)
    raise AssertionError(f"the fleet has no {instance_type}")


async def test_pods_cost_their_length_and_a_kill_loses_nothing(bed: OptimizerBed, capsys: pytest.CaptureFixture[str]):
    node = await find_node(bed, "p5.48xlarge")
    engine = bed.cost_engine()
    await wait_counted(bed, engine, int(time.time()))
    for pod in (
        make_pod("short", node, 2, 2, team="vision"),
        make_pod("across", node, 1, 12, **{"gpu-cost-center": "cc-7"}),
    ):
        await bed.client.create(PODS, pod, bed.namespace)
    short = await wait_ended(bed, "short")
    await wait_counted(bed, engine, int(time.time()))
    engine.kill()
    await bed.client.create(PODS, make_pod("unseen", node, 4, 2), bed.namespace)
    unseen = await wait_ended(bed, "unseen")
    across = await wait_ended(bed, "across")
    engine = bed.cost_engine()
    last = max(
        parse(each["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]) for each in (unseen, across)
    )
    await wait_counted(bed, engine, max(last, int(time.time())) + 1)
    engine.kill()

    # 95 % of the node's price are the GPUs'. No pod requests CPUs or memory.
    quote = load_default_book().quote(NodeKind("p5.48xlarge", "us-east-1", capacity=Capacity.ON_DEMAND), 1)
    assert isinstance(quote, Quote)
    per_gpu = quote.micros_per_hour * 95 // 100 // 8
    with Ledger.open(str(bed.folder / "cost.db")) as ledger:
        reader = LedgerReader(ledger.database)
        end_s = int(ledger.load_state()["counted_until_s"])
        found = reader.read(end_s - 3600, end_s, Dimension.POD)
        teams = reader.read(end_s - 3600, end_s, Dimension.TEAM).lines
        centers = reader.read(end_s - 3600, end_s, Dimension.COST_CENTER).lines
    costs = {name.removeprefix(f"{bed.namespace}/"): sums.ticks for name, sums in found.lines.items()}
    assert costs == {
        "short": held_seconds(short) * 2 * per_gpu,
        "across": held_seconds(across) * per_gpu,
        "unseen": held_seconds(unseen) * 4 * per_gpu,
    }
    assert found.books.unbalanced == 0
    assert teams["vision"].ticks == costs["short"]
    assert centers["cc-7"].ticks == costs["across"]

    capsys.readouterr()
    store = str(bed.folder / "cost.db")
    cost(store=store, last="1h")
    told = capsys.readouterr().out
    assert "split method: fixed" in told
    assert bed.namespace in told
    (statement,) = ledger_access.load_statements(store, "1h", ("namespace",), bed.namespace)
    described = msgspec.json.decode(msgspec.json.encode(describe(statement)))
    assert described["splitMethod"] == "fixed"
    assert sum(line.micros for line in statement.lines) == round(sum(costs.values()) / 3600)
