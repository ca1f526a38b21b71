"""The `kgwe` command.

Each command group is a module that is imported when the command runs. The overview is printed from the table below
without imports of commands or of the argument parser, so `kgwe --help` is fast. A new command is one line in the
table.
"""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kgwe import terminal
from kgwe.errors import KgweError, Unreachable

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
    Command("demo", "kgwe.cli.demo:app", "Start a local cluster with KGWE, a simulated fleet and samples."),
    Command("local", "kgwe.cli.local:app", "Run a real Kubernetes control plane on this machine."),
    Command("scheduler", "kgwe.cli.processes.scheduler:app", "Place GPU workloads, gangs and single pods."),
    Command(
        "controller", "kgwe.cli.processes.controller:app", "Run only GPUWorkloads, without the scheduler extender."
    ),
    Command("mig", "kgwe.cli.processes.mig:app", "Partition GPUs into MIG slices by strategy and demand."),
    Command("agent", "kgwe.cli.processes.agent:app", "Publish, partition and share the GPUs of a node."),
    Command("optimizer", "kgwe.cli.processes.optimizer:app", "Keep history, predict run times and find wasted GPUs."),
    Command("webhook", "kgwe.cli.processes.webhook:app", "Change pods while they are created, and keep certificates."),
    Command("rightsize", "kgwe.cli.rightsize:app", "Show and revert decisions on smaller GPU requests."),
    Command(
        "console", "kgwe.cli.processes.console:app", "Serve the console and its HTTP API, or open it in a browser."
    ),
    Command("cost-engine", "kgwe.cli.processes.cost:app", "Meter what GPU nodes cost and which pods held them."),
    Command("autoscaler", "kgwe.cli.processes.autoscaler:app", "Buy nodes for what waits, and remove idle nodes."),
    Command("scale", "kgwe.cli.scaling.scale:app", "Show what the autoscaler does, has done and would do."),
    Command("drain", "kgwe.cli.scaling.drain:app", "Show which pods leave a node or leaf, and where they would go."),
    Command("cost", "kgwe.cli.cost.cost:app", "Show what namespaces, teams and workloads cost."),
    Command("budget", "kgwe.cli.cost.budget:app", "Show budgets, what they have spent, and what waits for them."),
    Command("report", "kgwe.cli.cost.report:app", "Write a chargeback report of the whole fleet."),
    Command("bill", "kgwe.cli.cost.bill:app", "Compare a bill of the cloud with what was metered."),
    Command("optimize", "kgwe.cli.optimize:app", "List pods that waste GPUs, with recommendations."),
    Command("predict", "kgwe.cli.predict:app", "Predict run time, memory and cost of workloads in a file."),
    Command("crds", "kgwe.cli.install.crds:app", "Print, write or check the CustomResourceDefinitions of KGWE."),
    Command("install", "kgwe.cli.install.release:install", "Install KGWE on a cluster with Helm."),
    Command("upgrade", "kgwe.cli.install.release:upgrade", "Upgrade an installation of KGWE."),
    Command("uninstall", "kgwe.cli.install.release:uninstall", "Remove KGWE; workloads stay."),
    Command("doctor", "kgwe.cli.install.doctor:app", "Check an installation, and say what to do."),
    Command("chart", "kgwe.cli.install.chart:app", "Write or check the generated files of the Helm charts."),
    Command("simulate", "kgwe.cli.simulate:app", "Compare placement policies on a simulated fleet and workload."),
    Command("explain", "kgwe.cli.explain:app", "Explain why a workload or pod is on its node, or why it waits."),
    Command("idle", "kgwe.cli.idle:app", "List idle GPUs, keep workloads from being suspended, and restore them."),
    Command("replay", "kgwe.cli.replay:app", "Replay recorded decisions with the same policy or another."),
    Command("advise", "kgwe.cli.advise:app", "Compare the placements of another scheduler with KGWE's (read-only)."),
    Command(
        "topology", "kgwe.cli.topology:app", "Show how the GPUs of a machine are connected (nvidia-smi or NCCL text)."
    ),
    Command("defrag", "kgwe.cli.defrag:app", "Move pods that consent to make room for a waiting gang."),
    Command("sharing", "kgwe.cli.sharing:app", "Configure GPU sharing (time-slicing, MPS) of the device plugin."),
    Command("image", "kgwe.cli.install.image:app", "Build and push container images without a container engine."),
    Command("debug", "kgwe.cli.debug:app", "Collect logs, metrics and status into one file, without secrets."),
    Command("bench", "kgwe.cli.bench:app", "Measure KGWE on this machine."),
)

_EXAMPLES = """\
Examples:
  kgwe local up                 start a local cluster
  kgwe local status             show its components
  kgwe COMMAND --help           show the help of a command
"""

_REACH_HINT = "check the kubeconfig (--kubeconfig, KUBECONFIG), or start a local cluster with kgwe local up"
# Errors of a write to standard output, such as a full disk.
_OUTPUT_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(argv: Sequence[str] | None = None) -> None:
    if getattr(sys, "stdout", None) is None:  # closed by the caller: output is not wanted
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        try:
            _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe (`kgwe local logs | head`).
        _discard_output()
        sys.exit(1)
    except OSError as exc:
        if exc.filename is not None or exc.errno not in _OUTPUT_ERRORS:
            raise
        _discard_output()
        terminal.write_error(f"kgwe: cannot write the output: {exc.strerror}\n")
        sys.exit(1)


def _discard_output() -> None:
    """Drop what is still buffered, so that the interpreter does not write it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in {"-h", "--help", "help"}:
        terminal.write(overview())
        return
    if arguments[0] == "--version":
        terminal.write(f"kgwe {_version()}\n")
        return
    try:
        build_app()(order_arguments(arguments))
    except Unreachable as exc:
        terminal.write_error(f"kgwe: {exc}: {_REACH_HINT}\n")
        sys.exit(1)
    except KgweError as exc:
        terminal.write_error(f"kgwe: {exc}\n")
        sys.exit(1)


def order_arguments(arguments: list[str]) -> list[str]:
    """Return the arguments in the parser's order: `simulate --from-cluster` is a command, and commands come first."""
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
            "Kubernetes GPU Workload Enhancer: topology-aware GPU scheduling, MIG and GPU sharing for Kubernetes.",
            "",
            "Commands:",
            *lines,
            "",
            "Options:",
            "  -h, --help   show this help",
            "  --version    show the version",
            "",
            _EXAMPLES,
        )
    )


def build_app() -> App:
    """Return the argument parser with all commands registered but not yet imported."""
    from cyclopts import App  # noqa: PLC0415 -- the overview does without it

    app = App(name="kgwe", version=_version, help_format="plaintext")
    for command in COMMANDS:
        # Without `help`: that of the command itself is longer than the summary.
        app.command(command.target, name=command.name)
    return app


def _version() -> str:
    from importlib.metadata import version  # noqa: PLC0415 -- the overview does without it

    return version("kgwe")
