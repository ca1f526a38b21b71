"""Workloads that are the same work again: a nightly training, the next version of a server.

A fingerprint is built from what stays the same between runs: owner, image repository without tag or digest, the shape
of the command, chosen labels, and the requested shape. The image's tag is kept beside it (`version`): a new version
starts from the history of the old one, with less certainty.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Numbers, hashes and dates inside a name or argument differ from run to run.
_VARIABLE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27,}|[0-9a-f]{10,}|\d+(?:[._:T-]\d+)*", re.ASCII)
# A suffix that controllers append to the names of the objects they create. One at a time: a repetition of these
# alternatives, which overlap, would take time exponential in the length of a name.
_GENERATED: Final = re.compile(r"[0-9]{5,}|[0-9a-f]{8,10}|[bcdfghjklmnpqrstvwxz2456789]{5}", re.ASCII)
#: Labels that say what a workload is; other labels change from run to run.
LABELS: Final = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/component",
    "app",
    "kgwe.nvidia.io/workload-type",
    "gpu-autoscaler.io/workload-type",
)
_MAX_WORDS: Final = 32
# A pod of a Job of a CronJob has two.
_MAX_SUFFIXES: Final = 8
_MAX_WORD: Final = 128


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workload asks for."""

    pods: int = 1
    milli_gpus: int = 0
    """Per pod: 1000 is one GPU."""
    mig_profile: str = ""
    gpu_model: str = ""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The identity of a workload across its runs."""

    key: str
    """32 hexadecimal digits: the primary key of its history."""
    namespace: str
    owner: str
    """Kind and name without generated suffixes, such as `Job/nightly-train`."""
    image: str
    """Repository without tag and digest."""
    command: str
    shape: Shape
    version: str = ""
    """Tag or digest of the image: not part of the key."""


def make_fingerprint(
    *,
    namespace: str,
    owner_kind: str,
    owner_name: str,
    image: str,
    command: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
    shape: Shape,
) -> Fingerprint:
    """Return the fingerprint of a workload. The same arguments always give the same key, in every process."""
    repository, version = split_image(image)
    owner = f"{owner_kind}/{generalize_name(owner_name)}"
    shaped = generalize_command(command)
    chosen = sorted((name, generalize_name(value)) for name, value in (labels or {}).items() if name in LABELS)
    text = repr((namespace, owner, repository, shaped, chosen, shape))
    key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return Fingerprint(key, namespace, owner, repository, shaped, shape, version)


def split_image(image: str) -> tuple[str, str]:
    """Return repository and version: `ghcr.io/org/app:1.2` -> (`ghcr.io/org/app`, `1.2`). A digest is a version too."""
    name, _, digest = image.partition("@")
    head, slash, last = name.rpartition("/")
    base, _, tag = last.partition(":")
    return f"{head}{slash}{base}", tag or digest


def generalize_name(name: str) -> str:
    """Return a name without the suffixes that controllers generate: `train-29384750-x7k2p` -> `train`."""
    kept = str(name)  # members of an enum are written in another way
    for _ in range(_MAX_SUFFIXES):
        head, _dash, suffix = kept.rpartition("-")
        if not head or _GENERATED.fullmatch(suffix) is None:
            break
        kept = head
    return kept


def generalize_command(command: Sequence[str]) -> str:
    """Return the words of a command with numbers, hashes and dates replaced by `#`."""
    return " ".join(_VARIABLE.sub("#", word[:_MAX_WORD]) for word in command[:_MAX_WORDS])
