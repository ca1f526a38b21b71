"""The first schema: segments with their names, roll-ups by hour and day, state, and the views that users query."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from alembic import op

if TYPE_CHECKING:
    from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STRICT = {"sqlite_strict": True}
_BY_KEY = {"sqlite_strict": True, "sqlite_with_rowid": False}
_ACCOUNT = ("namespace", "team", "project", "cost_center", "experiment", "user_name")
_SUMS = ("ticks", "idle_ticks", "measured_ticks", "ppm_s", "unpriced_ppm_s")
_BUCKET = (
    "CASE s.bucket WHEN 1 THEN 'allocated' WHEN 2 THEN 'overhead' WHEN 3 THEN 'unallocated'"
    " WHEN 4 THEN 'reserved-idle' ELSE 'fleet' END"
)
_NAMES = ", ".join(f"coalesce(a.{name}, '') AS {name}" for name in _ACCOUNT)
# 3,600 ticks are a micro-dollar, 3,600 million ppm-seconds a GPU-hour.
_MONEY = (
    "s.ticks / 3600000000.0 AS total_cost, s.idle_ticks / 3600000000.0 AS idle_cost,"
    " (s.measured_ticks - s.idle_ticks) / 3600000000.0 AS used_cost, s.ppm_s / 3600000000.0 AS gpu_hours"
)


def upgrade() -> None:
    _create_names()
    _create_segments()
    _create_rollups()
    _create_records()
    _create_views()


def _text(*names: str) -> list[SchemaItem]:
    return [sa.Column(name, sa.Text(), nullable=False) for name in names]


def _integer(*names: str) -> list[SchemaItem]:
    return [sa.Column(name, sa.Integer(), nullable=False, autoincrement=False) for name in names]


def _small(*names: str) -> list[SchemaItem]:
    kind = sa.SmallInteger().with_variant(sa.Integer(), "sqlite")
    return [sa.Column(name, kind, nullable=False, autoincrement=False) for name in names]


def _count(*names: str) -> list[SchemaItem]:
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return [sa.Column(name, kind, nullable=False, autoincrement=False) for name in names]


def _identity() -> SchemaItem:
    return sa.Column("id", sa.Integer(), primary_key=True)


def _create_names() -> None:
    op.create_table(
        "cost_accounts",
        _identity(),
        *_text(*_ACCOUNT),
        sa.UniqueConstraint(*_ACCOUNT, name="cost_accounts_key"),
        **_STRICT,
    )
    op.create_table(
        "cost_workloads",
        _identity(),
        *_integer("account"),
        *_text("name"),
        sa.UniqueConstraint("account", "name", name="cost_workloads_key"),
        **_STRICT,
    )
    op.create_table(
        "cost_pods",
        _identity(),
        *_count("key"),
        *_integer("workload"),
        *_text("name"),
        sa.UniqueConstraint("key", name="cost_pods_key"),
        **_STRICT,
    )
    piece = ("node", "part", "gpu", "place", "model", "capacity", "instance_type")
    op.create_table(
        "cost_pieces",
        _identity(),
        *_text("node"),
        *_small("part"),
        *_text(*piece[2:]),
        sa.UniqueConstraint(*piece, name="cost_pieces_key"),
        **_STRICT,
    )
    op.create_table(
        "cost_prices", _identity(), *_text("version"), sa.UniqueConstraint("version", name="cost_prices_key"), **_STRICT
    )


def _create_segments() -> None:
    op.create_table(
        "cost_segments",
        *_count("start_s"),
        *_integer("pod", "piece"),
        *_small("bucket"),
        *_integer("seconds"),
        *_count("rate"),
        *_integer("ppm", "price", "measured_s", "busy_ms"),
        sa.PrimaryKeyConstraint("start_s", "pod", "piece", "bucket"),
        **_BY_KEY,
    )


def _create_rollups() -> None:
    for table, period in (("cost_hours", "hour"), ("cost_days", "day")):
        op.create_table(
            table,
            *_integer(period, "account"),
            *_small("bucket"),
            *_count(*_SUMS),
            sa.PrimaryKeyConstraint(period, "account", "bucket"),
            **_BY_KEY,
        )


def _create_records() -> None:
    op.create_table("cost_state", *_text("name", "value"), sa.PrimaryKeyConstraint("name"), **_BY_KEY)
    op.create_table(
        "cost_saving_records",
        *_count("at_s"),
        *_text("namespace", "kind"),
        *_count("micros"),
        *_text("method"),
        sa.PrimaryKeyConstraint("at_s", "namespace", "kind"),
        **_BY_KEY,
    )
    op.create_table(
        "cost_budget_records",
        *_count("at_s"),
        *_text("namespace", "name"),
        *_count("limit_micros", "spent_micros"),
        sa.PrimaryKeyConstraint("at_s", "namespace", "name"),
        **_BY_KEY,
    )


def _create_views() -> None:
    op.execute(
        f"CREATE VIEW cost_data AS SELECT s.start_s, s.start_s + s.seconds AS end_s, {_BUCKET} AS bucket, {_NAMES},"  # noqa: S608 -- constants
        " coalesce(w.name, '') AS workload, coalesce(p.name, '') AS pod, e.node, e.gpu, e.place, e.model AS gpu_type,"
        " e.capacity AS capacity_type, e.instance_type, s.rate / 1000000.0 AS hourly_rate, s.ppm / 1000000.0 AS gpus,"
        " s.rate * s.seconds / 3600000000.0 AS cost, coalesce(r.version, '') AS price"
        " FROM cost_segments s JOIN cost_pieces e ON e.id = s.piece LEFT JOIN cost_pods p ON p.id = s.pod"
        " LEFT JOIN cost_workloads w ON w.id = p.workload LEFT JOIN cost_accounts a ON a.id = w.account"
        " LEFT JOIN cost_prices r ON r.id = s.price"
    )
    for view, table, period, seconds in (
        ("cost_hourly_summary", "cost_hours", "hour", 3600),
        ("cost_daily_summary", "cost_days", "day", 86400),
    ):
        op.execute(
            f"CREATE VIEW {view} AS SELECT s.{period} * {seconds} AS start_s, {_BUCKET} AS bucket, {_NAMES}, {_MONEY}"  # noqa: S608 -- constants
            f" FROM {table} s LEFT JOIN cost_accounts a ON a.id = s.account"
        )
    op.execute(
        "CREATE VIEW cost_savings AS SELECT at_s, namespace, kind, micros / 1000000.0 AS savings, method"
        " FROM cost_saving_records"
    )
    op.execute(
        "CREATE VIEW budget_tracking AS SELECT at_s, namespace, name, limit_micros / 1000000.0 AS budget_limit,"
        " spent_micros / 1000000.0 AS spent FROM cost_budget_records"
    )
