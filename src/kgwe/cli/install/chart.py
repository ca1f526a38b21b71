"""`kgwe chart`: write or check the generated files of the Helm charts and the reference of their values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.install import chart_files, values_text

REFERENCE = Path("docs/reference/values.md")

app = App(
    name="chart",
    help="Write or check the generated files of the Helm charts.",
    help_epilogue="""\
Examples:

  kgwe chart                 write the generated files of charts/ and docs/reference/values.md
  kgwe chart --check         check that they are up to date
""",
    help_format="plaintext",
)


@app.default
def run(*, source: Path = Path(), check: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Write or check the generated files of the Helm charts.

    Parameters
    ----------
    source
        A checkout of KGWE.
    check
        Fail if a file differs; write nothing.
    """
    charts = source / "charts"
    values = (charts / chart_files.CHART / "values.yaml").read_text(encoding="utf-8")
    files = {charts / name: text for name, text in chart_files.build_files(source).items()}
    files[source / REFERENCE] = values_text.render_reference(values)
    left_over = [
        path
        for path in sorted(charts.rglob("*"))
        if path.is_file() and path not in files and chart_files.is_generated(path.relative_to(charts).as_posix())
    ]
    if check:
        _check(files, left_over)
        return
    for path in left_over:
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _check(files: dict[Path, str], left_over: list[Path]) -> None:
    problems = [
        f"{path} is {'out of date' if path.is_file() else 'missing'}"
        for path, text in files.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    problems += [f"{path} belongs to no source" for path in left_over]
    if problems:
        raise errors.Permanent("; ".join(problems) + "; run `make crds` and commit the result")
    terminal.write("charts are up to date\n")
