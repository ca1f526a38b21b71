"""The PromQL of the Prometheus source: one query for each quantity of the whole cluster. Pure.

Each query averages over the step it belongs to. Range functions look at nothing before the step, so a step without
samples stays unknown; an instant selector would repeat a sample for five minutes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kgwe import errors
from kgwe.metrics.fields import AGENT, DCGM, Field
from kgwe.metrics.series import LABELS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kgwe.metrics.fields import Family

_MATCHER: Final = r'[a-zA-Z_][a-zA-Z0-9_]*(?:=~|!~|!=|=)"(?:[^"\\\n]|\\.)*"'
_MATCHERS: Final = re.compile(rf"{_MATCHER}(?:,{_MATCHER})*", re.ASCII)
_FUNCTIONS: Final = {Field.USED: "max_over_time", Field.TOTAL: "last_over_time"}
_USED, _FREE, _RESERVED, _TOTAL = (f"DCGM_FI_DEV_FB_{name}" for name in ("USED", "FREE", "RESERVED", "TOTAL"))


def build_queries(range_s: float, *, matchers: str = "", node_labels: tuple[str, ...] = ()) -> dict[Field, str]:
    """Return the query of each field. `range_s` is the time that each step looks back: usually the step.

    `matchers` select the series of this cluster, such as `cluster="prod"`.
    """
    labels = ", ".join(dict.fromkeys((*LABELS, *node_labels)))
    selector = f"{{{check_matchers(matchers)}}}" if matchers else ""
    window = f"{selector}[{max(round(range_s * 1000), 1)}ms]"
    inner = {field: _join_families(field, window) for field in _LISTED}
    inner[Field.TOTAL] = f"{_build_total(window)} or {_join_families(Field.TOTAL, window, AGENT)}"
    return {field: f"max by ({labels}) ({text})" for field, text in inner.items()}


def check_matchers(text: str) -> str:
    """Return label matchers; raise Permanent if the text is something else."""
    if _MATCHERS.fullmatch(text) is None:
        raise errors.Permanent(f'{text!r} are not label matchers; write them as cluster="prod",job=~"dcgm.*"')
    return text


_LISTED: Final = (Field.ENGINE, Field.USED, Field.UTIL, Field.TENSOR, Field.DRAM, Field.POWER)


def _join_families(field: Field, window: str, families: Mapping[str, Family] | None = None) -> str:
    """Return the union of the families of a field, in its unit."""
    function = _FUNCTIONS.get(field, "avg_over_time")
    known = families or {**DCGM, **AGENT}
    return " or ".join(
        f"{function}({name}{window}){_scale(family.scale)}" for name, family in known.items() if family.field is field
    )


def _build_total(window: str) -> str:
    """Return total memory: as exported, else used + free + reserved; a GPU without reserved memory has none."""
    used, free, reserved, total = (f"last_over_time({name}{window})" for name in (_USED, _FREE, _RESERVED, _TOTAL))
    return f"{total} or ({used} + {free} + ({reserved} or {used} * 0))"


def _scale(scale: float) -> str:
    return "" if scale == 1.0 else f" / {round(1 / scale)}"
