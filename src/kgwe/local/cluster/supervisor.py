"""Watching over a cluster in the foreground: until told to stop, or until a component dies."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

from kgwe.local.cluster import cluster_record as state
from kgwe.local.host import processes

if TYPE_CHECKING:
    from types import FrameType

    from kgwe.local.cluster.cluster import LocalCluster
    from kgwe.local.host.processes import ProcessRecord

# Bounds how late a signal, or a component replaced by a restart, is noticed.
_PERIOD_S = 0.5


class Supervisor:
    """SIGINT, SIGTERM and SIGHUP end the watch; a second one does nothing more, so that stopping is never cut short."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()

    def install_signal_handlers(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def watch(self) -> ProcessRecord | None:
        """The component that died, or None when the watch ended on request or the cluster was stopped elsewhere."""
        while not self._stop.is_set():
            known = state.load_record(self._cluster.directory)
            if known is None or not known.processes:
                return None
            records = list(known.everyone.values())
            processes.await_any_exit(records, _PERIOD_S)
            if self._stop.is_set():
                return None
            if not all(processes.is_alive(record) for record in records):
                dead = self._cluster.find_dead()
                if dead is not None:
                    return dead
        return None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stop.set()
