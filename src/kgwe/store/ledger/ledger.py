"""The ledger: segments that are written once, however often they are sent, and the sums that follow them.

A batch is one transaction: segments, roll-ups and the settled time are stored together, or nothing is. A segment is
known by its start, pod, piece and bucket. Sent again, it changes nothing. Sent with another end or rate, it replaces
the stored one, and the sums change by the difference. A segment without length is removed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
import sqlalchemy as sa

from kgwe.costing.money import DAY_S
from kgwe.store.database import BUSY_TIMEOUT_S, Database
from kgwe.store.ledger import rollups
from kgwe.store.ledger.names import NOTHING, Names
from kgwe.store.ledger.schema import BILLS, DAYS, HOURS, LEDGER, NODES, PODS, RESTATEMENTS, SEGMENTS, STATE
from kgwe.store.rows import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from numpy.typing import NDArray
    from sqlalchemy.engine import Connection

    from kgwe.costing.bills.reconcile import Restated
    from kgwe.costing.segments import Segment

SEGMENTS_KEPT_S: Final = 90 * DAY_S
ROLLUPS_KEPT_S: Final = 365 * DAY_S
_COLUMNS: Final = (
    "start_s", "pod", "piece", "bucket", "seconds", "rate", "ppm", "price", "measured_s", "busy_ms"
)  # fmt: skip
_KEY: Final = _COLUMNS[:4]
_VALUES: Final = _COLUMNS[4:]
_MATCH: Final = " AND ".join(f"s.{name} = b.{name}" for name in _KEY)
_FIND: Final = (
    f"SELECT b.number - 1, {', '.join(f's.{name}' for name in _COLUMNS)}"  # noqa: S608 -- constants
    f" FROM ledger_batch b JOIN cost_segments s ON {_MATCH}"
)
_STORE: Final = (
    f"INSERT INTO cost_segments ({', '.join(_COLUMNS)}) SELECT {', '.join(_COLUMNS)} FROM ledger_batch"  # noqa: S608 -- constants
    f" WHERE seconds > 0 ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET"
    f" {', '.join(f'{name} = excluded.{name}' for name in _VALUES)}"
)
_BATCH: Final = 100_000
_CHUNK: Final = 5_000
# One transaction of retention removes at most this range of raw segments.
_RANGE_S: Final = DAY_S


class NodeFacts(NamedTuple):
    """What bills and exports need to know of a node."""

    node: str
    provider_id: str = ""
    region: str = ""
    zone: str = ""
    gpu_model: str = ""
    gpus: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class StoredBill:
    """A bill as it was imported."""

    name: str
    digest: str
    imported_s: int
    start_s: int
    end_s: int
    currency: str
    micros: int


class Ledger:
    """A ledger in SQLite or PostgreSQL. Threads may share it; calls run one after the other."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._names = Names(database)

    @classmethod
    def open(cls, url: str, *, read_only: bool = False, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Ledger:
        """Open the ledger of a path, `sqlite:///path` or `postgresql://…`. The writer creates or migrates it."""
        return cls(Database.open(url, read_only=read_only, busy_timeout_s=busy_timeout_s, schema=LEDGER))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and let another process write it."""
        self.database.close()

    def put(
        self,
        segments: Sequence[Segment],
        state: Mapping[str, str] | None = None,
        nodes: Sequence[NodeFacts] = (),
    ) -> None:
        """Store segments, state and facts about nodes in one transaction. Storing the same again changes nothing."""
        try:
            with self.database.transaction() as connection:
                for start in range(0, len(segments), _BATCH):
                    self._put_batch(connection, segments[start : start + _BATCH])
                self._put_state(connection, state or {})
                self._put_nodes(connection, nodes)
        except BaseException:
            # Numbers of a transaction that failed were never stored.
            self._names.forget()
            raise

    def put_bill(self, bill: StoredBill, restated: Sequence[Restated]) -> bool:
        """Store a bill with its restated node-hours. Return False for a bill that is stored already.

        A node-hour of a later bill replaces that of an earlier one.
        """
        with self.database.transaction() as connection:
            known = connection.execute(sa.select(BILLS.c.id).where(BILLS.c.digest == bill.digest)).scalar()
            if known is not None:
                return False
            number = int(connection.execute(sa.select(sa.func.max(BILLS.c.id))).scalar() or 0) + 1
            connection.execute(sa.insert(BILLS).values(id=number, **dataclasses.asdict(bill)))
            insert = self.database.insert(RESTATEMENTS)
            changed = {name: insert.excluded[name] for name in ("bill", "book_ticks", "billed_micros", "cause")}
            upsert = insert.on_conflict_do_update(index_elements=["hour", "node"], set_=changed)
            rows = [
                {
                    "hour": each.key.hour,
                    "node": clean_text(each.key.node),
                    "bill": number,
                    "book_ticks": each.book_ticks,
                    "billed_micros": each.billed_micros,
                    "cause": str(each.cause),
                }
                for each in restated
            ]
            for start in range(0, len(rows), _CHUNK):
                connection.execute(upsert, rows[start : start + _CHUNK])
        return True

    def load_state(self) -> dict[str, str]:
        """Return the state that was stored with the last segments."""
        with self.database.transaction() as connection:
            return {row[0]: row[1] for row in connection.execute(sa.select(STATE))}

    def apply_retention(self, now_s: int) -> None:
        """Delete segments after 90 days and sums after 365, counted from the newest segment or from now."""
        with self.database.transaction() as connection:
            newest = connection.execute(sa.select(sa.func.max(SEGMENTS.c.start_s))).scalar()
            oldest = connection.execute(sa.select(sa.func.min(SEGMENTS.c.start_s))).scalar()
        if newest is None or oldest is None:
            return
        base_s = min(now_s, newest)
        limit_s = base_s - SEGMENTS_KEPT_S
        for end_s in range(oldest + _RANGE_S, limit_s + _RANGE_S, _RANGE_S):
            with self.database.transaction() as connection:
                connection.execute(sa.delete(SEGMENTS).where(SEGMENTS.c.start_s < min(end_s, limit_s)))
        with self.database.transaction() as connection:
            if oldest < limit_s:
                used = sa.select(SEGMENTS.c.pod).distinct()
                connection.execute(sa.delete(PODS).where(PODS.c.id.not_in(used)))
            kept_s = base_s - ROLLUPS_KEPT_S
            connection.execute(sa.delete(HOURS).where(HOURS.c.hour < kept_s // 3600))
            connection.execute(sa.delete(DAYS).where(DAYS.c.day < kept_s // DAY_S))
            connection.execute(sa.delete(RESTATEMENTS).where(RESTATEMENTS.c.hour < kept_s // 3600))
        self._names.forget()

    def _put_batch(self, connection: Connection, segments: Sequence[Segment]) -> None:
        self._names.register(connection, segments)
        batch = self._make_batch(segments)
        self._fill_batch(connection, batch)
        cursor: Any = connection.exec_driver_sql(_FIND).cursor
        stored = np.array(cursor.fetchall(), dtype=np.int64).reshape(-1, len(_COLUMNS) + 1)
        known, stored = stored[:, 0], stored[:, 1:]
        differs = (batch[known, : len(_COLUMNS)] != stored).any(axis=1)
        is_changed = np.ones(len(batch), dtype=np.bool_)
        is_changed[known[~differs]] = False
        if not is_changed.any():
            return
        connection.exec_driver_sql(_STORE)
        known, stored = known[differs], stored[differs]
        gone = batch[known, rollups.SECONDS] == 0
        self._remove(connection, stored[gone][:, : len(_KEY)].tolist())
        replaced = np.column_stack([stored, batch[known, rollups.ACCOUNT]])
        table = np.concatenate([batch[is_changed], replaced])
        signs = np.repeat(np.array([1, -1]), [len(table) - len(replaced), len(replaced)])
        rollups.add_differences(connection, self.database, table, signs)

    def _make_batch(self, segments: Sequence[Segment]) -> NDArray[np.int64]:
        """Return the columns of segments and their accounts. Of a segment that is sent twice, the last counts."""
        pods, pieces, prices = self._names.pods, self._names.pieces, self._names.prices
        flat: list[int] = []
        for each in segments:
            holder, start_s = each.holder, each.start_s
            if holder is None:
                pod = account = NOTHING
            else:
                _, pod, account = pods[holder.uid]
            flat += (
                start_s,
                pod,
                pieces[each.piece],
                each.bucket,
                each.end_s - start_s,
                each.rate,
                each.ppm,
                prices[each.price],
                each.measured_s,
                each.busy_ms,
                account,
            )
        batch = np.array(flat, dtype=np.int64).reshape(-1, len(_COLUMNS) + 1)
        # In the order of the key, so that a batch is appended; equal keys stay in the order in which they came.
        keys = batch[:, : len(_KEY)]
        order = np.lexsort(keys.T[::-1])
        keys = keys[order]
        is_last = np.ones(len(batch), dtype=np.bool_)
        is_last[:-1] = (keys[1:] != keys[:-1]).any(axis=1)
        return np.asarray(batch[order[is_last]])

    def _fill_batch(self, connection: Connection, batch: NDArray[np.int64]) -> None:
        """Copy rows into a temporary table, with their numbers."""
        kinds = ", ".join(f"{name} BIGINT" for name in (*_COLUMNS, "account"))
        rows = batch.tolist()
        if not self.database.is_postgresql:
            # SQLite numbers the rows from 1 on, because the table was empty.
            connection.exec_driver_sql(
                f"CREATE TEMP TABLE IF NOT EXISTS ledger_batch (number INTEGER PRIMARY KEY, {kinds})"
            )
            connection.exec_driver_sql("DELETE FROM ledger_batch")
            names = ", ".join((*_COLUMNS, "account"))
            marks = ", ".join("?" * (len(_COLUMNS) + 1))
            driver: Any = connection.connection.driver_connection
            driver.executemany(f"INSERT INTO ledger_batch ({names}) VALUES ({marks})", rows)  # noqa: S608 -- constants
            return
        connection.exec_driver_sql(f"CREATE TEMP TABLE IF NOT EXISTS ledger_batch (number BIGINT, {kinds})")
        connection.exec_driver_sql("TRUNCATE ledger_batch")
        server: Any = connection.connection.driver_connection
        with server.cursor() as cursor, cursor.copy("COPY ledger_batch FROM STDIN") as copy:
            lines = ("\t".join(map(str, (number, *row))) for number, row in enumerate(rows, 1))
            copy.write("\n".join(lines) + "\n")
        connection.exec_driver_sql("ANALYZE ledger_batch")

    def _remove(self, connection: Connection, keys: list[list[int]]) -> None:
        mark = "%s" if self.database.is_postgresql else "?"
        if keys:
            where = " AND ".join(f"{name} = {mark}" for name in _KEY)
            rows: Any = [tuple(key) for key in keys]
            connection.exec_driver_sql(f"DELETE FROM cost_segments WHERE {where}", rows)  # noqa: S608 -- constants

    def _put_state(self, connection: Connection, state: Mapping[str, str]) -> None:
        if state:
            insert = self.database.insert(STATE)
            upsert = insert.on_conflict_do_update(index_elements=["name"], set_={"value": insert.excluded.value})
            connection.execute(upsert, [{"name": name, "value": value} for name, value in state.items()])

    def _put_nodes(self, connection: Connection, nodes: Sequence[NodeFacts]) -> None:
        if nodes:
            insert = self.database.insert(NODES)
            changed = {name: insert.excluded[name] for name in NodeFacts._fields[1:]}
            upsert = insert.on_conflict_do_update(index_elements=["node"], set_=changed)
            rows = [{name: _clean(value) for name, value in each._asdict().items()} for each in nodes]
            connection.execute(upsert, rows)


def _clean(value: Any) -> Any:
    return clean_text(value) if isinstance(value, str) else value
