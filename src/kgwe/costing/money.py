"""Money as integers, so that books balance exactly.

A rate is a whole number of micro-dollars per hour. A rate times whole seconds is counted in ticks: 3,600 ticks are one
micro-dollar. Ticks need no rounding, so a cost is the same however its time is cut into windows, samples or segments.
Rounding happens once, where a report shows micro-dollars: the lines are rounded so that they sum to the rounded total.
"""

from __future__ import annotations

import functools
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

HOUR_S: Final = 3600
DAY_S: Final = 86_400
MICROS: Final = 1_000_000
#: One tick is one micro-dollar per hour, for one second.
TICKS: Final = HOUR_S
#: A node that costs more per hour is a mistake in a file; 64-bit columns hold a day of it.
MOST_MICROS_PER_HOUR: Final = 10**11
_MAX_CHARS: Final = 40
# Two digits of an exponent: 1e999999999 would take the processor and the memory for minutes.
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)


def divide(total: int, weights: Sequence[int]) -> list[int]:
    """Divide a whole number by weights. The parts sum to it: the largest remainders get what rounding left over.

    Equal remainders are served in order. Without any weight nothing can be divided: ValueError.
    """
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise ValueError("a total is divided by weights of which none is negative and at least one is positive")
    parts = [total * weight // whole for weight in weights]
    left = total - sum(parts)
    if left:
        order = sorted(range(len(weights)), key=lambda each: -(total * weights[each] % whole))
        for position in order[:left]:
            parts[position] += 1
    return parts


def round_lines(ticks: Sequence[int]) -> list[int]:
    """Return the lines of a report in micro-dollars. They sum to the rounded total."""
    parts = [each // TICKS for each in ticks]
    left = round_ticks(sum(ticks)) - sum(parts)
    order = sorted(range(len(ticks)), key=lambda each: -(ticks[each] % TICKS))
    for position in order[:left]:
        parts[position] += 1
    return parts


def round_ticks(ticks: int) -> int:
    """Return micro-dollars, half up."""
    return (2 * ticks + TICKS) // (2 * TICKS)


@functools.lru_cache(maxsize=4096)
def parse_dollars(text: str) -> int:
    """Return micro-dollars of a decimal text, half up. Raise Permanent for anything else, also for negative amounts."""
    cleaned, value = text.strip(), parse_decimal(text)
    if value is None:
        raise errors.Permanent(f"{cleaned[:_MAX_CHARS]!r} is not an amount; write it like 2.50")
    if value < 0:
        raise errors.Permanent(f"{cleaned} is negative; a price is zero or more")
    return round_fraction(value * MICROS)


def parse_decimal(text: str, most_chars: int = _MAX_CHARS) -> Fraction | None:
    """Return the number of a decimal text, exactly and quickly, whatever the text is; None: it is not one."""
    cleaned = text.strip()
    return Fraction(cleaned) if len(cleaned) <= most_chars and _NUMBER.fullmatch(cleaned) else None


def round_fraction(value: Fraction) -> int:
    """Return the nearest whole number, half up."""
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def format_dollars(micros: int, digits: int = 2) -> str:
    """Return dollars with thousands separators, half up: `1,234.50`. Six digits show every micro-dollar."""
    scale = 10 ** (6 - digits)
    sign, size = ("-", -micros) if micros < 0 else ("", micros)
    rounded = (2 * size + scale) // (2 * scale)
    whole, rest = divmod(rounded, 10**digits)
    return f"{sign}{whole:,}.{rest:0{digits}d}" if digits else f"{sign}{whole:,}"
