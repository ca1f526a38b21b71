"""`kgwe bench informer`: measures how long the list of all pods of a large cluster takes."""

from __future__ import annotations

from cyclopts import App

from kgwe.bench.nodes import informer as bench
from kgwe.cli.bench.command import INTERRUPTED, Json, show, to_end
from kgwe.local.host import progress

app = App(
    name="informer",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench informer
  kgwe bench informer --pods 10000 --json""",
)


@app.default
def run(
    *,
    pods: int = 10_000,
    page_size: int = 500,
    lists: int = 3,
    repeat: int = 3,
    json: Json = False,
) -> int:
    """List all pods of a large cluster with KGWE's informer (protobuf, JSON), with lightkube, and into dictionaries.

    It measures wall time, CPU time and memory on a private local cluster. Each method runs in separate processes.
    10,000 pods take a few minutes, most of it to create the pods.

    Parameters
    ----------
    pods
        Pods to create. They are not scheduled.
    page_size
        Pods per page of a list.
    lists
        Lists per process, after one warm-up list.
    repeat
        Processes per method, run alternately. Results are medians over all lists.
    """
    options = bench.Options(pods=pods, page_size=page_size, lists=lists, repeat=repeat)
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0
