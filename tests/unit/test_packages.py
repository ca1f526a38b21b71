"""The rules about packages that `make check` enforces."""

from pathlib import Path

import pytest
from scripts import check_packages


def make_package(root: Path, modules: int, docstring: str = '"""Doc."""\n') -> Path:
    package = root / "house"
    package.mkdir()
    (package / "__init__.py").write_text(docstring)
    for number in range(modules):
        (package / f"m{number}.py").write_text("")
    return package


def test_a_package_at_the_limit_passes_and_one_above_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = make_package(tmp_path, check_packages.MOST_MODULES)
    assert check_packages.main([str(package)]) == 0
    (package / "one_more.py").write_text("")
    assert check_packages.main([str(package)]) == 1
    assert "house has 21 modules; at most 20 are allowed" in capsys.readouterr().out


def test_generated_modules_do_not_count(tmp_path: Path) -> None:
    package = make_package(tmp_path, check_packages.MOST_MODULES)
    (package / "agent_pb2.py").write_text("")
    assert list(check_packages.find_problems(package)) == []


def test_modules_of_sub_packages_count_there(tmp_path: Path) -> None:
    package = make_package(tmp_path, check_packages.MOST_MODULES)
    inner = make_package(package, check_packages.MOST_MODULES + 1)
    assert [line.split(":")[0] for line in check_packages.find_problems(package)] == [
        "house.house has 21 modules; at most 20 are allowed"
    ]
    assert check_packages.count_modules(inner) == 21


def test_a_package_without_a_docstring_fails(tmp_path: Path) -> None:
    assert [*check_packages.find_problems(make_package(tmp_path, 1, docstring=""))] == [
        "house has no docstring: say in its __init__.py what lives there and what may import it"
    ]
