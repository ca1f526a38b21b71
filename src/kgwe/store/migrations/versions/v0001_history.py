"""The first schema: fingerprints with runs, peaks and out-of-memory facts; minutes of devices; JSON documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import sqlite

if TYPE_CHECKING:
    from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STRICT = {"sqlite_strict": True}
_BY_KEY = {"sqlite_strict": True, "sqlite_with_rowid": False}


def upgrade() -> None:
    _create_fingerprints()
    _create_runs()
    _create_peaks()
    _create_out_of_memory()
    _create_minutes()
    _create_documents()


def _text(*names: str) -> list[SchemaItem]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _double(*names: str, nullable: bool = False) -> list[SchemaItem]:
    kind: sa.types.TypeEngine[Any] = sa.Double().with_variant(sqlite.REAL(), "sqlite")
    return [sa.Column(name, kind, nullable=nullable) for name in names]


def _count(*names: str) -> list[SchemaItem]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return [sa.Column(name, kind, nullable=False, autoincrement=False) for name in names]


def _integer(*names: str) -> list[SchemaItem]:
    return [sa.Column(name, sa.Integer(), nullable=False, autoincrement=False) for name in names]


def _fingerprint() -> sa.Column[Any]:
    return sa.Column("fingerprint", sa.Text(), sa.ForeignKey("fingerprints.key", ondelete="CASCADE"), nullable=False)


def _create_fingerprints() -> None:
    op.create_table(
        "fingerprints",
        *_text("key", "namespace", "owner", "image", "command", "version"),
        *_count("pods", "milli_gpus"),
        *_text("mig_profile", "gpu_model"),
        *_double("first_s", "last_s"),
        sa.PrimaryKeyConstraint("key"),
        **_BY_KEY,
    )
    op.create_index("fingerprints_by_owner", "fingerprints", ["namespace", "owner"])


def _create_runs() -> None:
    op.create_table(
        "runs",
        *_text("uid"),
        _fingerprint(),
        *_double("submitted_s", "started_s"),
        *_double("ended_s", nullable=True),
        *_double("seen_s"),
        sa.Column("succeeded", sa.SmallInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        *_text("user_name", "version"),
        *_double("gpus"),
        *_count("pods"),
        *_text("gpu_model", "domain"),
        *_double("predicted_s", nullable=True),
        *_count("oom_kills", "restarts"),
        *_double("last_s"),
        sa.PrimaryKeyConstraint("uid"),
        **_BY_KEY,
    )
    op.create_index("runs_by_fingerprint", "runs", ["fingerprint", "last_s"])
    op.create_index("runs_by_time", "runs", ["last_s"])


def _create_peaks() -> None:
    unknown = ("memory_peak_mib", "memory_total_mib", "activity_mean", "activity_p95", "power_mean_w")
    op.create_table(
        "peaks",
        _fingerprint(),
        *_count("hour_s", "samples", "gaps"),
        *_double(*unknown, nullable=True),
        sa.PrimaryKeyConstraint("fingerprint", "hour_s"),
        **_BY_KEY,
    )
    op.create_index("peaks_by_hour", "peaks", ["hour_s"])


def _create_out_of_memory() -> None:
    op.create_table(
        "out_of_memory",
        _fingerprint(),
        *_text("uid"),
        *_double("at_s"),
        *_double("limit_mib", nullable=True),
        *_text("version"),
        sa.PrimaryKeyConstraint("fingerprint", "uid", "at_s"),
        **_BY_KEY,
    )


def _create_minutes() -> None:
    key = ("node", "uuid", "instance", "namespace", "pod", "container")
    op.create_table(
        "devices",
        sa.Column("id", sa.Integer(), primary_key=True),
        *_text(*key, "model", "mig_profile"),
        *_integer("sharers", "last_minute"),
        sa.UniqueConstraint(*key, name="devices_key"),
        **_STRICT,
    )
    readings = ("activity", "tensor", "dram", "memory_used_mib", "memory_total_mib", "power_w")
    op.create_table(
        "minutes",
        *_integer("minute", "device"),
        *[sa.Column(name, sa.REAL(), nullable=True) for name in readings],
        sa.PrimaryKeyConstraint("minute", "device"),
        **_BY_KEY,
    )


def _create_documents() -> None:
    op.create_table(
        "documents",
        *_text("kind", "name"),
        *_count("version"),
        *_double("updated_s"),
        *_text("body"),
        sa.PrimaryKeyConstraint("kind", "name"),
        **_BY_KEY,
    )
