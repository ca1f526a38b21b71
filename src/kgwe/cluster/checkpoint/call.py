"""How a pod wants to be asked for a checkpoint: `kgwe.nvidia.io/checkpoint`.

signal=SIGUSR1                      a signal to its processes; they confirm by writing /tmp/kgwe-checkpoint
signal=SIGUSR1,file=/ckpt/.done     the same with another file
http=8080/checkpoint                POST to the pod's own address; 200 or 204 confirms, 202 asks to be polled
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

ANNOTATION: Final = "kgwe.nvidia.io/checkpoint"
DEFAULT_FILE: Final = "/tmp/kgwe-checkpoint"  # noqa: S108 - inside the pod's own container
SIGNALS: Final = ("SIGUSR1", "SIGUSR2", "SIGHUP")
_LONGEST: Final = 512
_HIGHEST_PORT: Final = 65535
_PATH: Final = re.compile(r"[A-Za-z0-9._~!$&'()*+;=:@%/?-]*")


@dataclass(frozen=True, slots=True)
class CheckpointCall:
    """A signal with the file that confirms it, or a port with a path."""

    signal: str = ""
    file: str = DEFAULT_FILE
    port: int = 0
    path: str = ""


def parse_call(text: str) -> CheckpointCall:
    """Return the call; raise Permanent with what is wrong and what is allowed."""
    if len(text) > _LONGEST:
        raise errors.Permanent(f"{ANNOTATION} must not be longer than {_LONGEST} characters")
    first, _, rest = text.strip().partition(",")
    kind, _, value = first.partition("=")
    if kind == "http" and not rest:
        return _parse_http(value)
    if kind == "signal":
        return _parse_signal(value, rest)
    raise errors.Permanent(f"{ANNOTATION}: {text!r} is neither signal=NAME[,file=PATH] nor http=PORT/PATH")


def find_call(annotations: Mapping[str, str]) -> CheckpointCall | None:
    """Return the call of a pod; None if it declares none, or one that cannot be used."""
    text = annotations.get(ANNOTATION)
    if not text:
        return None
    try:
        return parse_call(text)
    except errors.Permanent:
        return None


def _parse_signal(name: str, rest: str) -> CheckpointCall:
    if name not in SIGNALS:
        raise errors.Permanent(f"{ANNOTATION}: signal {name!r} is not one of {', '.join(SIGNALS)}")
    if not rest:
        return CheckpointCall(signal=name)
    key, _, file = rest.partition("=")
    parts = file.split("/")
    if (
        key != "file"
        or not file.startswith("/")
        or len(file) == 1
        or not {"..", "."}.isdisjoint(parts)
        or "" in parts[1:]
    ):
        raise errors.Permanent(f"{ANNOTATION}: {rest!r} must be file=PATH with an absolute path without '..'")
    return CheckpointCall(signal=name, file=file)


def _parse_http(value: str) -> CheckpointCall:
    port, _, path = value.partition("/")
    if not port.isascii() or not port.isdecimal() or not 0 < int(port) <= _HIGHEST_PORT:
        raise errors.Permanent(f"{ANNOTATION}: port {port!r} must be a number from 1 to {_HIGHEST_PORT}")
    if not _PATH.fullmatch(path):
        raise errors.Permanent(f"{ANNOTATION}: path {path!r} has characters that a URL does not allow")
    return CheckpointCall(port=int(port), path=f"/{path}")
