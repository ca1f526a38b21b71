"""Watches a cluster in the foreground until a signal arrives or a component exits."""

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

# Bounds the delay until a signal or a replaced component is noticed.
_PERIOD_S = 0.5


class Supervisor:
    """Watches a cluster. SIGINT, SIGTERM and SIGHUP end the watch; further signals are ignored, so that stopping
    completes.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._stop = threading.Event()

    def install_signal_handlers(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def watch(self) -> ProcessRecord | None:
        """Return the component that exited; None if a signal arrived or another command stopped the cluster."""
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
