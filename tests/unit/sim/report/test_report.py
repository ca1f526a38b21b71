"""What a report looks like: the figures, the curves, the page."""

from __future__ import annotations

import html
import html.parser
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import msgspec
import pytest
from tests.support.builders import small_fleet

from kgwe.sim.fleet.faults import Faults
from kgwe.sim.loop import Options
from kgwe.sim.report import chart, compare, report
from kgwe.sim.report import html_page as page
from kgwe.sim.report.chart import Series
from kgwe.sim.report.report import FIGURES, Report
from kgwe.sim.traces.workload import Workload


def made(*names: str, gang: bool = True) -> Report:
    jobs = [small_fleet.job(f"j{k}", k * 20.0, 300.0 + k, gpus=1 + k % 4) for k in range(40)]
    if gang:
        jobs.append(small_fleet.job("<gang>", 50, 900, gpus=2, pods=4, model="bert"))
    options = Options(faults=Faults(per_node_month=500, repair_s=200))
    results = compare.compare_policies(small_fleet.nodes(4), Workload.from_jobs("w", jobs), names, options)
    return Report({"fleet": "small & <odd>", "nodes": 4, "load": 0.5}, results)


class _Checker(html.parser.HTMLParser):
    """Every tag that is opened is closed, in order."""

    VOID = {"meta", "br", "line"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        del attrs
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        del attrs
        self.seen.add(tag)


@pytest.mark.parametrize("names", [("first-fit",), ("first-fit", "spread", "random")])
def test_the_page_is_one_sound_file_that_needs_no_other(names):
    text = page.render(made(*names))
    checker = _Checker()

    checker.feed(text)
    checker.close()

    assert checker.open == []
    assert {"svg", "table", "style"} <= checker.seen
    assert not {"script", "img", "link", "iframe"} & checker.seen
    assert "http" not in text
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(drawing)  # noqa: S314 - our own


def test_the_page_names_policies_and_escapes_what_it_is_told():
    text = page.render(made("first-fit", "spread"))

    assert "small &amp; &lt;odd&gt;" in text
    assert "<odd>" not in text
    assert "first-fit" in text
    assert 'class="best"' in text


def test_the_page_is_the_same_every_time():
    assert page.render(made("random")) == page.render(made("random"))


def test_json_has_everything_the_table_shows():
    found = made("first-fit", "consolidate")

    decoded = json.loads(report.to_json(found))

    assert decoded["params"]["nodes"] == 4
    assert [result["policy"] for result in decoded["results"]] == ["first-fit", "consolidate"]
    first = decoded["results"][0]
    assert first["jobs"] == {"total": 41, "finished": 41, "running": 0, "waiting": 0, "impossible": 0}
    lengths = {len(values) for name, values in first["curves"].items() if not name.endswith("cdf_s")}
    assert len(lengths) == 1
    assert len(first["curves"]["wait_cdf_s"]) == 101


def test_the_table_has_a_row_per_figure_and_a_column_per_policy():
    table = report.to_table(made("first-fit", "spread"))

    assert len(table.rows) == len(FIGURES)
    assert [str(column.header) for column in table.columns] == ["", "first-fit", "spread"]


def test_what_is_not_known_is_a_dash():
    nodes = [small_fleet.node(0, price=None)]
    result = compare.run_policy(nodes, Workload.from_jobs("w", [small_fleet.job("a")]), "first-fit")
    shown = {figure.label: report.format_figure(figure, result) for figure in FIGURES}

    assert shown["cost of the fleet"] == "-"
    assert shown["per useful GPU hour"] == "-"
    assert shown["gangs in one leaf"] == "-"


def test_the_best_is_marked_only_where_there_is_a_difference():
    gang = small_fleet.job("gang", gpus=2, pods=4)
    results = compare.compare_policies(small_fleet.nodes(4), Workload.from_jobs("w", [gang]), ("first-fit", "spread"))
    finished = next(figure for figure in FIGURES if figure.label == "jobs finished")
    spread = next(figure for figure in FIGURES if figure.label == "gang spread, nodes")

    assert report.find_best(finished, results) == set()
    assert report.find_best(spread, results) == {0}
    assert report.find_best(spread, results[:1]) == set()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (90, "1.5 min"), (7200, "2.0 h"), (864_000, "10.0 d")]
)
def test_durations_read_well(seconds, text):
    assert report.duration(seconds) == text


