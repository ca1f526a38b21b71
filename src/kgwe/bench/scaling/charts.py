"""Charts of the scaling benchmarks as SVG files of their own: the lines of `sim/report`, with colors and a legend."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.sim.report import chart

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_COLOURS: Final = ("#0a6ebd", "#c2571a", "#3d8b37", "#8250a8", "#777777")
_STYLE: Final = (
    "<style>text{font:12px sans-serif;fill:#555}.e{text-anchor:end}.m{text-anchor:middle}"
    ".g{stroke:#ddd}.x{stroke:#777}.l{fill:none;stroke:currentColor;stroke-width:1.8}"
    + "".join(f".s{number}{{color:{colour}}}" for number, colour in enumerate(_COLOURS))
    + "</style>"
)


def write_lines(path: Path, series: Sequence[chart.Series], *, x_label: str, y_label: str, top: float) -> None:
    """Write one chart. Raise Permanent where the file cannot be written."""
    drawn = chart.lines(series, x_label=x_label, y_label=y_label, top=top)
    legend = "".join(
        f'<text x="{66 + 140 * (number % 3)}" y="{12 + 14 * (number // 3)}" style="fill:{_COLOURS[number % 5]}">'
        f"{html.escape(each.label)}</text>"
        for number, each in enumerate(series)
    )
    opened = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    head, rest = opened.split(">", 1)
    try:
        path.write_text(f"{head}>{_STYLE}{rest.removesuffix('</svg>')}{legend}</svg>\n")
    except OSError as problem:
        raise errors.Permanent(f"cannot write {path}: {problem}") from problem
