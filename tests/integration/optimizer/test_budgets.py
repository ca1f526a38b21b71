"""Budgets end to end: exceeded, throttled, notified, lifted in the next period; and the HTTP API for two users.

Scheduler and cost engine run in this process with their own rights, because their clock is moved past midnight.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
import time
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.support.clusters import clients
from tests.support.clusters.optimizer import EVENTS
from tests.support.fakes.pki import Authority
from tests.support.fakes.receivers import HttpReceiver, MailReceiver
from tests.support.patience import PATIENCE_S

from kgwe.apps.cost import settings as cost_settings
from kgwe.apps.cost.main import CostProcess
from kgwe.apps.scheduler.main import Scheduler
from kgwe.apps.scheduler.settings import Settings
from kgwe.kube.api import resources
from kgwe.local.cluster.cluster import service_account_kubeconfig
from kgwe.notify.settings import EmailSettings, NotifySettings, WebhookSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.support.clusters.optimizer import OptimizerBed

    from kgwe.kube.client.client import KubeClient
    from kgwe.rpc.tls import Files

pytestmark = pytest.mark.cluster

# $10 per second for the 8 GPUs of a node.
PRICES = "prices: [{instanceType: p5.48xlarge, onDemand: 36000}]\n"


class Clock:
    """The real time, moved."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s

    def pass_midnight(self) -> None:
        tomorrow = dt.datetime.fromtimestamp(self(), dt.UTC).date() + dt.timedelta(days=1)
        self.ahead_s += dt.datetime.combine(tomorrow, dt.time(), dt.UTC).timestamp() - self() + 1


def make_workload(name: str, seconds: int) -> dict[str, Any]:
    template = {
        "metadata": {"annotations": {"kgwe.nvidia.io/simulated-duration": "600s"}},
        "spec": {"containers": [{"name": "main", "image": "example.com/train:1"}]},
    }
    needs = {"count": 8, "gpuModel": "H100"}
    spec = {"gpuRequirements": needs, "workloadType": "Training", "podTemplate": template}
    return {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": name},
        "spec": spec | {"expectedDurationSeconds": seconds},
    }


