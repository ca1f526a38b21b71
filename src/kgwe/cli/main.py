"""The `kgwe` command.

Each command group lives in a module of its own and is imported when it is called. The overview is printed from the
table below without importing any of them, nor the argument parser: `kgwe --help` should be there at once.
Adding a command is one line in the table.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe.errors import KgweError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cyclopts import App


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    # "module:attribute" of a cyclopts App or a function.
    target: str
    summary: str


COMMANDS = (
    Command("demo", "kgwe.cli.demo:app", "See it work: local cluster, simulated fleet, sample workloads."),
    Command("local", "kgwe.cli.local:app", "Run a real Kubernetes control plane on this machine."),
    Command("scheduler", "kgwe.cli.processes.scheduler:app", "Place GPU work: workloads, gangs and plain pods."),
    Command("controller", "kgwe.cli.processes.controller:app", "Run GPUWorkloads alone, without the extender."),
    Command("mig", "kgwe.cli.processes.mig:app", "Cut GPUs into MIG slices by strategy and demand."),
    Command("agent", "kgwe.cli.processes.agent:app", "Publish, cut and share the GPUs of a node."),
    Command("crds", "kgwe.cli.crds:app", "Print, write or check the definitions of KGWE's kinds."),
    Command("simulate", "kgwe.cli.simulate:app", "Try placement policies on a simulated fleet and workload."),
    Command("explain", "kgwe.cli.explain:app", "Why a workload or pod is where it is, or why it waits."),
    Command("replay", "kgwe.cli.replay:app", "Take recorded decisions again, by the same policy or another."),
    Command("advise", "kgwe.cli.advise:app", "What another scheduler's placements cost; changes nothing."),
    Command("topology", "kgwe.cli.topology:app", "How the GPUs of a machine are wired, from nvidia-smi or NCCL text."),
    Command("defrag", "kgwe.cli.defrag:app", "Make room for a waiting gang by moving pods that consent."),
    Command("sharing", "kgwe.cli.sharing:app", "How one GPU is offered to several pods by the device plugin."),
    Command("bench", "kgwe.cli.bench:app", "Measure KGWE on this machine."),
)

_EXAMPLES = """\
Examples:
  kgwe local up                 start a local cluster
  kgwe local status             see what runs
  kgwe COMMAND --help           read more about a command
"""


def main(argv: Sequence[str] | None = None) -> None:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        sys.stdout.write(overview())
        return
    if arguments[0] == "--version":
        sys.stdout.write(f"kgwe {_version()}\n")
        return
    try:
        build_app()(order_arguments(arguments))
    except KgweError as exc:
        sys.stderr.write(f"kgwe: {exc}\n")
        sys.exit(1)
    except BrokenPipeError:
        # The reader closed the pipe (`kgwe local logs | head`): drop what is buffered.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def order_arguments(arguments: list[str]) -> list[str]:
    """The arguments as the parser needs them: `simulate --from-cluster` is a command, and commands come first."""
    if "--from-cluster" in arguments[1:] and arguments[0] == "simulate":
        rest = [each for each in arguments[1:] if each != "--from-cluster"]
        return ["simulate", "--from-cluster", *rest]
    return arguments


def overview() -> str:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{width}}   {command.summary}" for command in COMMANDS]
    return "\n".join(
        (
            "Usage: kgwe COMMAND",
            "",
            "Kubernetes GPU Workload Enhancer: makes a GPU fleet behave like one well-run machine.",
            "",
            "Commands:",
            *lines,
            "",
            "Options:",
            "  -h, --help   show this text",
            "  --version    show the version",
            "",
            _EXAMPLES,
        )
    )


def build_app() -> App:
    """The argument parser over all commands, each still unloaded."""
    from cyclopts import App  # noqa: PLC0415 -- the overview does without it

    app = App(name="kgwe", version=_version, help_format="plaintext")
    for command in COMMANDS:
        app.command(command.target, name=command.name, help=command.summary)
    return app


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 -- the overview does without it

    return version("kgwe")
