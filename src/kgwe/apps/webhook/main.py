"""`kgwe webhook`: the process. Every replica answers from memory; none is the leader."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.apps import background, metrics_access
from kgwe.apps.webhook.handler import AdmissionHandler
from kgwe.apps.webhook.keeper import CertificateKeeper
from kgwe.apps.webhook.metrics import Metrics
from kgwe.kube.api import resources
from kgwe.kube.api.kgwe import rightsizingdecision, seatrevocation
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.informer import Informer
from kgwe.telemetry import http, logs, probes
from kgwe.telemetry.tls import Files, ReloadingContext

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator

    from kgwe.apps.webhook.settings import Settings
    from kgwe.kube.api.kgwe.rightsizingdecision import RightsizingDecision, RightsizingDecisionSpec
    from kgwe.kube.api.kgwe.seatrevocation import SeatRevocation

log = structlog.get_logger(__name__)

FIELD_MANAGER: Final = "kgwe-webhook"
_FILE_PAUSE_S: Final = 1.0
# An API server has up to 600 requests in flight, each on a connection of its own. After a change of the caBundle it
# keeps idle connections of before for 90 s. A review holds a whole pod, which may have 3 MiB.
LIMITS: Final = http.Limits(body=8 << 20, connections=1900, per_peer=900)


class WebhookProcess:
    """One replica of the webhook."""

    def __init__(self, settings: Settings, client: KubeClient) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._decisions: Informer[RightsizingDecision] = Informer(client, resources.RIGHTSIZING_DECISION)
        self._revocations: Informer[SeatRevocation] = Informer(client, resources.SEAT_REVOCATION)
        self._metrics_guard = metrics_access.make_guard(client)
        self._keeper = CertificateKeeper(client, settings, self.metrics) if settings.manage_certificates else None
        self.handler = AdmissionHandler(
            find_decisions=self._find_decisions,
            list_revoked=self._list_revoked,
            exempt=settings.exempt_namespaces,
            metrics=self.metrics,
        )

    def problem(self) -> str | None:
        """Return why this replica is not ready; it answers all the same, and changes nothing that it does not know."""
        waiting = [each.resource.plural for each in (self._decisions, self._revocations) if not each.has_synced]
        return f"not read yet: {', '.join(waiting)}" if waiting else None

    async def run(self, stop: asyncio.Event, on_port: Callable[[int], None] = lambda _port: None) -> None:
        """Answer until `stop` is set. `on_port`: called with the port of the webhook."""
        app = probes.ProbeApp(self.metrics.registry, live=lambda: None, ready=self.problem, guard=self._metrics_guard)
        async with http.serving(app, http.Address.parse(self.settings.metrics_bind_address)) as metrics_port:
            tls = await self._wait_certificates()
            address = http.Address.parse(self.settings.bind_address)
            async with (
                background.run_in_background(self._list_background_tasks()),
                http.serving(self.handler, address, tls=tls, limits=LIMITS) as port,
            ):
                log.info("webhook_started", port=port, metrics_port=metrics_port)
                on_port(port)
                await stop.wait()
        log.info("webhook_stopped")

    async def _wait_certificates(self) -> ReloadingContext:
        """Return the context once there are certificates: our own, or those that another system writes."""
        if self._keeper is not None:
            await self._keeper.wait_first()
        settings, folder = self.settings, Path(self.settings.cert_dir)
        authority = Path(settings.client_ca_file) if settings.client_ca_file else None
        files = Files(folder / "tls.crt", folder / "tls.key", authority, frozenset(settings.client_names))
        while True:
            try:
                return ReloadingContext(files)
            except errors.Permanent as exc:
                log.warning("certificates_awaited", error=str(exc))
                await asyncio.sleep(_FILE_PAUSE_S)

    def _list_background_tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        yield self._decisions.run()
        yield self._revocations.run()
        if self._keeper is not None:
            yield self._keeper.run()

    def _find_decisions(self, namespace: str) -> RightsizingDecisionSpec | None:
        found = self._decisions.store.get(f"{namespace}/{rightsizingdecision.NAME}")
        return None if found is None else found.spec

    def _list_revoked(self) -> Collection[str]:
        found = self._revocations.store.get(seatrevocation.NAME)
        return found.spec.jobs if found is not None else ()


async def serve(settings: Settings, kubeconfig: Path | None) -> None:
    """Run one replica until SIGTERM or SIGINT."""
    logs.configure(level=settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager=FIELD_MANAGER) as client:
        await WebhookProcess(settings, client).run(stop)
