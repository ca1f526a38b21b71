"""Writes dashboards, rules and runbooks: `python -m kgwe.monitoring [--check]`, from the root of the repository."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from kgwe.monitoring import panels, runbooks
from kgwe.monitoring.dashboards.catalogue import DASHBOARDS
from kgwe.monitoring.rules import catalogue, types


def render_files() -> dict[Path, str]:
    """Return all files with their content."""
    chart = Path("charts/kgwe")
    files = {
        chart / "dashboards" / name: json.dumps(panels.build_json(each), indent=1, ensure_ascii=False) + "\n"
        for name, each in DASHBOARDS.items()
    }
    files |= {chart / "rules" / name: types.render_groups(groups) for name, groups in catalogue.FILES.items()}
    return files | {Path("docs/runbooks") / name: text for name, text in runbooks.render_pages().items()}


def find_stale(root: Path) -> list[str]:
    """Return what differs from the code: files that are missing or changed, and pages without an alert or reason."""
    files = render_files()
    wrong = [str(path) for path, text in files.items() if _read(root / path) != text]
    ours = {*(root / "docs/runbooks").rglob("*.md"), *(root / "charts/kgwe/dashboards").glob("*.json")}
    return wrong + [str(path.relative_to(root)) for path in sorted(ours) if path.relative_to(root) not in files]


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kgwe.monitoring", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 if a file differs")
    if parser.parse_args(arguments).check:
        stale = find_stale(Path())
        for path in stale:
            sys.stdout.write(f"{path} differs from src/kgwe/monitoring: run `make monitoring`\n")
        return 1 if stale else 0
    for file, text in render_files().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
