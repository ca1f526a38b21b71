"""Files of decision records: one thread encodes the lines and writes them, within a limit of bytes.

Every file begins with a snapshot, so any file can be deleted without harm to the others. The oldest is deleted when the
limit is reached. Lines that cannot be written are dropped and counted; no decision waits for the disk.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.kube.api import timestamp
from kgwe.records import decisions
from kgwe.records.decisions import End

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import BufferedWriter
    from pathlib import Path

log = structlog.get_logger(__name__)

Item = decisions.PendingSnapshot | decisions.PendingNodes | decisions.PendingDecision | End

_MIB: Final = 1 << 20
# So many files make up the limit: the smaller they are, the less is lost with the oldest.
_FILES: Final = 8
_LEAST_MB: Final = 8
# Lines that may wait for the disk.
_WAITING: Final = 4096
# Pause after a write that failed.
_PAUSE_S: Final = 5.0
_GRACE_S: Final = 5.0
_REST_S: Final = 0.0005


def _ignore_count(_: int) -> None:
    pass


class RecordFiles:
    """A directory of records: one thread puts lines in, a thread of its own writes them."""

    def __init__(
        self,
        directory: Path,
        max_mb: int,
        *,
        on_written: Callable[[int], None] = _ignore_count,
        on_dropped: Callable[[int], None] = _ignore_count,
        pause_s: float = _PAUSE_S,
    ) -> None:
        """Permanent when nothing can be written there."""
        if max_mb < _LEAST_MB:
            raise errors.Permanent(f"recordMaxMb is {max_mb}: decision records need at least {_LEAST_MB} MB")
        self._directory = directory
        self._most_bytes = max_mb * _MIB
        self._on_written, self._on_dropped = on_written, on_dropped
        self._pause_s = pause_s
        #: the next line has to be a snapshot: it begins a file
        self.wants_snapshot = True
        self._number = 0
        self._file: BufferedWriter | None = None
        self._left = 0  # bytes that the file may still take
        self._idle_until = 0.0
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._encode = msgspec.json.Encoder().encode
        try:
            directory.mkdir(parents=True, exist_ok=True)
            probe = directory / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as exc:
            raise errors.Permanent(f"recordDirectory {directory}: {exc.strerror}") from exc
        self._thread = threading.Thread(target=self._run_thread, name="records", daemon=True)
        self._thread.start()

    # --- called by the deciding thread ------------------------------------------------------------------

    def put(self, *items: Item) -> bool:
        """Write these, all or none; False: they were dropped, and a snapshot has to come next."""
        if self._items.qsize() + len(items) > _WAITING or time.monotonic() < self._idle_until:
            self._on_dropped(len(items))
            self.wants_snapshot = True
            return False
        if isinstance(items[0], decisions.PendingSnapshot):
            self.wants_snapshot = False
        for item in items:
            self._items.put(item)
        return True

    def close(self) -> None:
        """Write the remaining lines, unless the disk hangs."""
        self._items.put(None)
        self._thread.join(_GRACE_S)

    # --- the thread -------------------------------------------------------------------------------------

    def _run_thread(self) -> None:
        while (item := self._items.get()) is not None:
            try:
                self._write_item(item)
                if self._file is not None and self._items.empty():
                    self._file.flush()
            except OSError as exc:
                log.warning("records_not_written", directory=str(self._directory), error=str(exc))
                self._give_up()
            except Exception:  # a line that cannot be encoded must not stop the others
                log.exception("record_failed")
                self._give_up()
        self._close_file()

    def _write_item(self, item: Item) -> None:
        if isinstance(item, decisions.PendingSnapshot):
            self._next_file()
        if self._file is None:
            self._on_dropped(1)
            return
        text = self._encode(_encode_line(item)) + b"\n"
        self._file.write(text)
        self._on_written(1)
        if not isinstance(item, decisions.PendingSnapshot):
            self._left -= len(text)
            if self._left <= 0:
                self.wants_snapshot = True

    def _give_up(self) -> None:
        """The line is lost: the next one has to be a snapshot."""
        self._on_dropped(1)
        self._idle_until = time.monotonic() + self._pause_s
        self.wants_snapshot = True
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as exc:
                log.warning("records_not_written", directory=str(self._directory), error=str(exc))

    def _next_file(self) -> None:
        self._close_file()
        self._make_room()
        self._number += 1
        name = f"decisions-{timestamp.seconds().translate(_PLAIN)}-{self._number:06}.jsonl"
        self._file = (self._directory / name).open("xb")
        self._left = self._most_bytes // _FILES

    def _make_room(self) -> None:
        """Delete the oldest until one more fits."""
        sizes = {path: path.stat().st_size for path in files(self._directory)}
        for path in sorted(sizes, key=lambda each: each.name):
            if sum(sizes.values()) + self._most_bytes // _FILES <= self._most_bytes:
                break
            path.unlink(missing_ok=True)
            del sizes[path]


def _encode_line(item: Item) -> decisions.Line:
    if isinstance(item, End):
        return item
    # Release the interpreter lock, so that the event loop gets its turn.
    return item.line(lambda: time.sleep(_REST_S)) if isinstance(item, decisions.PendingSnapshot) else item.line()


# 2026-11-15T10:00:00Z -> 20261115T100000Z, which sorts as well and needs no quotes.
_PLAIN: Final = str.maketrans("", "", "-:")


def files(directory: Path) -> list[Path]:
    """The records in a directory, the oldest first."""
    return sorted(directory.glob("decisions-*.jsonl"))
