"""What earlier versions of a workload did: the beginning of a history that has none of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from kgwe.store import rows
from kgwe.store.schema import FINGERPRINTS, OUT_OF_MEMORY, PEAKS, RUNS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from kgwe.model.usage.fingerprint import Fingerprint
    from kgwe.model.usage.history import OutOfMemory, Run, UsagePeak
    from kgwe.store.database import Database

_HOUR_S: Final = 3600


class Relation(StrEnum):
    """How close the fingerprint of a prior is to the one that was asked for."""

    SAME_VERSION = "same-version"
    OTHER_VERSION = "other-version"
    """The same fingerprint; no run has the version that was asked for."""
    OTHER_SHAPE = "other-shape"
    """The same owner and image with another command or shape."""
    OTHER_IMAGE = "other-image"
    """The same owner with another image repository."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class VersionedPeak:
    """An hour of use, and the versions that ran in it."""

    peak: UsagePeak
    versions: frozenset[str]


@dataclass(frozen=True, slots=True)
class Prior:
    """The history to start from. The further the relation, the wider an interval has to be."""

    relation: Relation
    source: Fingerprint | None
    """The fingerprint whose history it is; None without any."""
    runs: tuple[Run, ...] = ()
    peaks: tuple[VersionedPeak, ...] = ()
    out_of_memory: tuple[OutOfMemory, ...] = ()


def load_prior(database: Database, fingerprint: Fingerprint) -> Prior:
    """Return the history of a fingerprint, or that of its nearest relative in the same namespace."""
    with database.transaction() as connection:
        source, relation = _find_source(connection, fingerprint)
        if source is None:
            return Prior(Relation.NONE, None)
        prior = _load_history(connection, source)
    if relation is not Relation.SAME_VERSION:
        return replace(prior, relation=relation)
    is_known = any(run.version == fingerprint.version for run in prior.runs)
    return prior if is_known else replace(prior, relation=Relation.OTHER_VERSION)


def _find_source(connection: Connection, fingerprint: Fingerprint) -> tuple[Fingerprint | None, Relation]:
    has_history = sa.or_(
        *(sa.exists().where(table.c.fingerprint == FINGERPRINTS.c.key) for table in (RUNS, PEAKS, OUT_OF_MEMORY))
    )
    same = connection.execute(
        sa.select(FINGERPRINTS).where(FINGERPRINTS.c.key == fingerprint.key, has_history)
    ).mappings()
    row = same.first()
    if row is not None:
        return rows.read_fingerprint(dict(row)), Relation.SAME_VERSION
    is_same_image = FINGERPRINTS.c.image == rows.clean_text(fingerprint.image)
    nearest = (
        sa.select(FINGERPRINTS)
        .where(
            FINGERPRINTS.c.namespace == rows.clean_text(fingerprint.namespace),
            FINGERPRINTS.c.owner == rows.clean_text(fingerprint.owner),
            has_history,
        )
        .order_by(is_same_image.desc(), FINGERPRINTS.c.last_s.desc(), FINGERPRINTS.c.key)
        .limit(1)
    )
    row = connection.execute(nearest).mappings().first()
    if row is None:
        return None, Relation.NONE
    source = rows.read_fingerprint(dict(row))
    return source, Relation.OTHER_SHAPE if source.image == fingerprint.image else Relation.OTHER_IMAGE


def _load_history(connection: Connection, source: Fingerprint) -> Prior:
    def select(table: sa.Table, *order: sa.Column[Any]) -> list[dict[str, Any]]:
        query = sa.select(table).where(table.c.fingerprint == source.key).order_by(*order)
        return [dict(row) for row in connection.execute(query).mappings()]

    runs = tuple(rows.read_run(row) for row in select(RUNS, RUNS.c.started_s, RUNS.c.uid))
    peaks = tuple(rows.read_peak(row) for row in select(PEAKS, PEAKS.c.hour_s))
    facts = tuple(rows.read_out_of_memory(row) for row in select(OUT_OF_MEMORY, OUT_OF_MEMORY.c.at_s))
    versioned = tuple(VersionedPeak(peak, _find_versions(peak, runs)) for peak in peaks)
    return Prior(Relation.SAME_VERSION, source, runs, versioned, facts)


def _find_versions(peak: UsagePeak, runs: tuple[Run, ...]) -> frozenset[str]:
    end_s = peak.hour_s + _HOUR_S
    return frozenset(
        run.version for run in runs if run.started_s < end_s and run.started_s + run.lasted_s >= peak.hour_s
    )
