"""The windows that a metric source makes of the simulated exporters: KGWE's own scraping, or a real Prometheus.

Prometheus cannot scrape in simulated time. Its storage is filled by `promtool tsdb create-blocks-from openmetrics` with
the same samples instead, and then it is queried as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx2

from kgwe import errors
from kgwe.hardware.dcgm import metrics
from kgwe.local.host import ports
from kgwe.local.prometheus import binary, server
from kgwe.metrics.embedded import EmbeddedSource, ScrapeSettings
from kgwe.metrics.fields import DCGM
from kgwe.metrics.prometheus import PrometheusSource
from kgwe.metrics.prometheus_api import PrometheusSettings
from kgwe.metrics.targets import StaticTargets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from kgwe.bench.waste.fleet import SimulatedExporters, Timeline
    from kgwe.model.usage.window import UsageWindow

    #: Called at the end of every window.
    Judge = Callable[[float, UsageWindow], None]

_WANTED: Final = [(number, field) for number, field in enumerate(metrics.Field) if field.value[0] in DCGM]


async def judge_embedded(exporters: SimulatedExporters, timeline: Timeline, judge: Judge) -> None:
    """Scrape the exporters in simulated time and judge every window."""
    clock = [timeline.start_s]

    def respond(request: httpx2.Request) -> httpx2.Response:
        body = exporters.respond(request.url.host, clock[0])
        return httpx2.Response(503) if body is None else httpx2.Response(200, content=body)

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(respond))
    settings = ScrapeSettings(interval_s=timeline.scrape_s, keep_s=2 * timeline.window_s)
    targets = StaticTargets(f"http://{node}/metrics" for node in exporters.meters)
    source = EmbeddedSource(targets, client, settings, now=lambda: clock[0])
    ends = iter([timeline.clean_end_s, *timeline.ends])
    end_s = next(ends)
    for at_s in timeline.scrapes:
        clock[0] = at_s
        await source.scrape_round()
        if at_s + timeline.scrape_s > end_s:
            judge(end_s, await source.read_window(end_s, timeline.window_s, timeline.step_s))
            end_s = next(ends, float("inf"))
    await source.close()


async def judge_prometheus(exporters: SimulatedExporters, timeline: Timeline, judge: Judge) -> None:
    """Fill the storage of a real Prometheus, query it and judge every window."""
    prometheus, promtool = _find_programs()
    with tempfile.TemporaryDirectory(prefix="kgwe-waste-") as name:
        folder = Path(name)
        await asyncio.to_thread(_fill_storage, promtool, folder, exporters, timeline)
        async with _serve(prometheus, folder) as url:
            source = PrometheusSource(PrometheusSettings(url))
            try:
                await _judge_windows(source, timeline, judge)
            finally:
                await source.close()


async def _judge_windows(source: PrometheusSource, timeline: Timeline, judge: Judge) -> None:
    for end_s in (timeline.clean_end_s, *timeline.ends):
        window = await source.read_window(end_s, timeline.window_s, timeline.step_s)
        if end_s == timeline.clean_end_s and (problem := source.problem()):
            raise errors.Transient(f"Prometheus did not return the samples: {problem}")
        judge(end_s, window)


def _find_programs() -> tuple[Path, Path]:
    found = binary.find_prometheus()
    beside = [found.path.with_name("promtool")] if found else []
    promtool = [*beside, *(Path(name) for name in [shutil.which("promtool")] if name)]
    for path in promtool:
        if found is not None and path.is_file():
            return found.path, path
    raise errors.NotFound("there is no prometheus with promtool; install Debian's package prometheus")


def _fill_storage(promtool: Path, folder: Path, exporters: SimulatedExporters, timeline: Timeline) -> None:
    text = folder / "samples.om"
    # A family must be in one piece, so each has a file of its own first.
    with contextlib.ExitStack() as stack:
        parts = [stack.enter_context((folder / f"{field.name}.part").open("w")) for _, field in _WANTED]
        for part, (_, field) in zip(parts, _WANTED, strict=True):
            part.write(f"# TYPE {field.value[0]} gauge\n")
        for lines in _render(exporters, timeline):
            for part, line in zip(parts, lines, strict=True):
                part.write(line)
    with text.open("wb") as out:
        for _, field in _WANTED:
            with (folder / f"{field.name}.part").open("rb") as part_file:
                shutil.copyfileobj(part_file, out)
        out.write(b"# EOF\n")
    command = [str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise errors.Permanent(f"promtool cannot read the samples: {(done.stderr or done.stdout).strip()[-400:]}")


def _render(exporters: SimulatedExporters, timeline: Timeline) -> Iterator[list[str]]:
    """Return the lines of each scrape of a node, one text per wanted family."""
    for at_s in timeline.scrapes:
        for node in exporters.meters:
            rows = exporters.read(node, at_s)
            if rows is not None:
                yield [
                    "".join(f"{field.value[0]}{labels}{values[number]} {at_s:.3f}\n" for labels, values in rows)
                    for number, field in _WANTED
                ]


@contextlib.asynccontextmanager
async def _serve(program: Path, folder: Path) -> AsyncIterator[str]:
    listen = f"{ports.LOOPBACK}:{ports.allocate(('prometheus',))['prometheus']}"
    process = _start(program, folder, listen)
    try:
        await asyncio.to_thread(server.await_ready, f"http://{listen}")
        yield f"http://{listen}"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def _start(program: Path, folder: Path, listen: str) -> subprocess.Popen[bytes]:
    configuration = folder / "prometheus.yml"
    configuration.write_text("scrape_configs: []\n")
    command = server.make_command(program, configuration, folder / "data", listen)
    with (folder / "prometheus.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)
