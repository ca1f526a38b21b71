"""Nodes, bills and restated node-hours; views with the measured use."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_BY_KEY = {"sqlite_strict": True, "sqlite_with_rowid": False}
_ACCOUNT = ("namespace", "team", "project", "cost_center", "experiment", "user_name")
_BUCKET = (
    "CASE s.bucket WHEN 1 THEN 'allocated' WHEN 2 THEN 'overhead' WHEN 3 THEN 'unallocated'"
    " WHEN 4 THEN 'reserved-idle' WHEN 5 THEN 'quota-held' ELSE 'fleet' END"
)
_NAMES = ", ".join(f"coalesce(a.{name}, '') AS {name}" for name in _ACCOUNT)
_MONEY = (
    "s.ticks / 3600000000.0 AS total_cost, s.idle_ticks / 3600000000.0 AS idle_cost,"
    " (s.measured_ticks - s.idle_ticks) / 3600000000.0 AS used_cost, s.ppm_s / 3600000000.0 AS gpu_hours"
)
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _column(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, autoincrement=False)


def upgrade() -> None:
    _create_tables()
    for view in ("cost_data", "cost_hourly_summary", "cost_daily_summary"):
        op.execute(f"DROP VIEW {view}")
    op.execute(
        f"CREATE VIEW cost_data AS SELECT s.start_s, s.start_s + s.seconds AS end_s, {_BUCKET} AS bucket, {_NAMES},"  # noqa: S608 -- constants
        " coalesce(w.name, '') AS workload, coalesce(p.name, '') AS pod, e.node, e.gpu, e.place, e.model AS gpu_type,"
        " e.capacity AS capacity_type, e.instance_type, s.rate / 1000000.0 AS hourly_rate, s.ppm / 1000000.0 AS gpus,"
        " s.rate * s.seconds / 3600000000.0 AS cost, coalesce(r.version, '') AS price, s.measured_s,"
        " CASE WHEN s.measured_s > 0 THEN s.busy_ms / 1000.0 / s.measured_s END AS utilization,"
        " s.rate * (s.busy_ms / 1000.0) / 3600000000.0 AS used_cost,"
        " s.rate * (s.measured_s - s.busy_ms / 1000.0) / 3600000000.0 AS idle_cost"
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


def _create_tables() -> None:
    text, integer = sa.Text(), sa.Integer()
    op.create_table(
        "cost_nodes",
        *[_column(name, text) for name in ("node", "provider_id", "region", "zone", "gpu_model")],
        _column("gpus", integer),
        sa.PrimaryKeyConstraint("node"),
        **_BY_KEY,
    )
    op.create_table(
        "cost_bills",
        sa.Column("id", integer, primary_key=True),
        _column("name", text),
        _column("digest", text),
        *[_column(name, _BIG) for name in ("imported_s", "start_s", "end_s")],
        _column("currency", text),
        _column("micros", _BIG),
        sa.UniqueConstraint("digest", name="cost_bills_key"),
        sqlite_strict=True,
    )
    op.create_table(
        "cost_restatements",
        _column("hour", integer),
        _column("node", text),
        _column("bill", integer),
        _column("book_ticks", _BIG),
        _column("billed_micros", _BIG),
        _column("cause", text),
        sa.PrimaryKeyConstraint("hour", "node"),
        **_BY_KEY,
    )
