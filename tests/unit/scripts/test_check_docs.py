"""The check of the documentation reports what is wrong, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

_SCRIPT = Path(__file__).parents[3] / "scripts" / "check_docs.py"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_docs", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("RULES_TABLE", "placeholder", id="placeholder"),
        pytest.param("[x](gone.md)", "no such file", id="dead link"),
        pytest.param("[x](#gone)\n\n# Here\n", "no heading", id="dead anchor"),
        pytest.param("```\nkgwe locall up\n```\n", "locall", id="unknown command in a block"),
        pytest.param("```sh\n$ kgwe local up --nmae x | head\n```\n", "--nmae", id="unknown option in a block"),
        pytest.param("Type `kgwe frobnicate`.", "no such command", id="unknown command in a sentence"),
        pytest.param("Type `kgwe local up --nmae x`.", "no option --nmae", id="unknown option in a sentence"),
    ],
)
def test_what_is_wrong_is_reported(check: ModuleType, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "README.md").write_text(text)
    (found,) = check.find_problems(tmp_path)
    assert found.startswith("README.md: ")
    assert problem in found


def test_what_is_right_is_not_reported(check: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# One `two`\n\n[up](../README.md) [self](#one-two)\n")
    (tmp_path / "README.md").write_text(
        "[a](docs/a.md#one-two), `kgwe local up --name NAME`, `kgwe simulate --from-cluster`\n"
        "```\nkgwe local status  # what runs\nkgwe local logs … \n$ kgwe local down --all && ls\n```\n"
    )
    assert list(check.find_problems(tmp_path)) == []
