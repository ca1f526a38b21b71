"""Secrets by reference: read when they are needed, never logged, and removed from messages of errors."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors, text_files

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_MAX_BYTES: Final = 64 << 10
# Shorter secrets would remove ordinary words from messages.
_SHORTEST: Final = 4
_MOST_REMEMBERED: Final = 64


class SecretKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A key of a Kubernetes Secret."""

    name: str
    key: str
    namespace: str = ""
    """Empty: the namespace of the process."""


class SecretReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Where a secret is: a file, or a key of a Kubernetes Secret."""

    file: str = ""
    secret: SecretKey | None = None

    def __post_init__(self) -> None:
        if bool(self.file) == (self.secret is not None):
            raise ValueError("name either a file or a secret")

    def __str__(self) -> str:
        if self.secret is None:
            return f"file {self.file}"
        return f"key {self.secret.key} of Secret {self.secret.namespace or '.'}/{self.secret.name}"


class Secrets:
    """Reads secrets. Each use reads again, so a rotated secret needs no restart."""

    def __init__(self, read_secret: Callable[[SecretKey], Awaitable[str | None]] | None = None) -> None:
        """Read keys of Kubernetes Secrets by `read_secret`; without it only files are read."""
        self._read_secret = read_secret
        self._seen: dict[str, None] = {}

    async def read(self, reference: SecretReference) -> str:
        """Return a secret without surrounding whitespace; Transient if it is not there (yet)."""
        if reference.secret is None:
            value = await asyncio.to_thread(_read_file, reference)
        elif self._read_secret is None:
            raise errors.Permanent(f"{reference}: this process reads no Kubernetes Secrets; use a file")
        else:
            value = await self._read_secret(reference.secret) or ""
        value = value.strip()
        if not value:
            raise errors.Transient(f"{reference} is missing or empty: create it")
        self.remember(value)
        return value

    def remember(self, value: str) -> None:
        """Remove this value from messages from now on."""
        self._seen.pop(value, None)
        self._seen[value] = None
        while len(self._seen) > _MOST_REMEMBERED:
            self._seen.pop(next(iter(self._seen)))

    def redact(self, text: str) -> str:
        """Return a text without the secrets that were read."""
        for value in sorted(self._seen, key=len, reverse=True):
            if len(value) >= _SHORTEST:
                text = text.replace(value, "…")
        return text


def _read_file(reference: SecretReference) -> str:
    try:
        return text_files.read_text(Path(reference.file), _MAX_BYTES)
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not UTF-8"
        raise errors.Transient(f"cannot read {reference}: {reason}") from exc
