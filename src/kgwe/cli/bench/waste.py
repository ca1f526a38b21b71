"""`kgwe bench waste`: judges simulated pods whose use is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe import terminal
from kgwe.cli.bench.command import INTERRUPTED, Json, complain, show
from kgwe.local.host import progress

app = App(
    name="waste",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench waste
  kgwe bench waste --source prometheus --seeds 20 --json
  kgwe bench waste --seeds 10 --data ../shared/data""",
)

_ABSENT = 2


@app.default
def run(
    *,
    seeds: int = 100,
    first_seed: int = 0,
    source: str = "embedded",
    pods: int = 10_000,
    gap_minutes: float = 15.0,
    rounds: int = 3,
    data: Annotated[Path | None, Parameter(negative="")] = None,
    json: Json = False,
) -> int:
    """Judge simulated pods whose use is known, through the text of the exporters and a metric source.

    Each seed has idle, idle-holding, bursty, busy and MIG pods, four sharers of an active and of an idle GPU, and gangs
    with an idle rank. Then nodes stop responding at random: a finding about a pod in such a gap is a mistake. The rule
    of the GPU Autoscaler (GPU_UTIL below 50 %, missing is zero) judges the same samples. Exits 1 if anything is wrong.

    Parameters
    ----------
    seeds
        Groups of pods with random use.
    first_seed
        Seed of the first group; other seeds are other pods and other gaps.
    source
        embedded: KGWE scrapes the exporters. prometheus: a real Prometheus serves the samples; needs promtool too.
    pods
        Pods of the speed test.
    gap_minutes
        Length of the part with gaps.
    rounds
        Rounds of the speed test; the best one counts.
    data
        Folder of published data with history/pod_gpu_duty_cycle.csv.gz. Default: $KGWE_DATA, or shared/data nearby.
    """
    from kgwe.bench.waste import benchmark as bench  # noqa: PLC0415 -- NumPy

    folder = bench.find_data(data)
    if data is not None and folder is None:
        terminal.write_error(f"kgwe: {data / bench.DUTY_FILE} is absent; name another folder with --data\n")
        return _ABSENT
    options = bench.Options(
        seeds=seeds,
        first_seed=first_seed,
        source=source,
        pods=pods,
        gap_minutes=gap_minutes,
        rounds=rounds,
        data=folder,
    )
    try:
        measured = bench.run(options, progress.for_stream())
    except KeyboardInterrupt:
        return INTERRUPTED
    show(measured, as_json=json)
    wrong, in_gaps = measured.metrics["wrong"], measured.metrics["gap_findings"]
    if wrong or in_gaps:
        return complain(f"{wrong} judgements are wrong, and {in_gaps} findings are about pods in a gap")
    return 0
