"""The extender's server without the extender: reads every call as the real one does, and decides nothing.

python -m kgwe.bench.echo PORT
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any, cast

from kgwe.apps.scheduler.extender import LARGEST, ExtenderApp
from kgwe.apps.scheduler.metrics import Metrics
from kgwe.bench.loop import loop_factory
from kgwe.kube import extender
from kgwe.local.ports import LOOPBACK
from kgwe.telemetry import http, probes

if TYPE_CHECKING:
    from kgwe.kube.extender import Args


class Echo:
    """In the place of `Answers`: the first node, and no points for anybody."""

    def filter(self, args: Args) -> tuple[bytes, str]:
        return extender.one(args.names()[0]), "placed"

    def prioritize(self, args: Args) -> bytes:
        return args.scores([0] * len(args.names()))


async def serve(port: int) -> None:
    """Until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    metrics = Metrics()
    answers = cast("Any", Echo())
    app = probes.ProbeApp(metrics.registry, live=lambda: None, ready=lambda: None, others=ExtenderApp(answers, metrics))
    async with http.serving(app, http.Address(LOOPBACK, port), largest_body=LARGEST):
        await stop.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1])))
