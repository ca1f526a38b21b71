"""`gpu-autoscaler`: the commands of the GPU Autoscaler under their first names. Each runs a command of `kgwe`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from kgwe import terminal
from kgwe.cli import main as kgwe_main

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS: Final = {
    "cost": ("cost",),
    "report": ("report",),
    "status": ("scale", "status"),
    "optimize": ("optimize",),
    "version": ("--version",),
}
# Values of --format, which is -o here. `summary` and `text` are the default.
_FORMATS: Final = {
    "summary": (),
    "text": (),
    "detailed": ("--by", "pod"),
    "json": ("-o", "json"),
    "csv": ("-o", "csv"),
}
_KNOWN: Final = {"cost": ("summary", "detailed", "json"), "report": ("text", "json", "csv")}
_HELP: Final = """\
Usage: gpu-autoscaler COMMAND

The commands of the GPU Autoscaler. Each runs a command of kgwe and takes its options.

Commands:
  cost       kgwe cost; --format summary|detailed|json
  report     kgwe report; --format text|json|csv
  status     kgwe scale status
  optimize   kgwe optimize
  version    kgwe --version

Examples:
  gpu-autoscaler cost --last 7d --format detailed
  gpu-autoscaler report --format csv
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        terminal.write(_HELP)
        return
    if arguments[0] == "--version":
        arguments = ["version"]
    try:
        translated = translate(arguments)
    except ValueError as exc:
        terminal.write_error(f"gpu-autoscaler: {exc}\n")
        sys.exit(1)
    kgwe_main.main(translated)


def translate(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of `kgwe`. ValueError says what is not known."""
    command, *options = arguments
    if command not in COMMANDS:
        raise ValueError(f"there is no command {command!r}; the commands are {', '.join(COMMANDS)}")
    found = list(COMMANDS[command])
    known = _KNOWN.get(command, ())
    rest = iter(options)
    for each in rest:
        name, is_joined, value = each.partition("=")
        if name != "--format" or not known:
            found.append(each)
            continue
        wanted = value if is_joined else next(rest, "")
        if wanted not in known:
            raise ValueError(f"--format {wanted!r}: expected {', '.join(known)}")
        found += _FORMATS[wanted]
    return found
