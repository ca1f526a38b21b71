"""Parts shared by the benchmark commands: the --json option, interruption, and the output of results."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kgwe import terminal
from kgwe.bench import report

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one line of JSON instead of a table.")]

INTERRUPTED = 128 + signal.SIGINT


def show(measured: report.Report, *, as_json: bool) -> None:
    terminal.write((report.to_json(measured) if as_json else report.to_table(measured)) + "\n")
    sys.stdout.flush()


def complain(problem: str) -> int:
    """Print why the results are not valid and return exit code 1."""
    terminal.write_error(f"kgwe: {problem}\n")
    return 1


def refuse(problem: Exception) -> int:
    """Print why the benchmark cannot run, such as absent data, and return exit code 2."""
    terminal.write_error(f"kgwe: {problem}\n")
    return 2


def to_end(measure: Callable[[], report.Report]) -> report.Report | None:
    """Run a benchmark and return its result, or None if SIGTERM or Ctrl-C interrupts it. Its clusters are stopped."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return measure()
    except KeyboardInterrupt:
        terminal.write_error("kgwe: interrupted; everything the benchmark started has been stopped.\n")
        return None


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
