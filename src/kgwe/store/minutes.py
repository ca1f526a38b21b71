"""Minutes of devices: from windows to rows and back. The hot path of the store.

A step of a window belongs to the minute in which its middle lies, so windows need not begin at full minutes. A later
write of the same minute wins where it knows a value; an unknown value never replaces a known one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa

from kgwe import errors
from kgwe.model.usage.window import QUANTITIES, Device, DeviceKey, PodKey, UsageWindow, make_window
from kgwe.store.rows import clean_text
from kgwe.store.schema import DEVICES, MINUTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from sqlalchemy.engine import Connection

    from kgwe.store.database import Database

    Floats = NDArray[np.float32]
    Integers = NDArray[np.int64]

MINUTE_S: Final = 60
REFRESH_MINUTES: Final = 60
_COLUMNS: Final = ("minute", "device", *QUANTITIES)
_KEY: Final = ("node", "uuid", "instance", "namespace", "pod", "container")
# Peaks of memory must survive the merging of steps; everything else is an average.
_PEAKS: Final = frozenset({"memory_used_mib", "memory_total_mib"})
_KEEP_KNOWN: Final = ", ".join(f"{name} = coalesce(excluded.{name}, minutes.{name})" for name in QUANTITIES)
_INSERT: Final = f"INSERT INTO minutes ({', '.join(_COLUMNS)})"
_ON_CONFLICT: Final = f"ON CONFLICT (minute, device) DO UPDATE SET {_KEEP_KNOWN}"
_INSERT_BATCH: Final = f"{_INSERT} SELECT {', '.join(_COLUMNS)} FROM batch {_ON_CONFLICT}"  # noqa: S608 -- constants
_LONGEST_WINDOW: Final = 14 * 24 * 60
# Rows that are read at a time.
_FETCH: Final = 20_000


class _Known(NamedTuple):
    """A device whose row is stored."""

    id: int
    device: Device
    minute: int


class MinuteTable:
    """Minutes in a database. Remembers the ids of devices, so that a batch needs no look-ups."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids: dict[DeviceKey, _Known] = {}
        self._connects = 0
        self._upsert = _make_upsert(database)

    def put(self, window: UsageWindow) -> None:
        """Store the known values of a window, all or nothing. Storing it again changes nothing."""
        minutes, values = fold_steps(window)
        known = np.asarray(np.stack([np.isfinite(values[name]) for name in QUANTITIES]).any(axis=0))
        devices = _drop_repeated(window.devices)
        rows, columns = (found.astype(np.int64) for found in np.nonzero(known[devices]))
        if not rows.size:
            return
        rows = np.asarray(devices, dtype=np.int64)[rows]
        fresh: dict[DeviceKey, _Known] = {}
        with self._database.transaction() as connection:
            ids = self._find_ids(connection, [window.devices[row] for row in devices], int(minutes[-1]), fresh)
            by_row = np.zeros(len(window.devices), dtype=np.int64)
            by_row[devices] = ids
            # In the order of the key, so that a batch is appended.
            order = np.lexsort((by_row[rows], minutes[columns]))
            rows, columns = rows[order], columns[order]
            lists = [minutes[columns].tolist(), by_row[rows].tolist()]
            lists += [_known_or_none(values[name][rows, columns]) for name in QUANTITIES]
            self._write(connection, list(zip(*lists, strict=True)))
        # Ids of a transaction that failed were never stored.
        self._ids.update(fresh)

    def load(self, start_s: float, end_s: float, step_s: float) -> UsageWindow:
        """Return the stored minutes of a time range, in steps of whole minutes. Steps without a value are unknown."""
        per_step = _count_minutes(step_s)
        first = int(np.floor(start_s / MINUTE_S))
        steps = max(int(np.ceil((end_s - first * MINUTE_S) / step_s)), 0)
        if steps * per_step > _LONGEST_WINDOW:
            raise errors.Permanent("a window of minutes is at most 14 days long: ask for a shorter time range")
        last = first + steps * per_step
        query = _select_steps(first, per_step).where(MINUTES.c.minute >= first, MINUTES.c.minute < last)
        with self._database.transaction() as connection:
            table = _fetch_all(connection, query)
            devices = self._load_devices(connection, set(table[:, 1].astype(np.int64).tolist()))
        return _fill_window(first, per_step, steps, devices, table)

    def forget_ids(self) -> None:
        """Forget the remembered ids: retention has removed devices."""
        self._ids.clear()

    def _find_ids(
        self, connection: Connection, devices: Sequence[Device], minute: int, fresh: dict[DeviceKey, _Known]
    ) -> list[int]:
        """Return the ids of devices. Store those that are new, changed, or not stored for an hour."""
        if self._connects != self._database.connects:
            self._ids.clear()
            self._connects = self._database.connects
        stale = [device for device in devices if not self._is_stored(device, minute)]
        if stale:
            made = [_make_device_row(device) | {"last_minute": minute} for device in stale]
            connection.execute(self._upsert, made)
            stored = connection.execute(sa.select(DEVICES).where(DEVICES.c.last_minute >= minute)).mappings()
            ids = {tuple(row[name] for name in _KEY): int(row["id"]) for row in stored}
            for device, row in zip(stale, made, strict=True):
                fresh[device.key] = _Known(ids[tuple(row[name] for name in _KEY)], device, minute)
        return [(fresh.get(device.key) or self._ids[device.key]).id for device in devices]

    def _is_stored(self, device: Device, minute: int) -> bool:
        known = self._ids.get(device.key)
        return known is not None and known.device == device and minute < known.minute + REFRESH_MINUTES

    def _write(self, connection: Connection, rows: list[tuple[Any, ...]]) -> None:
        if not self._database.is_postgresql:
            marks = ", ".join("?" * len(_COLUMNS))
            connection.exec_driver_sql(f"{_INSERT} VALUES ({marks}) {_ON_CONFLICT}", rows)
            return
        connection.exec_driver_sql("CREATE TEMP TABLE IF NOT EXISTS batch (LIKE minutes) ON COMMIT DELETE ROWS")
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(f"COPY batch ({', '.join(_COLUMNS)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        connection.exec_driver_sql(_INSERT_BATCH)

    def _load_devices(self, connection: Connection, ids: set[int]) -> dict[int, Device]:
        if not ids:
            return {}
        rows = connection.execute(sa.select(DEVICES)).mappings()
        return {row["id"]: _read_device(row) for row in rows if row["id"] in ids}


def _make_upsert(database: Database) -> Any:
    insert = database.insert(DEVICES)
    new = insert.excluded
    changes = {
        "model": sa.func.coalesce(sa.func.nullif(new.model, ""), DEVICES.c.model),
        "mig_profile": new.mig_profile,
        "sharers": new.sharers,
        "last_minute": sa.case((new.last_minute > DEVICES.c.last_minute, new.last_minute), else_=DEVICES.c.last_minute),
    }
    return insert.on_conflict_do_update(index_elements=list(_KEY), set_=changes)


def fold_steps(window: UsageWindow) -> tuple[Integers, dict[str, Floats]]:
    """Return the minutes of a window and its values per minute: averages, and the highest use of memory."""
    if not 0 < window.step_s <= MINUTE_S:
        raise errors.Permanent(f"the store keeps minutes: a step of {window.step_s:g} s is not within 0 and 60 s")
    middles = window.ends_s - window.step_s / 2
    of_step = np.floor(middles / MINUTE_S).astype(np.int64)
    minutes, begins = np.unique(of_step, return_index=True)
    values = {name: _clear_infinite(getattr(window, name)) for name in QUANTITIES}
    if len(minutes) == len(of_step):
        return minutes, values
    return minutes, {name: _merge(name, array, begins) for name, array in values.items()}


def _merge(name: str, array: Floats, begins: NDArray[np.intp]) -> Floats:
    """Merge the columns that begin at the given positions; unknown values do not count."""
    if name in _PEAKS:
        return np.asarray(np.fmax.reduceat(array, begins, axis=1), dtype=np.float32)
    counts = np.add.reduceat(np.isfinite(array).astype(np.float64), begins, axis=1)
    sums = np.add.reduceat(np.nan_to_num(array.astype(np.float64)), begins, axis=1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return np.asarray(means, dtype=np.float32)


def _clear_infinite(array: Floats) -> Floats:
    return np.where(np.isfinite(array), array, np.float32(np.nan))


def _known_or_none(values: Floats) -> list[float | None]:
    known = values.astype(object)
    known[np.isnan(values)] = None
    return list(known)


def _drop_repeated(devices: Sequence[Device]) -> list[int]:
    """Return the rows of distinct devices; of a device that is listed twice, the last."""
    return list({device.key: row for row, device in enumerate(devices)}.values())


def _count_minutes(step_s: float) -> int:
    per_step = round(step_s / MINUTE_S)
    if per_step < 1 or per_step * MINUTE_S != step_s:
        raise errors.Permanent(f"the store keeps minutes: a step of {step_s:g} s is not a whole number of minutes")
    return per_step


def _select_steps(first: int, per_step: int) -> sa.Select[Any]:
    """Return a query for step, device and quantities. The database merges minutes: a week of them fills the memory."""
    if per_step == 1:
        return sa.select(MINUTES.c.minute - first, MINUTES.c.device, *(MINUTES.c[name] for name in QUANTITIES))
    step = (MINUTES.c.minute - first) // per_step
    merged = ((sa.func.max if name in _PEAKS else sa.func.avg)(MINUTES.c[name]) for name in QUANTITIES)
    # By its name: PostgreSQL does not see that two expressions with parameters are the same.
    return sa.select(step.label("step"), MINUTES.c.device, *merged).group_by(sa.text("step"), MINUTES.c.device)


def _fetch_all(connection: Connection, query: sa.Select[Any]) -> NDArray[np.float64]:
    """Return the rows; NULL is NaN. The driver's tuples take half the time of SQLAlchemy's rows, but much memory."""
    cursor: Any = connection.execute(query).cursor
    parts = [np.empty((0, len(_COLUMNS)))]
    while found := cursor.fetchmany(_FETCH):
        parts.append(np.array(found, dtype=np.float64))
    return np.concatenate(parts)


def _fill_window(
    first: int, per_step: int, steps: int, devices: dict[int, Device], table: NDArray[np.float64]
) -> UsageWindow:
    order = sorted(devices, key=lambda each: _sort_key(devices[each]))
    window = make_window(first * MINUTE_S, MINUTE_S * per_step, steps, tuple(devices[identity] for identity in order))
    identities = table[:, 1].astype(np.int64)
    if not order:
        return window
    position = {identity: row for row, identity in enumerate(order)}
    found, inverse = np.unique(identities, return_inverse=True)
    # A device whose description is gone has no row.
    rows = np.array([position.get(identity, -1) for identity in found.tolist()], dtype=np.int64)[inverse]
    known = rows >= 0
    columns = table[:, 0].astype(np.int64)
    for number, name in enumerate(QUANTITIES, start=2):
        getattr(window, name)[rows[known], columns[known]] = table[known, number]
    return window


def _sort_key(device: Device) -> tuple[str, ...]:
    key = device.key
    pod = key.pod or PodKey("", "")
    return key.node, key.uuid, key.instance, *pod, key.container


def _make_device_row(device: Device) -> dict[str, Any]:
    texts = dict(zip(_KEY, _sort_key(device), strict=True)) | {"model": device.model, "mig_profile": device.mig_profile}
    return {name: clean_text(text) for name, text in texts.items()} | {"sharers": device.sharers}


def _read_device(row: sa.RowMapping) -> Device:
    pod = PodKey(row["namespace"], row["pod"]) if row["pod"] else None
    key = DeviceKey(row["node"], row["uuid"], row["instance"], pod, row["container"])
    return Device(key, row["model"], row["mig_profile"], row["sharers"])
