"""Tables of a history. A migration in `migrations/versions` creates or changes each of them.

SQLite tables are STRICT: a value of the wrong type is an error, not a surprise in a later query.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

METADATA: Final = sa.MetaData()
#: Names the revision of the schema; another program in the same PostgreSQL database has a table of its own.
VERSION_TABLE: Final = "kgwe_history_schema"

# STRICT tables know INTEGER, REAL and TEXT only.
_TIME: Final[sa.types.TypeEngine[Any]] = sa.Double().with_variant(sqlite.REAL(), "sqlite")
_NUMBER: Final[sa.types.TypeEngine[Any]] = sa.Double().with_variant(sqlite.REAL(), "sqlite")
_READING: Final[sa.types.TypeEngine[Any]] = sa.REAL().with_variant(sqlite.REAL(), "sqlite")
_FLAG: Final = sa.SmallInteger().with_variant(sa.Integer(), "sqlite")
_COUNT: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: sa.types.TypeEngine[Any], **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def _unknown(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    """Return a column in which NULL is unknown."""
    return sa.Column(name, kind, nullable=True)


def _fingerprint_column(**options: Any) -> sa.Column[Any]:
    return sa.Column(
        "fingerprint", sa.Text, sa.ForeignKey("fingerprints.key", ondelete="CASCADE"), nullable=False, **options
    )


FINGERPRINTS: Final = sa.Table(
    "fingerprints",
    METADATA,
    _column("key", sa.Text(), primary_key=True),
    _column("namespace", sa.Text()),
    _column("owner", sa.Text()),
    _column("image", sa.Text()),
    _column("command", sa.Text()),
    _column("version", sa.Text()),
    _column("pods", _COUNT),
    _column("milli_gpus", _COUNT),
    _column("mig_profile", sa.Text()),
    _column("gpu_model", sa.Text()),
    _column("first_s", _TIME),
    _column("last_s", _TIME),
    sa.Index("fingerprints_by_owner", "namespace", "owner"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

RUNS: Final = sa.Table(
    "runs",
    METADATA,
    _column("uid", sa.Text(), primary_key=True),
    _fingerprint_column(),
    _column("submitted_s", _TIME),
    _column("started_s", _TIME),
    _unknown("ended_s", _TIME),
    _column("seen_s", _TIME),
    _unknown("succeeded", _FLAG),
    _column("user_name", sa.Text()),
    _column("version", sa.Text()),
    _column("gpus", _NUMBER),
    _column("pods", _COUNT),
    _column("gpu_model", sa.Text()),
    _column("domain", sa.Text()),
    _unknown("predicted_s", _NUMBER),
    _column("oom_kills", _COUNT),
    _column("restarts", _COUNT),
    _column("last_s", _TIME),
    sa.Index("runs_by_fingerprint", "fingerprint", "last_s"),
    sa.Index("runs_by_time", "last_s"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""`last_s` is the last time at which the run is known to have existed: its end, or the last observation."""

PEAKS: Final = sa.Table(
    "peaks",
    METADATA,
    _fingerprint_column(primary_key=True),
    _column("hour_s", _COUNT, primary_key=True, autoincrement=False),
    _column("samples", _COUNT),
    _column("gaps", _COUNT),
    _unknown("memory_peak_mib", _NUMBER),
    _unknown("memory_total_mib", _NUMBER),
    _unknown("activity_mean", _NUMBER),
    _unknown("activity_p95", _NUMBER),
    _unknown("power_mean_w", _NUMBER),
    sa.Index("peaks_by_hour", "hour_s"),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

OUT_OF_MEMORY: Final = sa.Table(
    "out_of_memory",
    METADATA,
    _fingerprint_column(primary_key=True),
    _column("uid", sa.Text(), primary_key=True),
    _column("at_s", _TIME, primary_key=True),
    _unknown("limit_mib", _NUMBER),
    _column("version", sa.Text()),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

DEVICES: Final = sa.Table(
    "devices",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    _column("node", sa.Text()),
    _column("uuid", sa.Text()),
    _column("instance", sa.Text()),
    _column("namespace", sa.Text()),
    _column("pod", sa.Text()),
    _column("container", sa.Text()),
    _column("model", sa.Text()),
    _column("mig_profile", sa.Text()),
    _column("sharers", sa.Integer()),
    _column("last_minute", sa.Integer()),
    sa.UniqueConstraint("node", "uuid", "instance", "namespace", "pod", "container", name="devices_key"),
    sqlite_strict=True,
)
"""An empty `pod` is no pod. `last_minute` is brought up to date once an hour: retention needs no more."""

MINUTES: Final = sa.Table(
    "minutes",
    METADATA,
    _column("minute", sa.Integer(), primary_key=True, autoincrement=False),
    _column("device", sa.Integer(), primary_key=True, autoincrement=False),
    _unknown("activity", _READING),
    _unknown("tensor", _READING),
    _unknown("dram", _READING),
    _unknown("memory_used_mib", _READING),
    _unknown("memory_total_mib", _READING),
    _unknown("power_w", _READING),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""Minutes since 1970. In order of time: a batch is appended, a window is one range, retention removes one range.

No foreign key: it would be checked for every row of the hot path, and retention removes devices after their minutes.
"""

DOCUMENTS: Final = sa.Table(
    "documents",
    METADATA,
    _column("kind", sa.Text(), primary_key=True),
    _column("name", sa.Text(), primary_key=True),
    _column("version", _COUNT),
    _column("updated_s", _TIME),
    _column("body", sa.Text()),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
