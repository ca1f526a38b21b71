"""Tables of a ledger. A migration in `migrations/versions` creates or changes each of them.

A segment names pod, piece and price by number, so that a million segments are small. Times are seconds since 1970,
money is in ticks (see `kgwe.costing.money`). The names that users query are views, created by the migrations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from kgwe.store.migration import Schema

METADATA: Final = sa.MetaData()
VERSION_TABLE: Final = "kgwe_ledger_schema"

_COUNT: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SMALL: Final = sa.SmallInteger().with_variant(sa.Integer(), "sqlite")
ACCOUNT_NAMES: Final = ("namespace", "team", "project", "cost_center", "experiment", "user_name")
PIECE_NAMES: Final = ("node", "part", "gpu", "place", "model", "capacity", "instance_type")
NODE_NAMES: Final = ("node", "provider_id", "region", "zone", "gpu_model")
SUM_NAMES: Final = ("ticks", "idle_ticks", "measured_ticks", "ppm_s", "unpriced_ppm_s")


def _column(name: str, kind: sa.types.TypeEngine[Any], **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def _key(name: str, kind: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    return _column(name, kind, primary_key=True, autoincrement=False)


def _identity() -> sa.Column[Any]:
    return sa.Column("id", sa.Integer, primary_key=True)


ACCOUNTS: Final = sa.Table(
    "cost_accounts",
    METADATA,
    _identity(),
    *[_column(name, sa.Text()) for name in ACCOUNT_NAMES],
    sa.UniqueConstraint(*ACCOUNT_NAMES, name="cost_accounts_key"),
    sqlite_strict=True,
)

WORKLOADS: Final = sa.Table(
    "cost_workloads",
    METADATA,
    _identity(),
    _column("account", sa.Integer()),
    _column("name", sa.Text()),
    sa.UniqueConstraint("account", "name", name="cost_workloads_key"),
    sqlite_strict=True,
)

PODS: Final = sa.Table(
    "cost_pods",
    METADATA,
    _identity(),
    _column("key", _COUNT),
    _column("workload", sa.Integer()),
    _column("name", sa.Text()),
    sa.UniqueConstraint("key", name="cost_pods_key"),
    sqlite_strict=True,
)
"""`key` is a hash of the UID and the workload: a UID of 36 characters would be most of the row."""

PIECES: Final = sa.Table(
    "cost_pieces",
    METADATA,
    _identity(),
    _column("node", sa.Text()),
    _column("part", _SMALL),
    *[_column(name, sa.Text()) for name in PIECE_NAMES[2:]],
    sa.UniqueConstraint(*PIECE_NAMES, name="cost_pieces_key"),
    sqlite_strict=True,
)

PRICES: Final = sa.Table(
    "cost_prices",
    METADATA,
    _identity(),
    _column("version", sa.Text()),
    sa.UniqueConstraint("version", name="cost_prices_key"),
    sqlite_strict=True,
)

SEGMENTS: Final = sa.Table(
    "cost_segments",
    METADATA,
    _key("start_s", _COUNT),
    _key("pod", sa.Integer()),
    _key("piece", sa.Integer()),
    _key("bucket", _SMALL),
    _column("seconds", sa.Integer()),
    _column("rate", _COUNT),
    _column("ppm", sa.Integer()),
    _column("price", sa.Integer()),
    _column("measured_s", sa.Integer()),
    _column("busy_ms", sa.Integer()),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""In the order of time: a batch is appended, and retention removes one range. Pod 0 is no pod, price 0 is unpriced."""


def _rollup(name: str, period: str) -> sa.Table:
    return sa.Table(
        name,
        METADATA,
        _key(period, sa.Integer()),
        _key("account", sa.Integer()),
        _key("bucket", _SMALL),
        *[_column(each, _COUNT) for each in SUM_NAMES],
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )


HOURS: Final = _rollup("cost_hours", "hour")
"""Sums of segments by hours since 1970. Account 0 is no pod."""
DAYS: Final = _rollup("cost_days", "day")
"""Sums of segments by days since 1970, in UTC."""

NODES: Final = sa.Table(
    "cost_nodes",
    METADATA,
    _column("node", sa.Text(), primary_key=True),
    *[_column(name, sa.Text()) for name in NODE_NAMES[1:]],
    _column("gpus", sa.Integer()),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""What bills and exports need to know of a node. Nodes that are gone stay."""

BILLS: Final = sa.Table(
    "cost_bills",
    METADATA,
    _identity(),
    _column("name", sa.Text()),
    _column("digest", sa.Text()),
    _column("imported_s", _COUNT),
    _column("start_s", _COUNT),
    _column("end_s", _COUNT),
    _column("currency", sa.Text()),
    _column("micros", _COUNT),
    sa.UniqueConstraint("digest", name="cost_bills_key"),
    sqlite_strict=True,
)

RESTATEMENTS: Final = sa.Table(
    "cost_restatements",
    METADATA,
    _key("hour", sa.Integer()),
    _column("node", sa.Text(), primary_key=True),
    _column("bill", sa.Integer()),
    _column("book_ticks", _COUNT),
    _column("billed_micros", _COUNT),
    _column("cause", sa.Text()),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""A node-hour of a bill, beside what the book said. Nodes that no meter saw have the name of the bill's resource."""

STATE: Final = sa.Table(
    "cost_state",
    METADATA,
    _column("name", sa.Text(), primary_key=True),
    _column("value", sa.Text()),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)
"""How far the ledger is settled, and how it was made: written in the transaction of the segments."""

SAVINGS: Final = sa.Table(
    "cost_saving_records",
    METADATA,
    _key("at_s", _COUNT),
    _column("namespace", sa.Text(), primary_key=True),
    _column("kind", sa.Text(), primary_key=True),
    _column("micros", _COUNT),
    _column("method", sa.Text()),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

BUDGETS: Final = sa.Table(
    "cost_budget_records",
    METADATA,
    _key("at_s", _COUNT),
    _column("namespace", sa.Text(), primary_key=True),
    _column("name", sa.Text(), primary_key=True),
    _column("limit_micros", _COUNT),
    _column("spent_micros", _COUNT),
    sqlite_strict=True,
    sqlite_with_rowid=False,
)

#: The schema of the cost engine. The lock is "cost".
LEDGER: Final = Schema(
    "ledger", Path(__file__).parent / "migrations", METADATA, VERSION_TABLE, 0x636F7374, "kgwe cost-engine"
)
