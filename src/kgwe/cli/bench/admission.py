"""`kgwe bench admission`: what admission adds to the creation of a pod, and faults of the webhook."""

from __future__ import annotations

from cyclopts import App

from kgwe.cli.bench.command import INTERRUPTED, Json, show, to_end
from kgwe.local.host import progress

app = App(
    name="admission",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe bench admission
  kgwe bench admission --pods 300 --rotations 0 --json""",
)


@app.default
def run(
    *,
    pods: int = 1000,
    in_flight: int = 50,
    fault_pods: int = 200,
    rotations: int = 10,
    per_second: float = 50.0,
    timeout_s: float = 600.0,
    json: Json = False,
) -> int:
    """Create pods on a local cluster with the policy, with the webhook, and with a webhook that does not work.

    Results are what the policy and the webhook add to the 99th percentile, and how many creations failed.

    Parameters
    ----------
    pods
        Pods of each namespace in each measured burst.
    in_flight
        Requests at a time.
    fault_pods
        Pods that are created with each fault.
    rotations
        How often certificates that are valid for a minute are replaced; 0 leaves this part out.
    per_second
        Pods per second meanwhile.
    timeout_s
        Timeout of each step, in seconds.
    """
    from kgwe.bench.admission import benchmark as bench  # noqa: PLC0415 -- loads NumPy and cryptography

    options = bench.Options(
        pods=pods,
        in_flight=in_flight,
        fault_pods=fault_pods,
        rotations=rotations,
        per_second=per_second,
        timeout_s=timeout_s,
    )
    measured = to_end(lambda: bench.run(options, progress.for_stream()))
    if measured is None:
        return INTERRUPTED
    show(measured, as_json=json)
    return 0