class TestChart:
    @pytest.mark.parametrize(("high", "step"), [(100, 20), (7, 2), (0.3, 0.05), (1, 0.2), (0, 1), (4321, 1000)])
    def test_marks_are_round_numbers_and_few(self, high, step):
        assert chart._step(high) == pytest.approx(step)

    def test_curves_stay_inside_the_frame(self):
        drawn = chart.lines([Series("a", [0, 5, 10], [0, 50, 120])], x_label="x", y_label="y", top=100)
        points = re.search(r'points="([^"]+)"', drawn)
        assert points is not None
        places = [(float(pair.split(",")[0]), float(pair.split(",")[1])) for pair in points[1].split()]

        assert all(52 <= x <= 478 and 14 <= y <= 200 for x, y in places)
        assert places[0] == pytest.approx((52, 200))
        assert places[-1] == pytest.approx((478, 14))

    def test_a_distribution_goes_from_end_to_end(self):
        """Those who waited not at all are there at the first mark, all at the last."""
        drawn = chart.distribution([Series("a", [0, 0, 30, 60], [0, 33, 66, 100])], x_label="x", y_label="y")
        points = re.search(r'points="([^"]+)"', drawn)
        assert points is not None
        places = [(float(pair.split(",")[0]), float(pair.split(",")[1])) for pair in points[1].split()]

        assert places[0] == pytest.approx((52, 200 - 186 * 0.33), abs=0.1)
        assert places[-1] == pytest.approx((478, 14))
        assert len(places) == 4

    def test_nothing_to_draw_is_an_empty_frame(self):
        for drawn in (
            chart.lines([Series("a", [], [])], x_label="x", y_label="y"),
            chart.distribution([Series("a", [], [])], x_label="x", y_label="y"),
            chart.lines([Series("a", [0.0], [0.0])], x_label="x", y_label="y"),
        ):
            assert ET.fromstring(drawn).tag == "svg"  # noqa: S314 - our own


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
# Frames of several widths side by side: media queries see the frame as the window.
PROBE = """<!doctype html><body>%s<script>
onload = () => {
  const problems = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const inside = frame.contentDocument, say = (what) => problems.push(frame.width + " px: " + what);
    if (inside.documentElement.scrollWidth > frame.clientWidth) say("wider than the window");
    for (const svg of inside.querySelectorAll("svg")) {
      const whole = svg.getBoundingClientRect(), scale = whole.width / svg.viewBox.baseVal.width;
      for (const text of svg.querySelectorAll("text")) {
        const box = text.getBoundingClientRect();
        if (box.left < whole.left - 1 || box.right > whole.right + 1) say("cut off: " + text.textContent);
        const size = parseFloat(getComputedStyle(text).fontSize) * scale;
        if (size < 8) say("too small to read: " + text.textContent);
      }
    }
  }
  document.title = problems.length ? problems.join("; ") : "as it should be";
};
</script></body>"""


@pytest.mark.slow  # starts chromium
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_in_a_browser_nothing_is_cut_off_and_all_text_can_be_read(tmp_path):
    assert BROWSER is not None
    texts = [page.render(made("first-fit")), page.render(made("first-fit", "spread", "random", "consolidate"))]
    frames = [
        f'<iframe width="{width}" height="900" frameborder="0" srcdoc="{html.escape(text)}"></iframe>'
        for text in texts
        for width in (340, 500, 760, 1280, 2200)
    ]
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE % "".join(frames), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = subprocess.run(
        [BROWSER, *options, "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    title = re.search("<title>(.*?)</title>", shown.stdout)
    assert title is not None
    assert title[1] == "as it should be"


def test_the_page_says_why_a_chart_is_missing():
    jobs = [small_fleet.job("a", 0, 50, gpus=3), small_fleet.job("b", 1000, 10, gpus=4)]
    results = compare.compare_policies(
        small_fleet.nodes(1), Workload.from_jobs("w", jobs), ["first-fit"], Options(until_s=4)
    )
    text = page.render(Report({}, results))
    assert "No chart: no job finished." in text
    assert text.count("<svg") == 3


def test_a_run_without_curves_says_so():
    result = made("first-fit").results[0]
    no_time: dict[str, list[float]] = {
        name: [] for name in ("hours", "allocated", "fragmented", "out", "demand", "waiting", "running")
    }
    bare = msgspec.structs.replace(result, curves=msgspec.structs.replace(result.curves, **no_time))
    text = page.render(Report({}, [bare]))
    assert text.count("No chart: the run is too short for a curve over time") == 2
