"""The report as one HTML file: no script, font or external image; light or dark mode as the reader prefers."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kgwe.sim import recording
from kgwe.sim.report import chart, report
from kgwe.sim.report.chart import Series

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.sim.report.metrics import Result
    from kgwe.sim.report.report import Report

_STYLE: Final = """
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1d2329;--soft:#66707a;--line:#e4e6e8;--rest:#c3ccd4;
--good:#0f7a4b;
--s0:#2f6fde;--s1:#e07b1a;--s2:#1f9d63;--s3:#c2417f;--s4:#7a5ad1;--s5:#0e97a7;--s6:#9a7412;--s7:#7b8794}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1c2024;--ink:#e8eaec;--soft:#9aa4ad;--line:#31373d;
--rest:#5d6871;--good:#5fd39b;--s0:#6ea3ff;--s1:#f5a252;--s2:#56cf94;--s3:#ee82b4;--s4:#ac92f5;--s5:#4fcbd8;--s6:#d8b34d;--s7:#a3adb6}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1120px;margin:0 auto;padding:32px 20px 48px}
h1{font-size:24px;line-height:1.2;margin:0 0 4px}h2{font-size:15px;margin:0 0 2px}
p{margin:0}.soft{color:var(--soft);font-size:13px}
.params{display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0 22px;color:var(--soft);font-size:13px}
.params b{color:var(--ink);font-weight:600}
.key{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:16px}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.card strong{display:block;font-size:22px;line-height:1.25;font-variant-numeric:tabular-nums}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:14px;margin-bottom:16px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 14px;font-size:14px}
.legend span{display:inline-flex;align-items:center;gap:7px}
.legend i{width:14px;height:4px;border-radius:2px;background:currentColor}
main>.legend{position:sticky;top:0;z-index:1;margin:0 0 6px;padding:8px 0;background:var(--bg)}
.card .legend{font-size:13px;margin:2px 0 4px;color:var(--soft)}
.scroll,.one{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;border-top:1px solid var(--line);white-space:nowrap}
tr:first-child>*{border-top:0}th:first-child,td:first-child{text-align:left;padding-left:0}
th{font-weight:600}td small{color:var(--soft);margin-left:8px}
td.best{color:var(--good);font-weight:650}
.one table{display:block}.one tbody{display:block;columns:400px 2;column-gap:40px}
.one tr{display:flex;break-inside:avoid;border-bottom:1px solid var(--line)}
.one td{flex:1 0 auto;border:0}.one td:last-child{padding-right:0}
svg{display:block;width:100%;height:auto}
svg .t{font-size:12px;fill:var(--soft)}svg .e{text-anchor:end}svg .m{text-anchor:middle}
svg .g{stroke:var(--line);stroke-width:1}svg .x{stroke:var(--soft);stroke-width:1}
svg .l{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round}svg .l:hover{stroke-width:3.4}
svg .a{fill:currentColor;fill-opacity:.72;stroke:none}svg .a:hover{fill-opacity:.9}
.s0{color:var(--s0)}.s1{color:var(--s1)}.s2{color:var(--s2)}.s3{color:var(--s3)}
.s4{color:var(--s4)}.s5{color:var(--s5)}.s6{color:var(--s6)}.s7{color:var(--s7)}
svg .rest{fill-opacity:.35}.rest{color:var(--rest)}
footer{margin-top:18px}
@media (max-width:720px){main{padding:20px 12px 32px}th,td{padding:5px 6px}td:first-child{white-space:normal}
td small{display:block;margin:0}svg .t{font-size:15px}}
"""

_BEST: Final = '<td class="best">'
_FOOTER: Final = (
    "Created by kgwe simulate; equal inputs and seeds give equal pages. "
    "Curves over time end after 1.5 times the arrival period."
)
_HOURS_OF_DAYS: Final = 72
# A curve has at least two points.
_FEWEST_POINTS: Final = 2
_TOO_SHORT: Final = "the run is too short for a curve over time, which needs two samples"
#: shown large at the top if there is one policy
_KEY: Final = (
    "GPU allocation",
    "fragmentation",
    "wait, p90",
    "completion, mean",
    "gang spread, nodes",
    "per useful GPU hour",
)


def render(found: Report) -> str:
    """Return the whole page."""
    results = found.results
    many = len(results) > 1
    title = "Policies compared" if many else f"Simulation of {results[0].policy}"
    body = "".join(
        (
            f"<h1>{html.escape(title)}</h1>",
            _params(found),
            _legend([(each.policy, chart.colour(number)) for number, each in enumerate(results)])
            if many
            else _key_figures(results[0]),
            _table(found) if many else "",
            f'<div class="grid">{"".join(_cards(results))}</div>',
            "" if many else _table(found),
            f'<footer class="soft">{_FOOTER}</footer>',
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)} - KGWE</title><style>{_STYLE}</style></head>"
        f"<body><main>{body}</main></body></html>\n"
    )


def _params(found: Report) -> str:
    each = (
        f"<span>{html.escape(key)} <b>{html.escape(_number(value))}</b></span>" for key, value in found.params.items()
    )
    return f'<div class="params">{"".join(each)}</div>'


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _legend(entries: list[tuple[str, str]]) -> str:
    each = (f'<span><i class="{look}"></i>{html.escape(label)}</span>' for label, look in entries)
    return f'<div class="legend">{"".join(each)}</div>'


def _key_figures(result: Result) -> str:
    figures = {figure.label: figure for figure in report.FIGURES}
    cards = (
        f'<div class="card"><span class="soft">{label}</span>'
        f"<strong>{report.format_figure(figures[label], result)}</strong></div>"
        for label in _KEY
        if figures[label].value(result) is not None
    )
    return f'<div class="key">{"".join(cards)}</div>'


def _table(found: Report) -> str:
    is_one = len(found.results) == 1
    heads = "".join(f"<th>{html.escape(result.policy)}</th>" for result in found.results)
    rows = [] if is_one else [f"<tr><th></th>{heads}</tr>"]
    for figure in report.FIGURES:
        winners = report.find_best(figure, found.results)
        cells = "".join(
            f"{_BEST if number in winners else '<td>'}{html.escape(report.format_figure(figure, result))}</td>"
            for number, result in enumerate(found.results)
        )
        hint = f"<small>{html.escape(figure.hint)}</small>" if figure.hint else ""
        rows.append(f"<tr><td>{html.escape(figure.label)}{hint}</td>{cells}</tr>")
    look = "card one" if is_one else "card scroll"
    return f'<div class="{look}" style="margin-bottom:16px"><table>{"".join(rows)}</table></div>'


def _cards(results: list[Result]) -> list[str]:
    clock = _Clock.from_results(results)
    cards = [_use(results[0], clock)] if len(results) == 1 else _use_of_many(results, clock)
    cards.append(
        _card(
            "GPU waited for",
            "by jobs in the queue",
            clock.lines([(r, r.curves.demand) for r in results], "% of capacity"),
        )
    )
    if len(results) > 1:
        running = clock.lines([(r, r.curves.running) for r in results], "jobs")
        cards.append(_card("Jobs running", "at the same time", running))
    waits = [_build_distribution(r.policy, r.curves.wait_cdf_s) for r in results]
    ends = [_build_distribution(r.policy, r.curves.completion_cdf_s) for r in results]
    jobs = "% of jobs"
    cards.append(_card("Wait", "until a job starts", _distribution(waits, jobs, "no job started")))
    cards.append(_card("Completion", "from arrival to end", _distribution(ends, jobs, "no job finished")))
    return cards


def _distribution(series: list[Series], y_label: str, why_empty: str) -> str:
    if not any(each.xs for each in series):
        return _explain_missing_chart(why_empty)
    return chart.distribution(series, x_label="at most", y_label=y_label)


def _explain_missing_chart(why: str) -> str:
    return f'<p class="soft">No chart: {html.escape(why)}.</p>'


def _has_curve(series: Sequence[Series]) -> bool:
    return any(len(each.xs) >= _FEWEST_POINTS for each in series)


def _use(result: Result, clock: _Clock) -> str:
    curves = result.curves
    idle = [
        max(0.0, 100 - used - lost - out)
        for used, lost, out in zip(curves.allocated, curves.fragmented, curves.out, strict=True)
    ]
    layers = [("allocated", curves.allocated, "s0"), ("fragmented", curves.fragmented, "s1")]
    if any(curves.out):
        layers.append(("down", curves.out, "s3"))
    layers.append(("idle and usable", idle, "rest"))
    series = [Series(label, *clock.cut(result, ys), look) for label, ys, look in layers]
    drawn = (
        chart.draw_stacked(series, x_label=clock.label, y_label="% of GPU", top=100)
        if _has_curve(series)
        else _explain_missing_chart(_TOO_SHORT)
    )
    return _card("Where the GPUs are", _legend([(label, look) for label, _, look in layers]), drawn, is_html=True)


def _use_of_many(results: list[Result], clock: _Clock) -> list[str]:
    used = clock.lines([(r, r.curves.allocated) for r in results], "% of GPU", top=100)
    lost = clock.lines([(r, r.curves.fragmented) for r in results], "% of GPU")
    return [
        _card("GPU allocation", "held by jobs", used),
        _card("Fragmentation", "idle, but unusable for a pod of the mix", lost),
    ]


@dataclass(frozen=True, slots=True)
class _Clock:
    """The time axis: hours or days, ending when only the last long jobs run."""

    unit: str
    hours: float
    until: float

    @classmethod
    def from_results(cls, results: list[Result]) -> _Clock:
        until = min(max(r.hours for r in results), recording.FINE_UNTIL * max(r.busy_hours for r in results))
        return cls("days", 24.0, until) if until > _HOURS_OF_DAYS else cls("hours", 1.0, until)

    @property
    def label(self) -> str:
        return f"{self.unit} since the first arrival"

    def cut(self, result: Result, ys: Sequence[float]) -> tuple[list[float], list[float]]:
        shown = [(hour / self.hours, y) for hour, y in zip(result.curves.hours, ys, strict=True) if hour <= self.until]
        return [x for x, _ in shown], [y for _, y in shown]

    def lines(self, curves: Sequence[tuple[Result, Sequence[float]]], y_label: str, top: float | None = None) -> str:
        series = [Series(result.policy, *self.cut(result, ys)) for result, ys in curves]
        if not _has_curve(series):
            return _explain_missing_chart(_TOO_SHORT)
        return chart.lines(series, x_label=self.label, y_label=y_label, top=top)


def _build_distribution(label: str, seconds: list[float]) -> Series:
    return Series(label, seconds, [100 * k / max(len(seconds) - 1, 1) for k in range(len(seconds))])


def _card(title: str, subtitle: str, drawn: str, *, is_html: bool = False) -> str:
    said = subtitle if is_html else f'<p class="soft">{html.escape(subtitle)}</p>'
    return f'<div class="card"><h2>{html.escape(title)}</h2>{said}{drawn}</div>'
