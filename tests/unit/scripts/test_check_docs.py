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


def workload(spec: str) -> str:
    return f"```yaml\napiVersion: kgwe.nvidia.io/v1\nkind: GPUWorkload\nmetadata: {{name: a}}\nspec: {spec}\n```\n"


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
        pytest.param("The slice is cut anew.", "banned words: anew", id="banned word"),
        pytest.param("Pods of\nothers wait.", "banned words: of others", id="banned words on two lines"),
        pytest.param("See `placement/pod/gone.py`.", "no such file", id="missing file"),
        pytest.param("See `kgwe.placement.gone`.", "no such file or module", id="missing module"),
        pytest.param("```yaml\na: [\n```\n", "not YAML", id="broken YAML"),
        pytest.param(workload("{gpuRequirements: {count: 8, cuont: 1}}"), ".cuont: no such field", id="unknown field"),
        pytest.param(workload("{gpuRequirements: {count: eight}}"), "not of type integer", id="wrong type"),
        pytest.param(workload("{gpuRequirements: {count: -1}}"), "too small or too large", id="out of range"),
        pytest.param(workload("{gpuRequirements: {count: 8, hardware: Old}}"), "is none of", id="unknown value"),
        pytest.param(workload("{}"), ".gpuRequirements: missing", id="missing field"),
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
        "`placement/pod/fit.py`, `kgwe.placement.pod`, `kgwe.nvidia.io/gang`, `examples/`\n"
        f"{workload('{gpuRequirements: {count: 8}}')}"
        "```\nkgwe local status  # what runs\nkgwe local logs … \n$ kgwe local down --all && ls\n```\n"
    )
    assert list(check.find_problems(tmp_path)) == []


def test_examples_and_deployment_files_are_checked(check: ModuleType, tmp_path: Path) -> None:
    for folder in ("examples", "deploy"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.yaml").write_text("# For nobody.\n")
    assert list(check.find_problems(tmp_path)) == [
        "examples/a.yaml: line 1: banned words: nobody",
        "deploy/a.yaml: line 1: banned words: nobody",
    ]
