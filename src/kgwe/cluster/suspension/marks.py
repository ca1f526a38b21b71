"""Annotations that record a suspension by KGWE, and the words for a suspended workload.

A user who may edit an object may edit its annotations: what they say is a claim. Only words and the choice of objects
to look at are taken from them without a check.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe.kube.api import timestamp
from kgwe.visible_text import escape_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.kube.api.meta import ObjectMeta
    from kgwe.kube.api.resources import Resource

#: which process of KGWE suspended the object
BY: Final = "kgwe.nvidia.io/suspended-by"
#: when, as a timestamp
AT: Final = "kgwe.nvidia.io/suspended-at"
#: why: one CamelCase word, and optionally a colon and a sentence
REASON: Final = "kgwe.nvidia.io/suspended-reason"
#: replicas that a Deployment, StatefulSet, ReplicaSet or LeaderWorkerSet had before
REPLICAS: Final = "kgwe.nvidia.io/suspended-replicas"
#: the object must not be suspended before this time
KEEP_UNTIL: Final = "kgwe.nvidia.io/keep-until"

#: since when its GPUs are idle, when it is suspended unless it is kept, and what that saves per hour, in dollars
IDLE_SINCE: Final = "kgwe.nvidia.io/idle-since"
IDLE_ACTION_AT: Final = "kgwe.nvidia.io/idle-action-at"
IDLE_SAVING: Final = "kgwe.nvidia.io/idle-saving-per-hour"

RECORD: Final = (BY, AT, REASON, REPLICAS)
NOTICE: Final = (IDLE_SINCE, IDLE_ACTION_AT, IDLE_SAVING)

#: a time to keep that lies further ahead is not valid: it would keep for ever
MOST_KEEP_S: Final = 7 * 86_400.0

#: reason of a condition where no annotation gives another
SUSPENDED_BY_USER: Final = "SuspendedByUser"
_REASON_WORD: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")
_MOST_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class Record:
    """What KGWE wrote on an object that it suspended."""

    by: str
    at: str
    reason: str
    #: as written; None: none, or no number
    replicas: int | None = None


def read_record(annotations: Mapping[str, str]) -> Record | None:
    """The record on an object; None: KGWE has not suspended it."""
    by = annotations.get(BY, "")
    if not by:
        return None
    return Record(
        _shorten(by),
        _shorten(annotations.get(AT, "")),
        _shorten(annotations.get(REASON, "")),
        _parse_count(annotations.get(REPLICAS, "")),
    )


def write_record(by: str, at: str, reason: str, replicas: int | None = None) -> dict[str, str]:
    """Annotations that record a suspension."""
    notes = {BY: by, AT: at, REASON: _shorten(reason)}
    return notes if replicas is None else notes | {REPLICAS: str(replicas)}


def erase_record() -> dict[str, None]:
    """Annotations of a merge patch that removes the record."""
    return dict.fromkeys(RECORD)


@dataclass(frozen=True, slots=True)
class Notice:
    """What KGWE wrote on an object whose GPUs are idle. Seconds since 1970; None: not known."""

    idle_since_s: float | None = None
    action_at_s: float | None = None
    saving_per_hour: float | None = None


def describe_notice(meta: ObjectMeta) -> str:
    """What the notice on an object announces, and how to keep it running; empty: there is no notice."""
    notice = read_notice(meta.annotations)
    if notice is None:
        return ""
    since = f" since {timestamp.format_time(notice.idle_since_s)}" if notice.idle_since_s is not None else ""
    if notice.action_at_s is None:
        return f"its GPUs have been idle{since}. Stop it to free them"
    keep = f"kgwe idle keep {meta.name} -n {meta.namespace} --for 8h"
    when = timestamp.format_time(notice.action_at_s)
    return f"its GPUs have been idle{since}, and it will be suspended at {when}. Keep it with: {keep}"


def read_notice(annotations: Mapping[str, str]) -> Notice | None:
    """The notice on an object; None: there is none."""
    if not any(key in annotations for key in NOTICE):
        return None
    return Notice(
        parse_time(annotations.get(IDLE_SINCE, "")),
        parse_time(annotations.get(IDLE_ACTION_AT, "")),
        _parse_amount(annotations.get(IDLE_SAVING, "")),
    )


def write_notice(notice: Notice) -> dict[str, str | None]:
    """Annotations of a merge patch that writes the notice; what is not known is removed."""
    since, action, saving = notice.idle_since_s, notice.action_at_s, notice.saving_per_hour
    return {
        IDLE_SINCE: None if since is None else timestamp.format_time(since),
        IDLE_ACTION_AT: None if action is None else timestamp.format_time(action),
        IDLE_SAVING: None if saving is None else f"{saving:.4f}",
    }


def erase_notice() -> dict[str, None]:
    """Annotations of a merge patch that removes the notice."""
    return dict.fromkeys(NOTICE)


def kept_until_s(annotations: Mapping[str, str], now_s: float) -> float | None:
    """Until when the object must not be suspended; None: it may be. A time too far ahead does not count."""
    until = parse_time(annotations.get(KEEP_UNTIL, ""))
    return until if until is not None and now_s < until <= now_s + MOST_KEEP_S else None


def parse_time(text: str) -> float | None:
    """Seconds since 1970 of a timestamp with a time zone; None: it is none."""
    try:
        at = timestamp.parse(text)
        return at.timestamp() if at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def describe_suspension(resource: Resource[Any], meta: ObjectMeta) -> tuple[str, str]:
    """(reason, message) of a GPUWorkload with `spec.suspend`."""
    record = read_record(meta.annotations)
    resume = f"resume with {resume_command(resource, meta)}"
    if record is None:
        return SUSPENDED_BY_USER, f"suspended; {resume}"
    word, _, sentence = record.reason.partition(":")
    why = sentence.strip() or word.strip()
    told = f"suspended by {record.by}" + (f" at {record.at}" if record.at else "") + (f" ({why})" if why else "")
    return word if _REASON_WORD.fullmatch(word) else SUSPENDED_BY_USER, f"{told}; {resume}"


def resume_command(resource: Resource[Any], meta: ObjectMeta) -> str:
    """The command that resumes the workload."""
    if read_record(meta.annotations) is not None:
        return f"kgwe idle restore {meta.name} -n {meta.namespace}"
    patch = '{"spec":{"suspend":false}}'
    return f"kubectl patch {resource.full_name} {meta.name} -n {meta.namespace} --type merge -p '{patch}'"


def _parse_count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(2**31)) else None


def _parse_amount(text: str) -> float | None:
    try:
        amount = float(text)
    except ValueError:
        return None
    return amount if math.isfinite(amount) and amount >= 0 else None


def _shorten(text: str) -> str:
    """One line that fits into a message."""
    line = escape_line(" ".join(text.split()))
    return line if len(line) <= _MOST_CHARS else line[: _MOST_CHARS - 1] + "…"
