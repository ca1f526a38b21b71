"""Make Python code and its types from the .proto files beside this file: `make proto`.

Only messages are generated. Services are tables of methods where they are served or called: what the compiler makes of
them has no types.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import resources
from pathlib import Path

HERE = Path(__file__).parent


def sources() -> list[Path]:
    return sorted(HERE.glob("*.proto"))


def generate(target: Path) -> list[Path]:
    """Write the code of every .proto file below `target`; returns what was written."""
    from grpc_tools import protoc  # noqa: PLC0415 - there only where KGWE is developed

    root = HERE.parents[1]
    wanted = [path.relative_to(root).as_posix() for path in sources()]
    includes = resources.files("grpc_tools") / "_proto"
    options = [f"-I{root}", f"-I{includes}", f"--python_out={target}", f"--pyi_out={target}"]
    if protoc.main(["protoc", *options, *wanted]):
        raise SystemExit("the .proto files do not compile")
    stems = [Path(each).with_suffix("") for each in wanted]
    return [target / f"{stem}_pb2{suffix}" for stem in stems for suffix in (".py", ".pyi")]


def stale() -> list[str]:
    """Names of files that are not what the .proto files say."""
    with tempfile.TemporaryDirectory() as scratch:
        made = generate(Path(scratch))
        return [path.name for path in made if not (mine := HERE / path.name).exists() or differs(path, mine)]


def differs(one: Path, other: Path) -> bool:
    return one.read_bytes() != other.read_bytes()


if __name__ == "__main__":
    for written in generate(HERE.parents[1]):
        sys.stdout.write(f"{written.relative_to(HERE.parents[1])}\n")
