"""Rows of tables from the nouns of a history, and back.

A value that no table can hold becomes unknown; where the value is required, the row is refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kgwe.model.usage.fingerprint import Fingerprint, Shape
from kgwe.model.usage.history import OutOfMemory, Run, UsagePeak

if TYPE_CHECKING:
    from collections.abc import Mapping

    Row = dict[str, Any]

# Integers and times beyond this are no measurement. Doubles hold every integer up to it.
_LARGEST: Final = 2.0**53
_OPTIONAL: Final = frozenset({"ended_s", "succeeded", "predicted_s", "limit_mib"}) | {
    "memory_peak_mib",
    "memory_total_mib",
    "activity_mean",
    "activity_p95",
    "power_mean_w",
}


def clean_text(text: str) -> str:
    """Return text that both databases can hold: no NUL, no half of a surrogate pair."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def make_fingerprint_row(fingerprint: Fingerprint, now_s: float) -> Row | None:
    shape = fingerprint.shape
    return _check(
        {
            "key": fingerprint.key,
            "namespace": fingerprint.namespace,
            "owner": fingerprint.owner,
            "image": fingerprint.image,
            "command": fingerprint.command,
            "version": fingerprint.version,
            "pods": shape.pods,
            "milli_gpus": shape.milli_gpus,
            "mig_profile": shape.mig_profile,
            "gpu_model": shape.gpu_model,
            "first_s": now_s,
            "last_s": now_s,
        }
    )


def make_stub_row(key: str, at_s: float) -> Row:
    """Return the row of a fingerprint whose description has not been stored yet."""
    row = make_fingerprint_row(Fingerprint(key, "", "", "", "", Shape()), at_s)
    assert row is not None, "times of stubs come from checked rows"  # noqa: S101 -- for mypy
    return row


def read_fingerprint(row: Mapping[str, Any]) -> Fingerprint:
    shape = Shape(row["pods"], row["milli_gpus"], row["mig_profile"], row["gpu_model"])
    return Fingerprint(row["key"], row["namespace"], row["owner"], row["image"], row["command"], shape, row["version"])


def make_run_row(run: Run) -> Row | None:
    row = _check(
        {
            "uid": run.uid,
            "fingerprint": run.fingerprint,
            "submitted_s": run.submitted_s,
            "started_s": run.started_s,
            "ended_s": run.ended_s,
            "seen_s": run.seen_s,
            "succeeded": None if run.succeeded is None else int(run.succeeded),
            "user_name": run.user,
            "version": run.version,
            "gpus": run.gpus,
            "pods": run.pods,
            "gpu_model": run.gpu_model,
            "domain": run.domain,
            "predicted_s": run.predicted_s,
            "oom_kills": run.oom_kills,
            "restarts": run.restarts,
        }
    )
    if row is not None:
        end_s = row["seen_s"] if row["ended_s"] is None else row["ended_s"]
        row["last_s"] = max(end_s, row["started_s"])
    return row


def read_run(row: Mapping[str, Any]) -> Run:
    return Run(
        uid=row["uid"],
        fingerprint=row["fingerprint"],
        submitted_s=row["submitted_s"],
        started_s=row["started_s"],
        ended_s=row["ended_s"],
        seen_s=row["seen_s"],
        succeeded=None if row["succeeded"] is None else bool(row["succeeded"]),
        user=row["user_name"],
        version=row["version"],
        gpus=row["gpus"],
        pods=row["pods"],
        gpu_model=row["gpu_model"],
        domain=row["domain"],
        predicted_s=row["predicted_s"],
        oom_kills=row["oom_kills"],
        restarts=row["restarts"],
    )


def make_peak_row(peak: UsagePeak) -> Row | None:
    return _check({name: getattr(peak, name) for name in UsagePeak.__slots__})


def read_peak(row: Mapping[str, Any]) -> UsagePeak:
    return UsagePeak(**{name: row[name] for name in UsagePeak.__slots__})


def make_out_of_memory_row(fact: OutOfMemory) -> Row | None:
    return _check({name: getattr(fact, name) for name in OutOfMemory.__slots__})


def read_out_of_memory(row: Mapping[str, Any]) -> OutOfMemory:
    return OutOfMemory(**{name: row[name] for name in OutOfMemory.__slots__})


def _check(row: Row) -> Row | None:
    """Return the row with values that a table can hold; None if a required number is not one."""
    for name, value in row.items():
        if isinstance(value, str):
            row[name] = clean_text(value)
        elif value is not None and not (math.isfinite(value) and abs(value) <= _LARGEST):
            if name not in _OPTIONAL:
                return None
            row[name] = None
    return row
