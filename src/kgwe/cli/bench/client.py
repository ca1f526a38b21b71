"""`kgwe bench client`: compares KGWE's HTTP client with httpx2."""

from __future__ import annotations

from cyclopts import App

from kgwe.bench.client import benchmark as bench
from kgwe.cli.bench.command import INTERRUPTED, Json, show, to_end
from kgwe.local.host import progress

app = App(
    name="client",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench client
  kgwe bench client --loopback            without a cluster
  kgwe bench client --workers 1 --json""",
)


@app.default
def run(
    *,
    requests: int = 4000,
    workers: int = 16,
    events: int = 1000,
    repeat: int = 3,
    loopback: bool = False,
    json: Json = False,
) -> int:
    """Send the same requests with our HTTP client and with httpx2, and compare their CPU time and latency.

    Each worker reads and patches its own pod on a private local API server. Watch events come from a loopback server.
    The transports run alternately, in separate processes.

    Parameters
    ----------
    requests
        Requests per process.
    workers
        Concurrent requests.
    events
        Watch events per process.
    repeat
        Processes per transport; numbers are medians over them.
    loopback
        Send the requests to a loopback server over plain HTTP instead of an API server over TLS.
    """
    options = bench.Options(requests=requests, workers=workers, events=events, repeat=repeat, loopback=loopback)
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0
