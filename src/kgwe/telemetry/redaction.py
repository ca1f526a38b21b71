"""Removes secrets from text and values before they are logged or written into a bundle. Pure.

Values of fields, flags and headers whose name says that they are secret are replaced, and so are tokens, private keys,
passwords in addresses and paths of webhooks inside of text. Names and references of Secrets stay: they are no secrets.

Text is written by others. Each pattern takes time in proportion to its length: what repeats is bounded, or is consumed.
"""

from __future__ import annotations

import re
from typing import Any, Final

REDACTED: Final = "[redacted]"
_MOST_DEPTH: Final = 64
_SECRET_NAMES: Final = re.compile(
    r"(?:^|[-_. ])(?:token|secret|api[-_]?key|access[-_]?key|private[-_]?key|client[-_]?key(?:[-_]data)?|auth[-_]?key"
    r"|secret[-_]?key|authorization|credentials?|cookie|signing[-_]?key)$|(?:password|passwd|passphrase|apikey|[-_]pwd)$",
    re.IGNORECASE,
)
# Of flags and of pairs of name and value, whose names users choose.
_OTHER_NAMES: Final = re.compile(r"(?:^|[-_. ])(?:key|pass|pwd|auth|pat)$", re.IGNORECASE)
_WORDS: Final = (
    r"password|passwd|passphrase|[-_]pwd|token|secret|api[-_]?key|access[-_]?key|auth[-_]?key|secret[-_]?key"
    r"|private[-_]?key|signing[-_]?key|encryption[-_]?key"
)
# After a name: the rest of a quoted text, else one word. JSON inside of JSON has backslashes before its quotes.
_VALUE: Final = r"(?P<open>\\{0,3}(?P<quote>[\"']))?(?(quote)(?:(?!(?P=quote))[^\r\n\\]|\\(?![\"']))+|[^\s\"'&,;]+)"
# From a flag to its value: a space, the next item of a list in JSON, or the next item of a list in YAML.
_NEXT: Final = r"(?:[ \t]+|\\{0,3}[\"']\s*,\s*(?=\\{0,3}[\"'])|[\"']?[ \t]*\r?\n[ \t]*-[ \t]+)"
_CLIENTS: Final = r"(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump|mongo|mongosh|sshpass)"


