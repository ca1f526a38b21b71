"""A process that writes history without a pause, for tests that kill it. Prints the number of each stored batch."""

from __future__ import annotations

import sys

from kgwe.model.usage.history import OutOfMemory, Run, UsagePeak
from kgwe.model.usage.window import Device, DeviceKey, PodKey, make_window
from kgwe.store.history import HistoryStore

START_S = 1_795_003_200
KEY = "f" * 32
DEVICES = tuple(Device(DeviceKey("node", f"GPU-{number}", "", PodKey("team", "pod"))) for number in range(20))


def write_batch(store: HistoryStore, number: int) -> None:
    """Write one batch: every value in it is made from its number."""
    window = make_window(START_S + 60 * number, 60, 1, DEVICES)
    window.activity[:] = number % 100 / 100
    store.put_minutes(window)
    store.put_runs([Run(str(number), KEY, START_S, START_S + number, START_S + number + 1)])
    store.put_peaks([UsagePeak(KEY, START_S, number, 0, float(number), None, None, None, None)])
    store.put_out_of_memory([OutOfMemory(KEY, START_S + number, str(number))])
    document = store.load_document("test", "counter")
    version = document.version if document else 0
    store.put_document("test", "counter", number, START_S, expected_version=version)


def main(url: str, begin: int) -> None:
    store = HistoryStore.open(url)
    number = begin
    while True:
        write_batch(store, number)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
