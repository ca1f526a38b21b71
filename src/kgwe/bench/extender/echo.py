"""The extender's HTTP server without decisions: it parses each call like the real server and responds at once.

python -m kgwe.bench.extender.echo PORT [CERTIFICATES]
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kgwe.apps.scheduler.extender.http import ExtenderApp
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.bench.loop import loop_factory
from kgwe.kube.translate import extender_wire
from kgwe.local.cluster import extender as local_extender
from kgwe.local.cluster.certificates import Certificates
from kgwe.local.host.ports import LOOPBACK
from kgwe.telemetry import http, probes

if TYPE_CHECKING:
    from kgwe.kube.translate.extender_wire import Args


class Echo:
    """Replaces the handlers: returns the first node, and score 0 for each node."""

    def filter(self, args: Args) -> tuple[bytes, str]:
        return extender_wire.reply_with_node(args.names()[0]), "placed"

    def prioritize(self, args: Args) -> bytes:
        return args.reply_with_scores([0] * len(args.names()))


def build_app() -> probes.ProbeApp:
    """Return the application of the scheduler's extender, with the echo as its handlers."""
    metrics = Metrics()
    answers = cast("Any", Echo())
    return probes.ProbeApp(
        metrics.registry, live=lambda: None, ready=lambda: None, others=ExtenderApp(answers, metrics)
    )


async def serve(port: int, certificates: Path | None = None) -> None:
    """Serve until SIGTERM; with TLS if a directory with certificates of a local cluster is given."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app = build_app()
    tls = http.ReloadingContext(local_extender.server_files(Certificates(certificates))) if certificates else None
    async with http.serving(app, http.Address(LOOPBACK, port), tls=tls, limits=http.Limits(body=extender_wire.LARGEST)):
        await stop.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1]), *map(Path, sys.argv[2:])))
