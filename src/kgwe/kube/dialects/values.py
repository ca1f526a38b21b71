"""Values of labels and annotations: read completely, or refused with what would be valid."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kgwe.kube.dialects.membership import Unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kgwe.kube.api import core

#: labels and annotations that number the pods of a template, of every controller
INDEX_KEYS: Final = (
    "batch.kubernetes.io/job-completion-index",
    "apps.kubernetes.io/pod-index",
    "volcano.sh/task-index",
    "training.kubeflow.org/replica-index",
    "leaderworkerset.sigs.k8s.io/worker-index",
)

# More pods than any cluster has: a larger number is a typing error.
_MOST: Final = 10**6
_RATE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?) ?(?P<prefix>[MGT])(?P<unit>b|B|bit|byte)?(?:ps|/s)?", re.ASCII)
_GIGA: Final = {"M": 1e-3, "G": 1.0, "T": 1e3}
_BITS_PER_BYTE: Final = 8


def read_number(text: str, source: str, *, least: int = 1) -> int:
    """Parse a whole number."""
    digits = text.strip()
    if digits.isascii() and digits.isdecimal() and least <= int(digits[:8]) <= _MOST and len(digits) <= len(str(_MOST)):
        return int(digits)
    raise Unreadable(f"{source} is {text!r}: write a whole number, at least {least}")


def check_number(value: int, source: str, *, least: int = 1) -> int:
    """Check a number that needs no parsing."""
    return read_number(str(value), source, least=least)


def read_flag(text: str, source: str) -> bool:
    """Parse a boolean as Go does."""
    folded = text.strip().lower()
    if folded in ("true", "t", "1"):
        return True
    if folded in ("false", "f", "0"):
        return False
    raise Unreadable(f'{source} is {text!r}: write "true" or "false"')


def gb_per_s(text: str, source: str) -> float:
    """`100Gb` is 12.5 GB/s: a small b counts bits, a capital B bytes."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise Unreadable(f"{source} is {text!r}: write a rate such as 100Gb (bits) or 12.5GB (bytes) per second")
    rate = float(match["number"]) * _GIGA[match["prefix"]]
    return rate if match["unit"] in ("B", "byte") else rate / _BITS_PER_BYTE


def read_key(pod: core.Pod, key: str) -> str:
    """The value of the pod's annotation, else of its label; empty: not set."""
    return pod.metadata.annotations.get(key) or pod.metadata.labels.get(key, "")


def read_index(pod: core.Pod, keys: Iterable[str] = INDEX_KEYS) -> int | None:
    """The pod's number among those of its template, by the first of the keys that it carries."""
    for key in keys:
        text = read_key(pod, key)
        if text:
            return read_number(text, key, least=0)
    return None


def domain_of(key: str) -> str:
    """What a key of a label or annotation begins with, up to the slash."""
    return key.partition("/")[0]
