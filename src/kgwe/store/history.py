"""The history of workloads: what ran, what it used, and when memory was not enough.

Every write is idempotent and one transaction: after a Transient error the caller sends the same batch again.
"""

from __future__ import annotations

import math
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Self

import sqlalchemy as sa

from kgwe.store import retention, rows
from kgwe.store.database import BUSY_TIMEOUT_S, Database
from kgwe.store.documents import Document, DocumentTable
from kgwe.store.minutes import MinuteTable
from kgwe.store.prior import Prior, load_prior
from kgwe.store.schema import FINGERPRINTS, OUT_OF_MEMORY, PEAKS, RUNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from sqlalchemy.engine import Connection

    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.model.usage.history import OutOfMemory, Run, UsagePeak
    from kgwe.model.usage.window import UsageWindow

# Kind and name of the document with the identity of the store.
_IDENTITY: Final = "store"


class HistoryStore:
    """A history in SQLite or PostgreSQL. Threads may share it; calls run one after the other."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._minutes = MinuteTable(database)
        self._documents = DocumentTable(database)
        self.rejected: Counter[str] = Counter()
        """Rows that no table can hold, such as a run that started at NaN: table -> count."""

    @classmethod
    def open(cls, url: str, *, read_only: bool = False, busy_timeout_s: float = BUSY_TIMEOUT_S) -> HistoryStore:
        """Open the store of a path, `sqlite:///path` or `postgresql://…`. The writer creates or migrates it."""
        return cls(Database.open(url, read_only=read_only, busy_timeout_s=busy_timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database and let another process write it."""
        self._database.close()

    @property
    def connects(self) -> int:
        """Grows with every connection: only then can another database be at the address."""
        return self._database.connects

    def identify(self) -> str:
        """Return what tells this store from all others. The writer makes it up once."""
        found = self.list_documents(_IDENTITY)
        if not found:
            self.put_document(_IDENTITY, _IDENTITY, {"id": uuid.uuid4().hex}, 0.0)
            found = self.list_documents(_IDENTITY)
        return str(found[0].body["id"])

    def put_fingerprints(self, fingerprints: Sequence[Fingerprint], now_s: float) -> None:
        """Store descriptions of fingerprints. `now_s` is the time at which they were seen."""
        made = self._keep("fingerprints", [rows.make_fingerprint_row(each, now_s) for each in fingerprints])
        insert = self._database.insert(FINGERPRINTS)
        new = insert.excluded
        later = new.last_s >= FINGERPRINTS.c.last_s
        described = (
            "namespace",
            "owner",
            "image",
            "command",
            "version",
            "pods",
            "milli_gpus",
            "mig_profile",
            "gpu_model",
        )
        changes: dict[str, Any] = {
            name: sa.case((sa.or_(later, FINGERPRINTS.c.owner == ""), new[name]), else_=FINGERPRINTS.c[name])
            for name in described
        }
        changes["first_s"] = sa.case((new.first_s < FINGERPRINTS.c.first_s, new.first_s), else_=FINGERPRINTS.c.first_s)
        changes["last_s"] = sa.case((later, new.last_s), else_=FINGERPRINTS.c.last_s)
        self._write(insert.on_conflict_do_update(index_elements=["key"], set_=changes), made)

    def put_runs(self, runs: Sequence[Run]) -> None:
        """Store observations of runs, in any order; the newest of each run wins.

        An end is final, unless the run started again after it.
        """
        made = self._keep("runs", [rows.make_run_row(run) for run in runs])
        insert = self._database.insert(RUNS)
        new = insert.excluded
        changes = {column.name: new[column.name] for column in RUNS.columns if column.name != "uid"}
        upsert = insert.on_conflict_do_update(index_elements=["uid"], set_=changes, where=_is_newer_run(new))
        self._write(upsert, made, "last_s")

    def put_peaks(self, peaks: Sequence[UsagePeak]) -> None:
        """Store hours of use. Another write of the same hour never lowers a peak."""
        made = self._keep("peaks", [rows.make_peak_row(peak) for peak in peaks])
        insert = self._database.insert(PEAKS)
        new = insert.excluded
        changes = {name: _larger(new[name], PEAKS.c[name]) for name in ("samples", "gaps", "memory_peak_mib")}
        changes["memory_total_mib"] = sa.func.coalesce(new.memory_total_mib, PEAKS.c.memory_total_mib)
        for name in ("activity_mean", "activity_p95", "power_mean_w"):
            # The average over more of the hour: a process that restarted begins to count at zero.
            preferred = sa.case((new.samples >= PEAKS.c.samples, new[name]), else_=PEAKS.c[name])
            changes[name] = sa.func.coalesce(preferred, PEAKS.c[name], new[name])
        upsert = insert.on_conflict_do_update(index_elements=["fingerprint", "hour_s"], set_=changes)
        self._write(upsert, made, "hour_s")

    def put_out_of_memory(self, facts: Sequence[OutOfMemory]) -> None:
        """Store out-of-memory facts. They stay as long as their fingerprint."""
        made = self._keep("out_of_memory", [rows.make_out_of_memory_row(fact) for fact in facts])
        insert = self._database.insert(OUT_OF_MEMORY)
        changes = {"limit_mib": sa.func.coalesce(insert.excluded.limit_mib, OUT_OF_MEMORY.c.limit_mib)}
        upsert = insert.on_conflict_do_update(index_elements=["fingerprint", "uid", "at_s"], set_=changes)
        self._write(upsert, made, "at_s")

    def put_minutes(self, window: UsageWindow) -> None:
        """Store the minutes of a window. Unknown values are not stored and never replace known ones."""
        self._minutes.put(window)

    def load_fingerprints(self) -> list[Fingerprint]:
        """Return all fingerprints that were described, by key."""
        query = sa.select(FINGERPRINTS).where(FINGERPRINTS.c.owner != "").order_by(FINGERPRINTS.c.key)
        return [rows.read_fingerprint(row) for row in self._select(query)]

    def load_runs(self, since_s: float, fingerprint: str | None = None) -> list[Run]:
        """Return the runs that ended or were seen since a time, by start."""
        query = sa.select(RUNS).order_by(RUNS.c.started_s, RUNS.c.uid)
        if math.isfinite(since_s):
            query = query.where(RUNS.c.last_s >= since_s)
        if fingerprint is not None:
            query = query.where(RUNS.c.fingerprint == fingerprint)
        return [rows.read_run(row) for row in self._select(query)]

    def load_peaks(self, fingerprint: str) -> list[UsagePeak]:
        """Return the hours of a fingerprint, oldest first."""
        query = sa.select(PEAKS).where(PEAKS.c.fingerprint == fingerprint).order_by(PEAKS.c.hour_s)
        return [rows.read_peak(row) for row in self._select(query)]

    def load_out_of_memory(self, fingerprint: str) -> list[OutOfMemory]:
        """Return the out-of-memory facts of a fingerprint, oldest first."""
        table = OUT_OF_MEMORY
        query = sa.select(table).where(table.c.fingerprint == fingerprint).order_by(table.c.at_s, table.c.uid)
        return [rows.read_out_of_memory(row) for row in self._select(query)]

    def load_prior(self, fingerprint: Fingerprint) -> Prior:
        """Return the history that a workload starts from, with its versions and how closely it is related."""
        return load_prior(self._database, fingerprint)

    def load_minutes(self, start_s: float, end_s: float, step_s: float) -> UsageWindow:
        """Return the minutes of a time range, in steps of whole minutes."""
        return self._minutes.load(start_s, end_s, step_s)

    def put_document(self, kind: str, name: str, body: Any, now_s: float, expected_version: int | None = None) -> int:
        """Store a JSON document and return its version; Conflict if the stored version is not the expected one."""
        return self._documents.put(kind, name, body, now_s, expected_version)

    def load_document(self, kind: str, name: str) -> Document | None:
        """Return a document; None if there is none."""
        return self._documents.load(kind, name)

    def list_documents(self, kind: str) -> list[Document]:
        """Return all documents of a kind, by name."""
        return self._documents.list(kind)

    def delete_document(self, kind: str, name: str, expected_version: int | None = None) -> None:
        """Delete a document; Conflict if it has another version than the expected one."""
        self._documents.delete(kind, name, expected_version)

    def apply_retention(self, now_s: float) -> None:
        """Delete what is older than its time: minutes 7 days, hours 30 days, fingerprints 180 days without a run."""
        # Another device may get the id of a deleted one.
        self._minutes.forget_ids()
        retention.apply_retention(self._database, now_s)

    def _keep(self, table: str, made: Sequence[rows.Row | None]) -> list[rows.Row]:
        kept = [row for row in made if row is not None]
        self.rejected[table] += len(made) - len(kept)
        return kept

    def _write(self, statement: Any, made: list[rows.Row], time: str | None = None) -> None:
        if not made:
            return
        with self._database.transaction() as connection:
            if time is not None:
                self._put_stubs(connection, made, time)
            connection.execute(statement, made)

    def _put_stubs(self, connection: Connection, made: list[rows.Row], time: str) -> None:
        """A fact may arrive before the description of its fingerprint; it is not lost."""
        newest: dict[str, float] = {}
        for row in made:
            newest[row["fingerprint"]] = max(row[time], newest.get(row["fingerprint"], row[time]))
        stubs = [rows.make_stub_row(key, at_s) for key, at_s in newest.items()]
        connection.execute(self._database.insert(FINGERPRINTS).on_conflict_do_nothing(), stubs)

    def _select(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        with self._database.transaction() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]


def _larger(new: Any, old: Any) -> Any:
    """Return the larger of two columns; an unknown value counts as smaller than every other."""
    return sa.case((new > old, new), else_=sa.func.coalesce(old, new))


def _is_newer_run(new: Any) -> sa.ColumnElement[bool]:
    """Whether an observation replaces the stored one of the same run, in whatever order they arrive."""
    old = RUNS.c
    ends, ended = new.ended_s.is_not(None), old.ended_s.is_not(None)
    # A suspended Job starts again with the same uid: its earlier end is not the end of the later part.
    is_its_end = sa.or_(new.ended_s >= old.started_s, new.started_s >= old.started_s)
    return sa.or_(
        sa.and_(ends, ended, new.ended_s >= old.ended_s),
        sa.and_(ends, sa.not_(ended), is_its_end),
        sa.and_(sa.not_(ends), ended, new.started_s >= old.ended_s),
        sa.and_(sa.not_(ends), sa.not_(ended), new.last_s >= old.last_s),
    )
