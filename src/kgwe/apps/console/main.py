"""`kgwe console`: the process. It watches the cluster, and serves the API and the pages."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import signal
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from kgwe import errors
from kgwe.apps import background
from kgwe.apps.console.api import Sources, make_console_api
from kgwe.apps.console.cluster_watch import ClusterWatch
from kgwe.apps.console.sessions import Sessions
from kgwe.apps.console.site import BUILT, Site
from kgwe.httpapi import server
from kgwe.httpapi.authentication import TokenAuthenticator
from kgwe.httpapi.authorization import AccessReviewer
from kgwe.httpapi.ledger_connection import LedgerConnection
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.store.ledger.ledger import Ledger
from kgwe.telemetry import http, logs, probes, tls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kgwe.apps.console.settings import Settings
    from kgwe.apps.console.work_routes import Answers
    from kgwe.costing.prices.book import PriceBook
    from kgwe.optimizerapi.client import OptimizerClient

log = structlog.get_logger(__name__)

FIELD_MANAGER: Final = "kgwe-console"
_OWN_VALIDITY: Final = dt.timedelta(days=365)
_AUTHENTICATION: Final = ("kube-system", "extension-apiserver-authentication")


class ConsoleProcess:
    """One console."""

    def __init__(self, settings: Settings, client: KubeClient, answers: Answers) -> None:
        self.settings = settings
        self._client = client
        self._answers = answers
        self.watch = ClusterWatch(client)
        self.sessions = Sessions(
            idle_s=settings.session_idle_seconds,
            longest_s=settings.session_seconds,
            code_s=settings.sign_in_seconds,
        )
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    async def run(
        self, stop: asyncio.Event, on_ports: Callable[[int, int], None] = lambda _api, _metrics: None
    ) -> None:
        """Serve until `stop` is set. `on_ports`: called with the ports of the pages and of metrics."""
        settings = self.settings
        address = http.Address.parse(settings.bind_address)
        probe = probes.ProbeApp(self.registry, live=lambda: None, ready=self.watch.describe_unsynced)
        async with contextlib.AsyncExitStack() as stack:
            metrics = await stack.enter_async_context(
                http.serving(probe, http.Address.parse(settings.metrics_bind_address))
            )
            files = stack.enter_context(self._open_files(address))
            authority = await self._read_authority(stack) if files is not None else None
            await self.watch.prepare()
            ledger = LedgerConnection(settings.cost_store)
            stack.callback(ledger.close)
            sources = Sources(
                self.watch,
                self._answers,
                ledger.open if settings.cost_store else _refuse_costs,
                self._open_ledger,
                await self._open_optimizer(stack),
                self._load_prices(),
                settings.record_directory,
            )
            site = Site(Path(settings.assets) if settings.assets else BUILT, secure=files is not None)
            console = make_console_api(
                sources,
                TokenAuthenticator(self._client),
                AccessReviewer(self._client),
                self.sessions,
                secure=files is not None,
                others=site.list_routes(),
            )
            work = [*(informer.run() for informer in self.watch.informers), console.hub.run()]
            await stack.enter_async_context(background.run_in_background(work))
            port = await stack.enter_async_context(
                server.serving(console.api.asgi, address, files, client_authority=authority)
            )
            log.info("console_started", port=port, metrics_port=metrics, pages=site.is_built)
            on_ports(port, metrics)
            await stop.wait()
            console.hub.close()
        log.info("console_stopped")

    @contextlib.contextmanager
    def _open_files(self, address: http.Address) -> Iterator[tls.Files | None]:
        """Yield the certificate of the server; one of its own if the settings name none."""
        settings = self.settings
        if settings.insecure_http:
            server.check_address(address, None, "bindAddress")
            yield None
        elif settings.tls_cert_file:
            yield tls.Files(Path(settings.tls_cert_file), Path(settings.tls_key_file))
        else:
            with tempfile.TemporaryDirectory(prefix="kgwe-console-") as directory:
                yield make_own_files(Path(directory), settings.tls_hosts)

    async def _read_authority(self, stack: contextlib.AsyncExitStack) -> Path | None:
        """Return a file with the authority of client certificates; None if the cluster does not say it."""
        namespace, name = _AUTHENTICATION
        try:
            found = await self._client.get(resources.CONFIG_MAP, name, namespace)
        except errors.KgweError as exc:
            log.warning("client_certificates_unavailable", error=str(exc))
            return None
        text = found.data.get("client-ca-file", "")
        if not text:
            return None
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kgwe-console-"))
        path = Path(directory) / "client-ca.crt"
        path.write_text(text, encoding="ascii")
        return path

    async def _open_optimizer(self, stack: contextlib.AsyncExitStack) -> OptimizerClient | None:
        if not self.settings.optimizer_address:
            return None
        from kgwe.optimizerapi.client import OptimizerClient  # noqa: PLC0415 - loads gRPC
        from kgwe.optimizerapi.connect import make_access  # noqa: PLC0415 - same

        certificates = self.settings.optimizer_certificates
        access = make_access(self.settings.optimizer_address, Path(certificates) if certificates else None)
        return await stack.enter_async_context(OptimizerClient(access))

    def _open_ledger(self) -> Ledger:
        return Ledger.open(self.settings.cost_store, read_only=True) if self.settings.cost_store else _refuse_costs()

    def _load_prices(self) -> PriceBook:
        from kgwe.store.ledger.price_files import load_book  # noqa: PLC0415 - loads SQLAlchemy

        return load_book(self.settings.price_paths)


def _refuse_costs() -> NoReturn:
    raise errors.Transient("no cost ledger is configured: set costStore of the console (see docs/console.md)")


def make_own_files(directory: Path, hosts: tuple[str, ...]) -> tls.Files:
    """Return a certificate that a new authority signed; browsers warn about it."""
    from kgwe.certificates import authority  # noqa: PLC0415 - loads cryptography

    now = dt.datetime.now(dt.UTC)
    issuer = authority.make_authority("kgwe-console", now, _OWN_VALIDITY)
    pair = authority.issue(issuer, "kgwe-console", hosts, now, _OWN_VALIDITY)
    certificate, key = directory / "tls.crt", directory / "tls.key"
    certificate.write_bytes(pair.certificate)
    key.touch(mode=0o600)
    key.write_bytes(pair.key)
    digest = hashlib.sha256(ssl.PEM_cert_to_DER_cert(pair.certificate.decode())).hexdigest()
    log.warning("console_signs_its_own_certificate", sha256=digest, hosts=hosts)
    return tls.Files(certificate, key)


async def serve(settings: Settings, kubeconfig: Path | None, answers: Answers) -> None:
    """Run the console until SIGTERM or SIGINT."""
    logs.configure(level=settings.log_level)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with KubeClient.connect(kubeconfig, field_manager=FIELD_MANAGER) as client:
        await ConsoleProcess(settings, client, answers).run(stop)
