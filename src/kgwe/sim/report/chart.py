"""Charts as inline SVG: no script, no external file, colors from the page for light and dark mode.

Series are drawn in the given order and colored by it (CSS classes `s0`, `s1` …); hovering over a line shows its name.
Coordinates have one decimal, which is finer than a pixel here.
"""

from __future__ import annotations

import bisect
import dataclasses
import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: colors that a page has to define, as .s0, .s1 …
COLOURS: Final = 8

# About the displayed width, so that letters keep their size; half of the widest mark fits right of the axis.
_WIDTH: Final = 500
_HEIGHT: Final = 240
_LEFT: Final = 52
_RIGHT: Final = 22
_TOP: Final = 14
_BOTTOM: Final = 40

#: marks of a logarithmic time axis: seconds and label
TIMES: Final = (
    (1, "1 s"),
    (10, "10 s"),
    (60, "1 min"),
    (600, "10 min"),
    (3600, "1 h"),
    (6 * 3600, "6 h"),
    (24 * 3600, "1 d"),
    (7 * 24 * 3600, "7 d"),
    (30 * 24 * 3600, "30 d"),
)


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    #: CSS class instead of the default color
    look: str = ""


def colour(number: int) -> str:
    """Return the CSS class of a series by its number."""
    return f"s{number % COLOURS}"


@dataclass(frozen=True, slots=True)
class _Axis:
    """Maps values to positions along one side."""

    low: float
    high: float
    start: float
    end: float
    marks: tuple[tuple[float, str], ...]
    is_log: bool = False

    def position_of(self, value: float) -> float:
        low, high, here = self.low, self.high, value
        if self.is_log:
            low, high, here = math.log(low), math.log(high), math.log(max(value, self.low))
        part = (here - low) / (high - low) if high > low else 0.0
        return self.start + min(max(part, 0.0), 1.0) * (self.end - self.start)


def lines(series: Sequence[Series], *, x_label: str, y_label: str, top: float | None = None) -> str:
    """Return a chart with a linear axis."""
    x_high = max((each.xs[-1] for each in series if each.xs), default=1.0)
    y_high = top or max((max(each.ys) for each in series if each.ys), default=0.0) or 1.0
    x, y = _linear_axis(x_high, _LEFT, _WIDTH - _RIGHT), _linear_axis(y_high, _HEIGHT - _BOTTOM, _TOP)
    return _frame(x, y, x_label, y_label, _paths(series, x, y))


def distribution(series: Sequence[Series], *, x_label: str, y_label: str) -> str:
    """Return a chart with a logarithmic time axis and 0 to 100 percent."""
    longest = max((each.xs[-1] for each in series if each.xs), default=1.0)
    x = _times(longest)
    y = _linear_axis(100.0, _HEIGHT - _BOTTOM, _TOP)
    return _frame(x, y, x_label, y_label, _paths([_extend_to_ends(each, x) for each in series], x, y))


def _extend_to_ends(series: Series, x: _Axis) -> Series:
    """Extend a curve to both ends of the axis."""
    if not series.xs:
        return series
    first = max(bisect.bisect_right(series.xs, x.low) - 1, 0)
    xs, ys = series.xs[first:], series.ys[first:]
    return dataclasses.replace(series, xs=[*xs, x.high], ys=[*ys, ys[-1]])


def draw_stacked(series: Sequence[Series], *, x_label: str, y_label: str, top: float) -> str:
    """Return a chart of stacked layers."""
    xs = series[0].xs
    x = _linear_axis(xs[-1] if xs else 1.0, _LEFT, _WIDTH - _RIGHT)
    y = _linear_axis(top, _HEIGHT - _BOTTOM, _TOP)
    below = [0.0] * len(xs)
    parts = []
    for number, each in enumerate(series):
        above = [low + value for low, value in zip(below, each.ys, strict=True)]
        edge = _points(xs, above, x, y) + _points(list(reversed(xs)), list(reversed(below)), x, y)
        parts.append(
            f'<polygon class="a {each.look or colour(number)}" points="{" ".join(edge)}">{_title(each)}</polygon>'
        )
        below = above
    return _frame(x, y, x_label, y_label, "".join(parts))


def _paths(series: Sequence[Series], x: _Axis, y: _Axis) -> str:
    parts = []
    for number, each in enumerate(series):
        points = _points(each.xs, each.ys, x, y)
        if points:
            look = each.look or colour(number)
            parts.append(f'<polyline class="l {look}" points="{" ".join(points)}">{_title(each)}</polyline>')
    return "".join(parts)


def _title(series: Series) -> str:
    return f"<title>{html.escape(series.label)}</title>"


def _points(xs: Sequence[float], ys: Sequence[float], x: _Axis, y: _Axis) -> list[str]:
    return [f"{x.position_of(a):.1f},{y.position_of(b):.1f}" for a, b in zip(xs, ys, strict=True)]


def _linear_axis(high: float, start: float, end: float) -> _Axis:
    step = _step(high)
    top = math.ceil(high / step - 1e-9) * step if start > end else high  # the axis upwards ends on a mark
    count = int(top / step + 1e-9)
    return _Axis(0.0, top or 1.0, start, end, tuple((k * step, f"{k * step:,.10g}") for k in range(count + 1)))


def _step(high: float, most: int = 6) -> float:
    """Return 1, 2 or 5 times a power of ten, for at most the given number of steps."""
    if high <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(high / most))
    return next(power * k for k in (1, 2, 5, 10) if high / (power * k) <= most)


def _times(longest: float) -> _Axis:
    last = next((number for number, (seconds, _) in enumerate(TIMES) if seconds >= longest), len(TIMES) - 1)
    marks = tuple((float(seconds), text) for seconds, text in TIMES[: max(last, 2) + 1])
    return _Axis(1.0, max(marks[-1][0], longest), _LEFT, _WIDTH - _RIGHT, marks, is_log=True)


def _frame(x: _Axis, y: _Axis, x_label: str, y_label: str, inside: str) -> str:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    rows = [
        f'<line class="g" x1="{_LEFT}" x2="{right}" y1="{y.position_of(mark):.1f}" y2="{y.position_of(mark):.1f}"/>'
        f'<text class="t e" x="{_LEFT - 7}" y="{y.position_of(mark) + 4:.1f}">{text}</text>'
        for mark, text in y.marks
    ]
    columns = [
        f'<text class="t m" x="{x.position_of(mark):.1f}" y="{bottom + 16}">{text}</text>' for mark, text in x.marks
    ]
    labels = (
        f'<text class="t m" x="{(_LEFT + right) / 2:.0f}" y="{_HEIGHT - 6}">{html.escape(x_label)}</text>'
        f'<text class="t m" transform="translate(13 {(bottom + _TOP) / 2:.0f}) rotate(-90)">'
        f"{html.escape(y_label)}</text>"
    )
    axis = f'<line class="x" x1="{_LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    alt = html.escape(f"{y_label} by {x_label}", quote=True)
    body = "".join((*rows, *columns, labels, inside, axis))
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{alt}">{body}</svg>'
