"""What the benchmarks' commands share: the --json option, the way to be interrupted, the last words."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kgwe.bench import report

if TYPE_CHECKING:
    from types import FrameType

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one line of JSON instead of a table.")]

INTERRUPTED = 128 + signal.SIGINT


def show(measured: report.Report, *, as_json: bool) -> None:
    sys.stdout.write((report.to_json(measured) if as_json else report.to_table(measured)) + "\n")
    sys.stdout.flush()


def complain(problem: str) -> int:
    """The exit code of a benchmark whose numbers are not to be trusted."""
    sys.stderr.write(f"kgwe: {problem}\n")
    return 1


def end_on_sigterm() -> None:
    """As Ctrl-C: the clusters of a benchmark must not outlive it."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
