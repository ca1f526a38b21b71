"""Progress messages for the terminal.

A `Progress` shows steps: not at all (`Silent`), one line per change (`Lines`, for logs and pipes), or a spinner with
the elapsed time (`Terminal`). At most one step is open at a time.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from kgwe.visible_text import escape_line, escape_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

# Seconds between two lines of a log while only the detail changes.
_REPEAT_S = 15.0


class Step(Protocol):
    def update(self, detail: str) -> None:
        """Set the detail of the step."""


class Progress(Protocol):
    def step(self, title: str) -> AbstractContextManager[Step]:
        """Open a step; leaving the context closes it."""

    def note(self, text: str) -> None:
        """Print a separate line."""


class Silent:
    """Shows nothing."""

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        del title
        yield self

    def update(self, detail: str) -> None:
        """Ignore the detail."""

    def note(self, text: str) -> None:
        """Ignore the note."""


class _LineStep:
    def __init__(self, title: str, stream: TextIO) -> None:
        self._title = title
        self._stream = stream
        self.started = self._spoken = time.monotonic()

    def update(self, detail: str) -> None:
        now = time.monotonic()
        if now - self._spoken >= _REPEAT_S:
            self._spoken = now
            print(escape_text(f"{self._title}: {detail} ({now - self.started:.0f} s)"), file=self._stream, flush=True)


class Lines:
    """Prints a line when a step starts and ends, and one from time to time while it runs."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        print(escape_text(f"{title} ..."), file=self._stream, flush=True)
        step = _LineStep(title, self._stream)
        yield step
        print(escape_text(f"{title}: done in {time.monotonic() - step.started:.1f} s"), file=self._stream, flush=True)

    def note(self, text: str) -> None:
        print(escape_text(text), file=self._stream, flush=True)


class Terminal:
    """Shows a spinner with the elapsed time, replaced by one line at the end of the step."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 -- rich costs 50 ms that a script should not pay

        self._console = Console(stderr=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        from rich.progress import Progress as Bar  # noqa: PLC0415 -- see above
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 -- see above
        from rich.text import Text  # noqa: PLC0415 -- see above

        started = time.monotonic()
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim", markup=False),
        )
        with Bar(*columns, console=self._console, transient=True) as bar:
            task = bar.add_task(escape_line(title), total=None, detail="")

            class Spinner:
                def update(self, detail: str) -> None:
                    bar.update(task, detail=escape_line(detail))

            yield Spinner()
        done = f"{time.monotonic() - started:.1f} s"
        self._console.print(Text.assemble(("✓", "green"), f" {escape_line(title)} ", (done, "dim")))

    def note(self, text: str) -> None:
        self._console.print(escape_text(text), highlight=False, markup=False)


def for_stream(stream: TextIO | None = None) -> Progress:
    """Return the progress display for the stream."""
    stream = stream or sys.stderr
    return Terminal() if stream is sys.stderr and stream.isatty() else Lines(stream)
