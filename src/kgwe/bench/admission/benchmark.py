"""`kgwe bench admission`: the policy and the webhook on the creation of pods, and faults of the webhook.

Pods of two namespaces are created in turns in one burst: in one of them the policy (or the webhook) has a decision, in
the other it is not evaluated. Both see the same load, so the difference of their percentiles is what was added. A burst
saturates a small machine, where a percentile is mostly waiting for a processor; so the same is measured at a rate. Then
the webhook is killed, gets a wrong authority, an expired certificate, a server that answers garbage or not at all, and
at last certificates of a minute that are replaced all the time. No creation may fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.admission import pods, webhooks
from kgwe.bench.cluster import clusters
from kgwe.bench.loop import loop_factory
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.local.demo import install
from kgwe.local.toolchain import build

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kgwe.bench.admission.pods import Burst
    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.progress import Progress, Step

_SIZED: Final = "bench-sized"
_PLAIN: Final = webhooks.EXEMPT
_BOTH: Final = (_PLAIN, _SIZED)
_MEDIAN: Final = 50
_POLICY: Final = "kgwe-rightsizing"
_ROTATING: Final = {
    "KGWE_WEBHOOK_CERTIFICATE_SECONDS": "60",
    "KGWE_WEBHOOK_AUTHORITY_SECONDS": "60",
    # Of 90 s from the backdated start to the end, 48 s are left 12 s after the start.
    "KGWE_WEBHOOK_RENEW_AT": "0.6",
    "KGWE_WEBHOOK_ANNOUNCE_SECONDS": "4",
    "KGWE_WEBHOOK_CHECK_SECONDS": "0.5",
}
_ISSUED: Final = 'kgwe_certificates_issued_total{name="kgwe-webhook"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    pods: int = 1000
    in_flight: int = 50
    fault_pods: int = 200
    rotations: int = 10
    per_second: float = 50.0
    timeout_s: float = 600.0

    def check(self) -> None:
        """Raise Permanent for a size that makes no sense."""
        if min(self.pods, self.in_flight, self.fault_pods) < 1 or self.rotations < 0 or self.per_second <= 0:
            raise errors.Permanent("--pods, --in-flight, --fault-pods and --per-second must be above 0")


def run(options: Options, progress: Progress) -> report.Report:
    """Measure on a private cluster."""
    options.check()
    clusters.sweep()
    found = build.ensure_binaries(progress)
    machine = report.examine_machine(kubernetes=clusters.read_version(found))
    with (
        clusters.private_cluster(clusters.name_of("admission"), found, progress) as cluster,
        progress.step("Admission") as step,
        asyncio.Runner(loop_factory=loop_factory()) as runner,
    ):
        metrics = runner.run(_measure(cluster, options, step))
    params = {"pods": options.pods, "in_flight": options.in_flight, "rotations": options.rotations}
    return report.Report("admission", params, metrics, machine)


async def _measure(cluster: LocalCluster, options: Options, step: Step) -> dict[str, Any]:
    async with KubeClient.connect(cluster.kubeconfig) as client:
        await install.install(client)
        for name in _BOTH:
            await client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
        await client.create(resources.RIGHTSIZING_DECISION, pods.build_decisions(), _SIZED)
        bench = _Bench(client, cluster, options, step)
        metrics = await bench.measure_policy()
        await bench.remove_policy()
        metrics |= await bench.measure_webhook()
        metrics |= await bench.break_webhook()
        if options.rotations:
            metrics |= await bench.rotate()
        metrics["failed_creates"] = bench.failed
        return metrics


class _Bench:
    def __init__(self, client: KubeClient, cluster: LocalCluster, options: Options, step: Step) -> None:
        self._client = client
        self._cluster = cluster
        self._options = options
        self._step = step
        self._folder: Path = cluster.directory / "admission"
        self.failed = 0

    # --- speed ------------------------------------------------------------------------------------------

    async def measure_policy(self) -> dict[str, Any]:
        self._step.update("policy")
        await self._until_changed()
        return await self._compare_both("policy")

    async def remove_policy(self) -> None:
        for kind in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
            await self._client.request("DELETE", f"/apis/admissionregistration.k8s.io/v1/{kind}/{_POLICY}")

    async def measure_webhook(self) -> dict[str, Any]:
        self._step.update("webhook")
        async with self._webhook("speed", {}):
            return await self._compare_both("webhook")

    async def _compare_both(self, name: str) -> dict[str, Any]:
        burst = await self._burst_both()
        steady = await self._create_at_rate()
        return self._compare(name, burst) | self._compare(f"{name}_steady", steady)

    async def _create_at_rate(self) -> dict[str, Burst]:
        end = time.monotonic() + 2 * self._options.pods / self._options.per_second
        found = await pods.create_steadily(
            self._client,
            _BOTH,
            per_second=self._options.per_second,
            is_over=lambda: time.monotonic() >= end,
            timeout_s=self._options.timeout_s,
        )
        await self._count(found)
        return found

    async def _burst_both(self) -> dict[str, Burst]:
        options = self._options
        # The first pods pay for connections and caches.
        await pods.create_many(self._client, _BOTH, pods=options.in_flight, in_flight=options.in_flight)
        found = await pods.create_many(self._client, _BOTH, pods=options.pods, in_flight=options.in_flight)
        await self._count(found)
        return found

    @staticmethod
    def _compare(name: str, found: dict[str, Burst]) -> dict[str, Any]:
        plain, sized = found[_PLAIN], found[_SIZED]
        return {
            f"{name}_added_p99_ms": round(sized.percentile_ms() - plain.percentile_ms(), 3),
            f"{name}_added_p50_ms": round(sized.percentile_ms(_MEDIAN) - plain.percentile_ms(_MEDIAN), 3),
            f"{name}_p99_ms": round(sized.percentile_ms(), 3),
            f"{name}_plain_p99_ms": round(plain.percentile_ms(), 3),
            f"{name}_changed_share": round(sized.changed / max(len(sized.seconds), 1), 4),
        }

    # --- faults -----------------------------------------------------------------------------------------

    async def break_webhook(self) -> dict[str, Any]:
        """Create pods while the webhook does not work; return how many of each burst were changed and failed."""
        found: dict[str, Any] = {}
        async with self._webhook("killed", {}) as process:
            found["killed"] = await self._burst(self._options.pods, process.kill)
        found["dead"] = await self._burst()
        good, bundle = webhooks.make_certificates(self._folder / "good")
        expired, expired_bundle = webhooks.make_certificates(self._folder / "expired", is_expired=True)
        for name, files, trusted, answer, count in (
            ("wrong_ca", good, expired_bundle, webhooks.answer_garbage, self._options.fault_pods),
            ("expired", expired, expired_bundle, webhooks.answer_garbage, self._options.fault_pods),
            ("garbage", good, bundle, webhooks.answer_garbage, self._options.fault_pods),
            ("slow", good, bundle, webhooks.answer_never, self._options.in_flight),
        ):
            self._step.update(name)
            async with webhooks.serving(files, answer) as port:
                await webhooks.configure(self._client, port, trusted)
                await asyncio.sleep(1.0)  # the API server notices
                found[name] = await self._burst(count)
        await webhooks.remove(self._client)
        return {"faults": found}

    async def _burst(self, count: int = 0, at_half: Any = lambda: None) -> dict[str, int]:
        options = self._options
        made = await pods.create_many(
            self._client, (_SIZED,), pods=count or options.fault_pods, in_flight=options.in_flight, at_half=at_half
        )
        await self._count(made)
        burst = made[_SIZED]
        return {"created": len(burst.seconds), "failed": burst.failed, "changed": burst.changed}

    async def rotate(self) -> dict[str, Any]:
        """Create pods at a rate while certificates are replaced; each pod must be changed."""
        self._step.update("rotations")
        rotated = 0

        async def follow(process: webhooks.WebhookProcess) -> None:
            nonlocal rotated
            while True:
                rotated = int(await process.read_metric(_ISSUED)) - 1
                await asyncio.sleep(0.5)

        async with self._webhook("rotation", _ROTATING) as process:
            watching = asyncio.create_task(follow(process))
            bursts = await pods.create_steadily(
                self._client,
                (_SIZED,),
                per_second=self._options.per_second,
                is_over=lambda: rotated >= self._options.rotations,
                timeout_s=self._options.timeout_s,
            )
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        await self._count(bursts)
        burst = bursts[_SIZED]
        created = len(burst.seconds)
        return {
            "rotations": rotated,
            "rotation_creates": created,
            "rotation_errors": burst.failed + created - burst.changed,
        }

    # --- helpers ----------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _webhook(self, name: str, settings: dict[str, str]) -> AsyncIterator[webhooks.WebhookProcess]:
        """The real process, once pods are changed by it."""
        for secret in ("kgwe-ca", "kgwe-webhook-tls"):
            with contextlib.suppress(errors.NotFound):
                await self._client.delete(resources.SECRET, secret, "kgwe-system")
        process = webhooks.WebhookProcess(self._cluster.kubeconfig, self._folder / name, settings)
        try:
            await webhooks.configure(self._client, process.port)
            await process.wait_ready(self._options.timeout_s)
            await self._until_changed()
            yield process
        finally:
            process.kill()

    async def _until_changed(self) -> None:
        async with asyncio.timeout(self._options.timeout_s):
            while True:
                burst = pods.Burst()
                await pods.create_pod(self._client, _SIZED, burst)
                if burst.changed:
                    return
                await asyncio.sleep(0.2)

    async def _count(self, found: dict[str, Burst]) -> None:
        self.failed += sum(each.failed for each in found.values())
        await pods.delete_pods(self._client, _BOTH, self._options.timeout_s)
