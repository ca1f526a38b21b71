"""What the benchmarks' commands share: the --json option, the way to be interrupted, the last words."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kgwe.bench import report

if TYPE_CHECKING:
    from collections.abc import Callable
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


def to_end(measure: Callable[[], report.Report]) -> report.Report | None:
    """What it measures; None when it is interrupted, by SIGTERM as by Ctrl-C: its clusters must not outlive it."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return measure()
    except KeyboardInterrupt:
        sys.stderr.write("kgwe: interrupted; everything the benchmark started has been stopped.\n")
        return None


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
