"""Check the packages of src/kgwe: not too many modules in one, and a docstring in every `__init__`.

Run by `make check`. Generated modules (`*_pb2.py`) do not count. Prints one line per problem; exits 1 if there is any.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_MODULES = 20
_SOURCES = Path(__file__).resolve().parent.parent / "src" / "kgwe"


def find_problems(root: Path, most: int = MOST_MODULES) -> Iterator[str]:
    """One line for each rule that a package below `root` breaks."""
    for init in sorted(root.rglob("__init__.py")):
        package = ".".join(init.parent.relative_to(root.parent).parts)
        count = count_modules(init.parent)
        if count > most:
            yield f"{package} has {count} modules; at most {most} are allowed: split it into sub-packages"
        if not ast.get_docstring(ast.parse(init.read_text())):
            yield f"{package} has no docstring: say in its __init__.py what lives there and what may import it"


def count_modules(package: Path) -> int:
    """Modules directly in a package, without `__init__` and generated ones."""
    return sum(path.name != "__init__.py" and not path.stem.endswith("_pb2") for path in package.glob("*.py"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the size and the docstrings of packages.")
    parser.add_argument("root", nargs="?", type=Path, default=_SOURCES, help="the package to check")
    problems = list(find_problems(parser.parse_args(arguments).root))
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
