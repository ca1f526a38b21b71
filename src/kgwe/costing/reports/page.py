"""A report as one HTML page without any other file: it can be mailed, archived and printed."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from kgwe.costing.dates import format_time
from kgwe.costing.money import format_dollars
from kgwe.costing.reports.texts import TITLES, describe_window, list_cells
from kgwe.costing.reports.values import NOT_STATED, list_books, list_notes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kgwe.costing.statement import Statement

_STYLE: Final = """
:root { color-scheme: light; }
body { font: 14px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; margin: 2rem auto; max-width: 70rem;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p { margin: .25rem 0; color: #57606a; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid #d8dee4; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
thead th { border-bottom: 2px solid #8c959f; font-weight: 600; }
tfoot td { font-weight: 600; border-bottom: 0; }
.bar { display: flex; height: 1.5rem; margin: 1rem 0 .5rem; border-radius: 4px; overflow: hidden; background: #eaeef2; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; list-style: none; padding: 0; margin: 0; }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
.notes { border-left: 3px solid #bf8700; padding-left: .75rem; margin: 1rem 0; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } tr { break-inside: avoid; } }
"""
_COLORS: Final = ("#1a7f37", "#bf8700", "#8c959f", "#8250df", "#cf222e")


def make_page(statements: Sequence[Statement], title: str = "GPU cost report") -> str:
    """Return the page. All names are escaped: labels are claims of users."""
    return "\n".join(_list_parts(statements, title)) + "\n"


def _list_parts(statements: Sequence[Statement], title: str) -> Iterator[str]:
    first = statements[0]
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>{html.escape(title)}</h1><p>{html.escape(describe_window(first))}</p>"
    yield from _draw_books(first)
    notes = list_notes(first)
    if notes:
        yield '<div class="notes">' + "".join(f"<p>{html.escape(each)}</p>" for each in notes) + "</div>"
    for each in statements:
        yield from _make_section(each)
    yield f"<p>Costs up to {format_time(first.end_s)}. USED is the cost weighted by the measured use of the GPU; use "
    yield "that was not measured is unknown, and in neither USED nor IDLE.</p></body></html>"


def _draw_books(statement: Statement) -> Iterator[str]:
    lines = list_books(statement)
    total = max(statement.fleet, 1)
    yield '<div class="bar" role="img" aria-label="Parts of the fleet\'s cost">'
    for (_, micros), color in zip(lines, _COLORS, strict=False):
        width = max(100 * micros / total, 0)
        yield f'<span style="width:{width:.3f}%;background:{color}"></span>'
    yield '</div><ul class="key">'
    for (name, micros), color in zip(lines, _COLORS, strict=False):
        share = 100 * micros / total
        yield f'<li><i style="background:{color}"></i>{name} {format_dollars(micros)} ({share:.1f} %)</li>'
    yield f"<li><b>fleet {format_dollars(statement.fleet)}</b></li>"
    yield f"<li>system overhead {format_dollars(statement.overhead)} included</li></ul>"


def _make_section(statement: Statement) -> Iterator[str]:
    name = statement.by.replace("-", " ")
    yield f"<h2>By {html.escape(name)}</h2><table><thead><tr><th>{html.escape(name.capitalize())}</th>"
    yield "".join(f"<th>{heading}</th>" for heading in TITLES) + "</tr></thead><tbody>"
    for line in statement.lines:
        cells = list_cells(statement, line)
        yield "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
    total = format_dollars(sum(line.micros for line in statement.lines))
    rest = "<td></td>" * (len(TITLES) - 1)
    yield f"</tbody><tfoot><tr><td>Total</td><td>{total}</td>{rest}</tr></tfoot></table>"
    if not statement.lines:
        yield f"<p>{NOT_STATED}: no pod held anything in this time.</p>"
