"""Check the documentation: no placeholders, no dead links, no commands that do not exist.

Run by `make check`. Every `kgwe …` line of a code block is parsed as the command line would parse it; of `kgwe …` in
running text the command and its options must exist. Prints one line per problem; exits 1 if there is any.
"""

from __future__ import annotations

import functools
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import CycloptsError

from kgwe.cli.main import build_app, order_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).resolve().parent.parent
_PLACEHOLDER = re.compile(r"\b(?:[A-Z]+_TABLE|TODO|TBD|FIXME|XXX)\b")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`(kgwe [^`]+)`")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```", re.MULTILINE | re.DOTALL)
_SHELLS = {"", "sh", "bash", "shell", "console", "text"}
# What ends a command inside a line of shell.
_ENDS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>", "#"}
# Parts that a reader fills in.
_OPEN = re.compile(r"…|\.\.\.|[\[\]<>{}|]")


def find_problems(root: Path) -> Iterator[str]:
    """One line for each thing in the documents below `root` that is not so."""
    for path in [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(root)
        for problem in (*_find_placeholders(text), *_find_dead_links(path, text), *_find_wrong_commands(text)):
            yield f"{name}: {problem}"


def _find_placeholders(text: str) -> Iterator[str]:
    for found in _PLACEHOLDER.finditer(text):
        yield f"line {_line(text, found.start())}: placeholder {found.group()}"


def _find_dead_links(path: Path, text: str) -> Iterator[str]:
    for found in _LINK.finditer(text):
        target, _, anchor = found.group(1).partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        aim = (path.parent / target).resolve() if target else path
        if not aim.exists():
            yield f"line {_line(text, found.start())}: no such file: {target}"
        elif anchor and aim.suffix == ".md" and anchor not in _anchors(aim):
            yield f"line {_line(text, found.start())}: {aim.name} has no heading #{anchor}"


@functools.cache
def _anchors(path: Path) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a document."""
    headings = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", each) for each in _HEADING.findall(path.read_text()))
    return frozenset(re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings)


def _find_wrong_commands(text: str) -> Iterator[str]:
    for block in _BLOCK.finditer(text):
        if block["language"] in _SHELLS:
            for number, command in _commands(block["text"]):
                if problem := _parse(command):
                    yield f"line {_line(text, block.start()) + number}: `{shlex.join(command)}`: {problem}"
    for found in _INLINE.finditer(_BLOCK.sub(lambda each: "\n" * each.group().count("\n"), text)):
        if problem := _look_up(found.group(1).split()):
            yield f"`{found.group(1)}`: {problem}"


def _commands(block: str) -> Iterator[tuple[int, list[str]]]:
    """The `kgwe` commands of a block with their lines; such as have parts to fill in are left out."""
    for number, line in enumerate(block.replace("\\\n", " ").split("\n"), 1):
        typed = line.strip().removeprefix("$ ")
        if not typed.startswith("kgwe "):
            continue
        try:
            parts = shlex.split(typed, comments=True)
        except ValueError:
            continue
        ends = [place for place, part in enumerate(parts) if part in _ENDS]
        command = parts[: ends[0]] if ends else parts
        if not any(_OPEN.search(part) for part in command):
            yield number, command


def _parse(command: list[str]) -> str:
    """Why the command line would not take it; empty: it would."""
    try:
        build_app().parse_args(order_arguments(command[1:]), exit_on_error=False, print_error=False)
    except CycloptsError as exc:
        return " ".join(str(exc).split())
    return ""


def _look_up(command: list[str]) -> str:
    """Whether the command and its options exist."""
    app: Any = build_app()
    words = order_arguments(command[1:])
    names = [word for word in words if not word.startswith("-") or word == "--from-cluster"]
    path, found, _ = app.parse_commands(names)
    if not path and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return "no such command"
    target = found[-1]
    if target.default_command is None:
        return ""
    known = {name for argument in target.assemble_argument_collection() for name in argument.names}
    options = {re.split(r"[=,]", word)[0] for word in words if re.match(r"--[a-z]", word)}
    missing = sorted(each for each in options - known if each not in {"--help", "--version", "--from-cluster"})
    return f"no option {', '.join(missing)}" if missing else ""


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def main() -> int:
    problems = list(find_problems(_ROOT))
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