@contextlib.asynccontextmanager
async def running(process: Any) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(process.run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


@contextlib.asynccontextmanager
async def connect(bed: OptimizerBed, account: str) -> AsyncIterator[KubeClient]:
    path = bed.folder / f"{account}.kubeconfig"
    async with clients.connect(service_account_kubeconfig(bed.cluster, "kgwe-system", account, path)) as client:
        yield client


def make_cost_settings(bed: OptimizerBed, prices: Path, files: Files, channels: NotifySettings) -> Any:
    return cost_settings.Settings(
        store=str(bed.folder / "cost.db"),
        price_files=(str(prices),),
        builtin_prices=False,
        split_method="gpu-only",
        tracking_seconds=1.0,
        grace_seconds=30,
        leader_elect=False,
        metrics_bind_address="127.0.0.1:0",
        api_bind_address="127.0.0.1:0",
        api_tls_cert_file=str(files.certificate),
        api_tls_key_file=str(files.key),
        notifications=channels,
    )


async def make_token(bed: OptimizerBed, name: str, role: str = "") -> str:
    """Return a token of a new ServiceAccount, with a role in the namespace of the test."""
    where = f"/api/v1/namespaces/{bed.namespace}/serviceaccounts"
    await bed.client.request("POST", where, body={"metadata": {"name": name}})
    if role:
        subject = {"kind": "ServiceAccount", "name": name, "namespace": bed.namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        body = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{bed.namespace}/rolebindings"
        await bed.client.request("POST", path, body=body)
    with bed.cluster.api() as api:
        return str(api.request_token(bed.namespace, name, expires_s=600))


async def test_a_budget_is_exceeded_throttles_and_is_lifted_in_the_next_period(
    bed: OptimizerBed, tmp_path: Path
) -> None:
    clock, prices = Clock(), tmp_path / "prices.yaml"
    prices.write_text(PRICES)
    files = Authority(tmp_path).issue("localhost", "localhost")
    receiver, mails = HttpReceiver(), MailReceiver()

    async def read(name: str) -> Any:
        return (await bed.client.get(resources.GPU_WORKLOAD, name, bed.namespace)).status

    async def budget() -> Any:
        return (await bed.client.get(resources.GPU_BUDGET, "daily", bed.namespace)).status

    async def until(holds: Callable[[], Any], what: str) -> Any:
        return await bed.until(holds, what)

    with receiver.serve():
        async with (
            mails.serve(),
            connect(bed, "kgwe-scheduler") as acting,
            connect(bed, "kgwe-cost") as counting,
        ):
            hook = WebhookSettings(name="hook", url=receiver.url)
            mail = EmailSettings(
                name="mail",
                host="127.0.0.1",
                port=mails.port,
                sender="kgwe@example.com",
                recipients=("finops@example.com",),
                start_tls=False,
            )
            notify = NotifySettings(channels=(hook, mail))
            engine = CostProcess(make_cost_settings(bed, prices, files, notify), counting, clock=clock)
            scheduler = Scheduler(
                Settings(
                    metrics_bind_address="127.0.0.1:0",
                    extender_bind_address="",
                    leader_elect=False,
                    status_settle_seconds=0.1,
                    price_files=(str(prices),),
                    builtin_prices=False,
                    split_method="gpu-only",
                ),
                acting,
                clock=clock,
            )
            spec = {"limit": "100", "period": "Daily", "enforcementPolicy": "Throttle", "alertThresholds": [0.5, 1.0]}
            known = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "GPUBudget"}
            body = known | {"metadata": {"name": "daily"}, "spec": spec}
            await bed.client.create(resources.GPU_BUDGET, body, bed.namespace)
            async with running(scheduler), running(engine):
                await bed.client.create(resources.GPU_WORKLOAD, make_workload("greedy", 5), bed.namespace)

                async def is_over() -> bool:
                    return (await budget()).exceededSince is not None

                await until(is_over, "the spend exceeds the limit")
                status = await read("greedy")
                assert status.phase == "Running"
                assert status.cost.ratePerHour == "36000.0000"

                await bed.client.create(resources.GPU_WORKLOAD, make_workload("late", 5), bed.namespace)

                async def is_refused() -> bool:
                    conditions = (await read("late")).conditions
                    return bool(conditions) and conditions[0].reason == "BudgetExceeded"

                await until(is_refused, "the budget refuses the second workload")
                assert f"Budget {bed.namespace}/daily" in (await read("late")).message
                assert "The next period begins at" in (await read("late")).message

                async def is_told() -> bool:
                    return len(receiver.requests) >= 2 and len(mails.mails) >= 2

                await until(is_told, "webhook and mail")
                assert any(b"BudgetExceeded" in each.body for each in receiver.requests)
                assert any(b"has reached 100 %" in each.content for each in mails.mails)

                async def has_events() -> bool:
                    events = await bed.client.list(EVENTS, bed.namespace)
                    reasons = {(each["regarding"]["kind"], each["reason"]) for each in events}
                    return {("GPUBudget", "BudgetExceeded"), ("GPUWorkload", "BudgetExceeded")} <= reasons

                await until(has_events, "Events on the budget and on the workload")
                assert {each.threshold for each in (await budget()).alerts} == {0.5, 1.0}

                await check_api(bed, engine.api_port, tmp_path / "ca.crt")

                await bed.client.delete(resources.GPU_WORKLOAD, "greedy", bed.namespace)
                clock.pass_midnight()

                async def runs() -> bool:
                    return bool((await read("late")).phase == "Running")

                await until(runs, "the next period lets it start")

                async def is_lifted() -> bool:
                    found = await budget()
                    return found.exceededSince is None and not found.waitingWorkloads

                await until(is_lifted, "the budget starts again")


async def check_api(bed: OptimizerBed, port: int, authority: Path) -> None:
    """The reader of the namespace sees its cost and its budget; the stranger sees neither."""
    reader, stranger = await make_token(bed, "reader", "view"), await make_token(bed, "stranger")
    context = ssl.create_default_context(cafile=str(authority))
    async with httpx2.AsyncClient(
        base_url=f"https://localhost:{port}", verify=context, trust_env=False, timeout=PATIENCE_S
    ) as client:

        async def ask(path: str, token: str) -> Any:
            return await client.get(path, headers={"Authorization": f"Bearer {token}"})

        found = (await ask("/api/v1/cost?window=1h", reader)).json()
        assert [line["name"] for line in found["lines"]] == [bed.namespace]
        assert float(found["total"]) > 0
        assert "books" not in found
        budgets = (await ask("/api/v1/budgets", reader)).json()["budgets"]
        assert [each["name"] for each in budgets] == ["daily"]
        hidden = (await ask("/api/v1/cost?window=1h", stranger)).json()
        assert (hidden["lines"], hidden["total"]) == ([], "0.000000")
        assert (await ask("/api/v1/budgets", stranger)).json() == {"budgets": []}
        assert (await ask(f"/api/v1/budgets/{bed.namespace}/daily", stranger)).status_code == 404
        assert (await ask("/api/v1/cost", "forged")).status_code == 401
        allocation = (await ask("/allocation/compute?window=1h&aggregate=namespace", reader)).json()
        assert list(allocation["data"][0]) == [bed.namespace]
