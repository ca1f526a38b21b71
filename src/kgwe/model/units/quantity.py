"""Kubernetes quantities ("8", "1500m", "64Gi", "1.5e3") as exact numbers.

Requests and capacities arrive as text. They are parsed once, at the edge, into one integer unit per
resource: whole devices, milli-CPU, bytes. Nothing is ever a float: `0.1` is exactly one tenth here.
Parts of a unit are rounded up, as the API server itself does, so that a request is never understated;
a device count is the exception, half a device has no meaning and is refused.

    <number><suffix>   number: digits with an optional point, optionally signed
                       suffix: n u m k M G T P E (powers of 1000), Ki Mi Gi Ti Pi Ei (powers of 1024)
                               or e/E and a signed exponent; "E" alone is exa, "E2" is times 100
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import Final

from kgwe import errors

_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<number>\d+(?:\.\d*)?|\.\d+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,4}))?",
    re.ASCII,
)

_SCALE: Final = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000 ** (power + 1)) for power, suffix in enumerate("kMGTPE")},
    **{f"{suffix}i": Fraction(1024 ** (power + 1)) for power, suffix in enumerate("KMGTPE")},
}

# The API server stores at most 2^63-1 and cuts finer than nano; a longer text is a mistake or an attack
# (Python would happily compute 1e9999).
_MAX_CHARS: Final = 48
_MAX_EXPONENT: Final = 21
_MAX_VALUE: Final = 2**63 - 1

# Requests repeat: a few dozen distinct texts cover a cluster of 10,000 pods.
_remember = functools.lru_cache(maxsize=4096)


class BadQuantity(errors.Permanent):
    """The text is not a Kubernetes quantity, or not one that this resource can have."""


@_remember
def parse(text: str) -> Fraction:
    """The exact value."""
    match = _GRAMMAR.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None:
        raise BadQuantity(f'{_quote(text)} is not a quantity; write for example "2", "500m" or "64Gi"')
    value = Fraction(match["number"] + "0" if match["number"].endswith(".") else match["number"])
    if match["suffix"]:
        value *= _SCALE[match["suffix"]]
    elif match["exponent"]:
        exponent = int(match["exponent"])
        if abs(exponent) > _MAX_EXPONENT:
            raise BadQuantity(f"{_quote(text)}: an exponent lies between -{_MAX_EXPONENT} and {_MAX_EXPONENT}")
        value *= Fraction(10) ** exponent
    if value > _MAX_VALUE:
        raise BadQuantity(f"{_quote(text)} is too large; a quantity is at most 2^63-1")
    return -value if match["sign"] == "-" else value


@_remember
def parse_int(text: str) -> int:
    """A count of whole things (GPUs, MIG slices, pods): `"8"`, also `"8.0"` and `"1k"`, never a part of one."""
    value = _parse_positive(text)
    if value.denominator != 1:
        raise BadQuantity(f"{_quote(text)} is not a whole number; devices are counted, not divided")
    return value.numerator


@_remember
def parse_milli(text: str) -> int:
    """Thousandths, rounded up: `"2"` is 2000, `"1500m"` is 1500, `"100u"` is 1."""
    return _ceil(_parse_positive(text) * 1000)


@_remember
def parse_bytes(text: str) -> int:
    """Bytes, rounded up: `"64Gi"`, `"64G"`, `"68719476736"`."""
    return _ceil(_parse_positive(text))


_DURATION = re.compile(r"(\d{1,6})(ms|s|m|h)", re.ASCII)
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(text: str) -> float:
    """Seconds of `30s`, `1h30m` or `250ms`."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise BadQuantity(f"not a duration: {_quote(text)}; write it like 30s, 5m or 1h30m")
    return sum(int(number) * _UNIT_S[unit] for number, unit in parts)


def format_milli(milli: int) -> str:
    """Thousandths in the API server's own spelling: whole units when there are no parts."""
    return str(milli // 1000) if milli % 1000 == 0 else f"{milli}m"


def format_bytes(size: int) -> str:
    """Bytes with the largest binary suffix that leaves no remainder."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        count, rest = divmod(size, _SCALE[suffix].numerator)
        if count and not rest:
            return f"{count}{suffix}"
    return str(size)


def _parse_positive(text: str) -> Fraction:
    value = parse(text)
    if value < 0:
        raise BadQuantity(f"{_quote(text)} is negative; an amount of a resource is zero or more")
    return value


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


def _quote(text: str) -> str:
    return f'"{text}"' if len(text) <= _MAX_CHARS else f'"{text[:_MAX_CHARS]}…"'