def _ignore_case(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


_IN_TEXT: Final = (
    # Private keys, whole or cut off.
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), REDACTED),
    # JSON web tokens, such as those of service accounts.
    (re.compile(r"(?<![A-Za-z0-9])eyJ[\w-]{6,}(?:\.[\w-]*){0,4}"), REDACTED),
    # Tokens that are known by how they begin.
    (
        re.compile(
            r"(?<![A-Za-z0-9])(?:(?:hf|gh[pousr]|npm)_(?=[a-z]*[0-9A-Z])[A-Za-z0-9]{8,}|github_pat_\w{8,}|glpat-[\w-]{8,}"
            r"|xox[a-z]-[\w-]{8,}|sk-[\w-]{20,}|[sr]k_live_\w{8,}|AKIA[0-9A-Z]{12,}|AIza[\w-]{20,})"
        ),
        REDACTED,
    ),
    # Headers, with any scheme.
    (
        _ignore_case(r"((?:authorization|cookie)\\{0,3}[\"']?\s*[=:]\s*\\{0,3}[\"']?)(?![\s\"'])[^\r\n\"'\\]+"),
        rf"\1{REDACTED}",
    ),
    (_ignore_case(r"\b(bearer|basic)\s+[\w.~+/=-]{6,}"), rf"\1 {REDACTED}"),
    # scheme://user:password@host
    (_ignore_case(r"([a-z][a-z0-9+.-]{0,30}://[^\s/:@]*):[^\s/@]+@"), rf"\1:{REDACTED}@"),
    # The path of an incoming webhook is its secret; so are the signatures in addresses.
    (_ignore_case(r"(https?://(?:hooks?|webhooks?)\.[^\s/\"'<>]{1,255}/)[^\s\"'<>]+"), rf"\1{REDACTED}"),
    (
        _ignore_case(
            r"(https?://(?![^\s/]{1,255}\.svc\b)[^\s\"'<>]{1,255}?/(?:[a-z-]{0,16}hooks?[a-z0-9-]{0,16}|workflows)/)[^\s\"'<>]+"
        ),
        rf"\1{REDACTED}",
    ),
    (
        _ignore_case(r"([?&](?:sig|signature|x-(?:amz|goog)-(?:signature|credential)|key|code|auth)=)[^\s\"'&]+"),
        rf"\1{REDACTED}",
    ),
    # Pairs of name and value, such as headers of a probe.
    (
        _ignore_case(
            rf"(name\\{{0,3}}[\"']?\s*:\s*\\{{0,3}}[\"']?[\w.-]{{0,64}}(?:{_WORDS})[\\\"',\s]{{1,64}}value\\{{0,3}}[\"']?"
            rf"\s*:\s*){_VALUE}"
        ),
        rf"\1\g<open>{REDACTED}",
    ),
    # NAME_OF_TOKEN=..., "password": "..."
    (_ignore_case(rf"((?:{_WORDS})\\{{0,3}}[\"']?\s*[=:]\s*){_VALUE}"), rf"\1\g<open>{REDACTED}"),
    # --password ..., and the same as items of a list
    (
        _ignore_case(
            rf"((?<![\w-])--?[\w.-]{{0,64}}?(?:{_WORDS}|[-_](?:key|pass))(?:=|{_NEXT}))(?!\\{{0,3}}[\"']?-){_VALUE}"
        ),
        rf"\1\g<open>{REDACTED}",
    ),
    (
        _ignore_case(
            rf"((?<![\w-])(?:-u|--user|--proxy-user)(?:=|{_NEXT})?\\{{0,3}}[\"']?[^\s:\"'/=]{{1,128}}:)[^\s\"'\\]+"
        ),
        rf"\1{REDACTED}",
    ),
    (
        _ignore_case(rf"(\b{_CLIENTS}\b[^\r\n|;]{{0,200}}?[\s\"',]-p(?:{_NEXT})?){_VALUE}"),
        rf"\1\g<open>{REDACTED}",
    ),
    # Sentences.
    (
        _ignore_case(
            r"\b((?:password|passphrase|passwd|token|secret|api key) (?:is|was)[ :=]{1,4})(?!(?:an?|the|not|no|too|in"
            r"|of|for|from|by|expired|invalid|valid|missing|required|needed|empty|wrong|incorrect|set|unset|unknown|used|read"
            r"|refused|rejected|accepted|ok)\b)(?P<quote>[\"']?)[^\s\"']+"
        ),
        rf"\1\g<quote>{REDACTED}",
    ),
)
# One of these is in every text that has a secret of the patterns above; most texts have none.
_HINT: Final = re.compile(
    r"eyJ|PRIVATE KEY|bearer|basic|://|pass|pwd|token|secret|key|auth|cookie|hf_|gh[pousr]_|npm_|_pat_|glpat|xox|sk-|k_live"
    r"|AKIA|AIza|-u|--proxy-u|mysql|mariadb|mongo|[?&]sig|[?&]code=|[?&]x-",
    re.IGNORECASE,
)
_CLIENT_PATH: Final = re.compile(rf"(?:\S{{0,255}}/)?{_CLIENTS}", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Return the text without secrets."""
    if _HINT.search(text) is None:
        return text
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret: `password`, `slackToken`, `client-key-data`."""
    return _SECRET_NAMES.search(_part(name)) is not None


def _part(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)


def _is_chosen_secret(name: str) -> bool:
    """Whether a flag, a header or a variable of this name holds a secret."""
    return is_secret_name(name) or _OTHER_NAMES.search(_part(name)) is not None


def redact_value(value: Any, depth: int = 0) -> Any:
    """Return JSON-like data without secrets; what is nested too deeply is left out."""
    if isinstance(value, str):
        return redact_text(value)
    if depth > _MOST_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        found = {key: _redact_field(str(key), each, depth) for key, each in value.items()}
        name = value.get("name", value.get("key"))
        if isinstance(name, str) and isinstance(value.get("value"), str) and _is_chosen_secret(name):
            found["value"] = REDACTED
        return found
    if isinstance(value, list | tuple):
        return _redact_items(value, depth)
    return value


def _redact_field(name: str, value: Any, depth: int) -> Any:
    if isinstance(value, str | bytes) and value and is_secret_name(name):
        return REDACTED
    return redact_value(value, depth + 1)


def _redact_items(items: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    """Redact a list, which may be a command line: an item is the value of the flag before it."""
    has_client = any(isinstance(each, str) and _CLIENT_PATH.fullmatch(each) for each in items)
    found: list[Any] = []
    flag = ""
    for each in items:
        if not isinstance(each, str):
            found.append(redact_value(each, depth + 1))
            flag = ""
            continue
        found.append(_redact_argument(flag, each, has_client=has_client))
        flag = each if each.startswith("-") and "=" not in each else ""
    return found


def _redact_argument(flag: str, text: str, *, has_client: bool) -> str:
    is_value = flag and text and not text.startswith("-")
    if is_value and (_is_chosen_secret(flag.lstrip("-")) or (has_client and flag == "-p")):
        return REDACTED
    if is_value and flag in ("-u", "--user", "--proxy-user") and ":" in text:
        return f"{text.partition(':')[0]}:{REDACTED}"
    if has_client and text.startswith("-p") and len(text) > len("-p"):
        return f"-p{REDACTED}"
    name, equals, _ = text.partition("=")
    if equals and name.startswith("-") and _is_chosen_secret(name.lstrip("-")):
        return f"{name}={REDACTED}"
    return redact_text(text)


def redact_event(_logger: Any, _method: str, event: Any) -> Any:
    """Redact a log line: a processor of structlog."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = REDACTED if value and is_secret_name(name) else redact_text(value)
        elif isinstance(value, dict | list | tuple):
            event[name] = redact_value(value)
    return event
