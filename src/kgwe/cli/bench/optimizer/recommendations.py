"""`kgwe bench recommendations`: follows the optimizer's advice on a local cluster and meters the saving."""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, complain, show, to_end
from kgwe.local.host import progress
from kgwe.telemetry import logs

app = App(
    name="recommendations",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench recommendations --count 14
  kgwe bench recommendations --json""",
)


@app.default
def run(
    *, count: int = 100, room: float = 1.0, meter_s: float = 60.0, timeout_s: float = 300.0, json: Json = False
) -> int:
    """Follow every recommendation for wasteful workloads at once, and compare the metered saving with the promise.

    Workloads waste GPUs in seven ways on a private local cluster with simulated GPUs. The optimizer judges one minute
    of use. Each workload is then suspended, or created again with the recommended devices.

    Parameters
    ----------
    count
        Wasteful workloads.
    room
        Part of the advised devices that the fleet has. With less than 1, some workloads get no recommendation.
    meter_s
        Time for which costs are metered, before and after.
    timeout_s
        Timeout of each step, in seconds.
    """
    from kgwe.bench.advice import benchmark as bench  # noqa: PLC0415 -- what it starts costs other benchmarks time

    logs.configure(level="error")
    options = bench.Options(count=count, room=room, meter_s=meter_s, timeout_s=timeout_s)
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    found = measured.metrics
    if found["recommended"] < count and room == 1:
        return complain(f"{count - found['recommended']} of {count} workloads got no recommendation")
    if found["not_started"]:
        return complain(
            f"{len(found['not_started'])} of {found['resized']} workloads did not start with the new devices"
        )
    if found["not_verified"]:
        return complain(f"{len(found['not_verified'])} of {found['applied']} recommendations were not verified")
    return 0
