"""A report as a PDF file, from the same cells as tables and pages."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from kgwe import errors
from kgwe.cli.cost.files import load_extra
from kgwe.costing.money import format_dollars
from kgwe.costing.reports.texts import TITLES, describe_window, list_cells
from kgwe.costing.reports.values import list_books, list_notes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kgwe.costing.statement import Statement


def write_pdf(statements: Sequence[Statement], path: Path, title: str = "GPU cost report") -> None:
    """Write the books and a table for each statement."""
    platypus, pagesizes = load_extra("reportlab.platypus"), load_extra("reportlab.lib.pagesizes")
    colors, styles = load_extra("reportlab.lib.colors"), load_extra("reportlab.lib.styles").getSampleStyleSheet()
    first = statements[0]
    parts = [platypus.Paragraph(html.escape(title), styles["Title"])]
    books = " + ".join(f"{name} {format_dollars(micros)}" for name, micros in list_books(first))
    texts = (describe_window(first), f"fleet {format_dollars(first.fleet)} = {books}", *list_notes(first))
    parts += [platypus.Paragraph(html.escape(text), styles["BodyText"]) for text in texts]
    for each in statements:
        parts.append(platypus.Paragraph(f"By {html.escape(each.by.replace('-', ' '))}", styles["Heading2"]))
        rows: list[tuple[Any, ...]] = [(each.by, *TITLES)]
        for line in each.lines:
            name, *cells = list_cells(each, line)
            rows.append((platypus.Paragraph(html.escape(name), styles["BodyText"]), *cells))
        rows.append(("Total", format_dollars(sum(line.micros for line in each.lines)), *[""] * (len(TITLES) - 1)))
        table = platypus.Table(rows, colWidths=[180, *[70] * len(TITLES)], repeatRows=1)
        table.setStyle(
            [
                ("ALIGN", (1, 0), (-1, -1), "RIGHT"),
                ("LINEBELOW", (0, 0), (-1, 0), 1, colors.grey),
                ("LINEABOVE", (0, -1), (-1, -1), 0.5, colors.grey),
                ("FONTSIZE", (0, 0), (-1, -1), 8),
                ("VALIGN", (0, 0), (-1, -1), "MIDDLE"),
            ]
        )
        parts.append(table)
    page = pagesizes.landscape(pagesizes.A4)
    try:
        platypus.SimpleDocTemplate(str(path), pagesize=page, title=title, author="KGWE").build(parts)
    except OSError as exc:
        raise errors.Permanent(f"{path} cannot be written: {exc.strerror or exc}") from exc
