"""Charts of seconds as PNG files, both axes logarithmic: linear growth is a line of slope one."""

from __future__ import annotations

import importlib.util
import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# Colors by name, in order of appearance over all panels.
_LOOKS = ("#2f6fde o", "#e07b1a s", "#1f9d63 D", "#7b8794 ^", "#c2417f v", "#7a5ad1 P")
_WIDE, _HIGH, _DPI = 5.2, 3.6, 110


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    x_label: str
    #: name -> number on the x axis -> seconds
    curves: Mapping[str, Mapping[str, float]]


def require_matplotlib() -> None:
    """Raise Permanent now if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise errors.NotFound("drawing needs matplotlib: pip install 'kgwe[plot]'")


def draw(panels: Sequence[Panel], path: Path, *, columns: int = 2) -> None:
    """Draw the panels, row by row, to a file."""
    require_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415 -- an extra
    from matplotlib.ticker import EngFormatter, FuncFormatter  # noqa: PLC0415

    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(_WIDE * columns, _HIGH * rows), layout="constrained")
    names = dict.fromkeys(name for panel in panels for name in panel.curves)
    looks = dict(zip(names, (look.split() for look in itertools.cycle(_LOOKS)), strict=False))
    for axes, panel in zip(figure.subplots(rows, columns, squeeze=False).flat, panels, strict=False):
        for name, curve in panel.curves.items():
            colour, marker = looks[name]
            axes.loglog([float(x) for x in curve], list(curve.values()), color=colour, marker=marker, label=name)
        seconds = [value for curve in panel.curves.values() for value in curve.values()]
        axes.set_ylim(10 ** math.floor(math.log10(min(seconds))), 10 ** math.ceil(math.log10(max(seconds))))
        axes.yaxis.set_major_formatter(EngFormatter(unit="s"))
        axes.set_xticks(sorted({float(x) for curve in panel.curves.values() for x in curve}))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.minorticks_off()
        axes.set_title(panel.title, fontsize=11)
        axes.set_xlabel(panel.x_label)
        axes.grid(visible=True, which="major", color="#e4e6e8")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9)
    try:
        figure.savefig(path, dpi=_DPI, format="png", metadata={"Software": None})
    except OSError as exc:
        raise errors.Permanent(f"cannot write {path}: {exc.strerror}") from exc
