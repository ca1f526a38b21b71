"""`kgwe drain`: which pods leave a node or a leaf, where they go, and which workloads are affected."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.kube.api import timestamp
from kgwe.kube.client.client import KubeClient
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from kgwe.apps.autoscaler.drain_plan import DrainPlan

app = App(
    name="drain",
    help="""Show which pods must leave a node or a leaf, where they have a place, and which workloads stop.

It changes nothing. Exit code 1 if a pod has no place elsewhere. Then add nodes first, or choose another time.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe drain h100-0007
  kgwe drain leaf-dgx-h100-003 --by 2026-11-20T22:00:00Z
  kgwe drain h100-0007 --by 2h -o json""",
)

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@app.default
def drain(
    target: str,
    *,
    by: str | None = None,
    output: Annotated[Literal["table", "json", "yaml"], Parameter(name=["--output", "-o"])] = "table",
    kubeconfig: Annotated[Path | None, Parameter(env_var="KUBECONFIG")] = None,
) -> int:
    """Plan the drain of a node, or of all nodes of a network domain.

    Parameters
    ----------
    target
        Name of a node, or of a leaf, spine or other domain of the network.
    by
        Deadline: a time such as 2026-11-20T22:00:00Z, or a time from now such as 2h.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig file.
    """
    from kgwe.apps.autoscaler.drain_plan import DrainQuestion, format_plan, plan_drain  # noqa: PLC0415 - loads NumPy
    from kgwe.cluster import offline  # noqa: PLC0415 - same

    logs.configure(level="error")
    now_s = time.time()
    deadline_s = None if by is None else parse_deadline(by, now_s)

    async def ask() -> DrainPlan:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-drain") as client:
            return plan_drain(DrainQuestion(await offline.read(client), target, deadline_s, now_s))

    found = asyncio.run(ask())
    if output == "json":
        terminal.write(msgspec.json.format(msgspec.json.encode(found)).decode() + "\n")
    elif output == "yaml":
        terminal.write(msgspec.yaml.encode(found).decode())
    else:
        terminal.write(format_plan(found))
    return 1 if found.stranded else 0


def parse_deadline(text: str, now_s: float) -> float:
    """Return a deadline as Unix time; Permanent for a text that is neither a time nor a duration."""
    number, unit = text[:-1], text[-1:]
    if unit in _UNITS and number.isdecimal():
        return now_s + int(number) * _UNITS[unit]
    try:
        found = timestamp.parse(text)
    except ValueError:
        raise errors.Permanent(
            f"--by: {text!r} is not a time such as 2026-11-20T22:00:00Z, nor one such as 2h"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=dt.UTC)).timestamp()
