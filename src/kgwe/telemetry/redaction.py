"""Removes secrets from text and values before they are logged or written into a bundle. Pure.

Values of fields whose name says that they are secret are replaced, and so are tokens, private keys and passwords in
addresses inside of text. Names and references of Secrets stay: they are no secrets.
"""

from __future__ import annotations

import re
from typing import Any, Final

REDACTED: Final = "[redacted]"
_MOST_DEPTH: Final = 64
_SECRET_NAMES: Final = re.compile(
    r"(?:^|[-_. ])(?:password|passwd|passphrase|token|secret|api[-_]?key|access[-_]?key|private[-_]?key|client[-_]?key"
    r"(?:[-_]data)?|authorization|credentials?|cookie|signing[-_]?key)$",
    re.IGNORECASE,
)
_IN_TEXT: Final = (
    # Private keys, whole or cut off.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
    # JSON web tokens, such as those of service accounts.
    (re.compile(r"\beyJ[\w-]{6,}\.[\w-]+(?:\.[\w-]*)?"), REDACTED),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}", re.IGNORECASE), rf"\1 {REDACTED}"),
    # scheme://user:password@host
    (re.compile(r"\b([a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@", re.IGNORECASE), rf"\1:{REDACTED}@"),
    (
        re.compile(
            r"\b(password|passwd|passphrase|token|secret|api[-_]?key|access[-_]?key|client_secret)"
            r"([\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+",
            re.IGNORECASE,
        ),
        rf"\1\2{REDACTED}",
    ),
    # The path of an incoming webhook is its secret.
    (re.compile(r"(https://hooks\.slack\.com/services/)[\w/]+"), rf"\1{REDACTED}"),
)
# One of these is in every text that has a secret of the patterns above; most texts have none.
_HINT: Final = re.compile(r"eyJ|PRIVATE KEY|bearer|basic|://|pass|token|secret|key", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Return the text without secrets."""
    if _HINT.search(text) is None:
        return text
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret: `password`, `slackToken`, `client-key-data`."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return _SECRET_NAMES.search(apart) is not None


def redact_value(value: Any, depth: int = 0) -> Any:
    """Return JSON-like data without secrets; what is nested too deeply is left out."""
    if isinstance(value, str):
        return redact_text(value)
    if depth > _MOST_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        return {key: _redact_field(str(key), each, depth) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [redact_value(each, depth + 1) for each in value]
    return value


def _redact_field(name: str, value: Any, depth: int) -> Any:
    if isinstance(value, str | bytes) and value and is_secret_name(name):
        return REDACTED
    return redact_value(value, depth + 1)


def redact_event(_logger: Any, _method: str, event: Any) -> Any:
    """Redact a log line: a processor of structlog."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = REDACTED if value and is_secret_name(name) else redact_text(value)
        elif isinstance(value, dict | list | tuple):
            event[name] = redact_value(value)
    return event
