"""`kgwe bench informer`: listing every pod of a big cluster."""

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
    """List every pod of a big cluster with our informer (protobuf, JSON), with lightkube, and into dictionaries.

    Wall and CPU time per pod and memory, on a private local cluster, each way in processes of its own.
    With 10,000 pods it takes a few minutes, most of them to create the pods.

    Parameters
    ----------
    pods
        Pods to create; nobody schedules them.
    page_size
        Pods per page of a list.
    lists
        Lists per process, after one to warm up.
    repeat
        Processes per way of listing, taken in turns; numbers are medians over all lists.
    """
    options = bench.Options(pods=pods, page_size=page_size, lists=lists, repeat=repeat)
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0
