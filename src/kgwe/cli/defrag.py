"""`kgwe defrag`: plans and executes moves of running pods that make room for a waiting gang."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.apps.defrag import execution, proposal
from kgwe.apps.defrag.proposal import NoMoves, Proposal, Terms
from kgwe.cluster import offline
from kgwe.cluster.checkpoint.caller import CheckpointCaller, FetchedReports
from kgwe.kube.client.client import KubeClient
from kgwe.model.units import quantity
from kgwe.telemetry import logs

app = App(
    name="defrag",
    help="""Make room for a waiting gang by moving running pods that consent.

Free GPUs may be scattered so that a gang fits nowhere. `plan` reads the cluster once and prints the moves that make
room, the GPU-hours they lose and the GPU-hours that the earlier start gains. `apply` carries them out.

Pods consent with the annotation kgwe.nvidia.io/allow-move: "true". Only pods of a controller (Deployment, StatefulSet,
Job) are moved: it creates them again. Pods of gangs and GPUWorkloads are never moved.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe defrag plan                            show the moves for the first workload that they can help
  kgwe defrag plan research/llm-training
  kgwe defrag apply research/llm-training     move the pods, after confirmation""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]
Output = Annotated[Literal["text", "json", "yaml"], Parameter(name=["--output", "-o"])]


@app.command(
    help_epilogue="""Examples:
  kgwe defrag plan                            the first workload in the queue that moves can help
  kgwe defrag plan research/llm-training -o yaml
  kgwe defrag plan --sooner 4h --max-moves 3
  kgwe defrag plan --everyone                 the possible gain if all pods consented"""
)
def plan(
    name: str = "",
    /,
    *,
    sooner: str = "1h",
    min_run: str = "5m",
    restart: str = "1m",
    max_moves: int | None = None,
    everyone: bool = False,
    output: Output = "text",
    kubeconfig: Kubeconfig = None,
) -> int:
    """Print the moves that would let a waiting workload start, with cost and gain. Changes nothing.

    Exit code 1 if no such moves exist.

    Parameters
    ----------
    name
        Waiting workload, gang or pod, as NAME or NAMESPACE/NAME. Default: the first one that moves can help.
    sooner
        How much earlier the workload starts because of the moves; used to compute the gain.
    min_run
        Minimum run time of a pod before it may be moved.
    restart
        Time a moved pod needs until it runs again.
    max_moves
        Maximum number of pods to move.
    everyone
        Also consider pods that do not consent. Such a plan cannot be applied.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig.
    """
    logs.configure(level="error")
    terms = _read_terms(sooner, min_run, restart, max_moves, everyone=everyone)

    async def ask() -> Proposal | NoMoves:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-defrag") as client:
            return proposal.propose(await offline.read(client), name, terms)

    answer = asyncio.run(ask())
    terminal.write(proposal.to_text(answer) if output == "text" else _encode(answer, output))
    return 0 if isinstance(answer, Proposal) else 1


@app.command(
    help_epilogue="""Examples:
  kgwe defrag apply                           show the plan and ask for confirmation
  kgwe defrag apply research/llm-training --yes"""
)
def apply(
    name: str = "",
    /,
    *,
    yes: bool = False,
    sooner: str = "1h",
    min_run: str = "5m",
    restart: str = "1m",
    max_moves: int | None = None,
    timeout: str = "5m",
    output: Output = "text",
    kubeconfig: Kubeconfig = None,
) -> int:
    """Move the pods of a plan one by one, and wait until the waiting workload has started.

    Without --yes the command asks for confirmation first. It uses the eviction API, so PodDisruptionBudgets apply. A
    taint keeps new pods off the target nodes until the moves are done.

    Parameters
    ----------
    name
        Waiting workload, gang or pod, as NAME or NAMESPACE/NAME. Default: the first one that moves can help.
    yes
        Move the pods without asking for confirmation.
    sooner
        How much earlier the workload starts because of the moves; used to compute the gain.
    min_run
        Minimum run time of a pod before it may be moved.
    restart
        Time a moved pod needs until it runs again.
    max_moves
        Maximum number of pods to move.
    timeout
        Maximum wait for each pod, and for the waiting workload.
    output
        Output format of the result.
    kubeconfig
        Path of the kubeconfig.
    """
    logs.configure(level="error")
    terms = _read_terms(sooner, min_run, restart, max_moves)
    return asyncio.run(_apply(name, terms, _parse_duration("--timeout", timeout), kubeconfig, yes=yes, output=output))


async def _apply(
    name: str, terms: Terms, timeout_s: float, kubeconfig: Path | None, *, yes: bool, output: Output
) -> int:
    async with KubeClient.connect(kubeconfig, field_manager="kgwe-defrag") as client:
        answer = proposal.propose(await offline.read(client), name, terms)
        if isinstance(answer, NoMoves):
            terminal.write(proposal.to_text(answer) if output == "text" else _encode(answer, output))
            return 1
        terminal.write_error(proposal.to_text(answer))
        if not yes and not await asyncio.to_thread(_is_confirmed, len(answer.moves)):
            terminal.write_error("No pod was moved. Pass --yes to move the pods.\n")
            return 0
        for node in await execution.remove_leftovers(client):
            terminal.write_error(f"Removed the taint that an interrupted run left on {node}\n")
        run = execution.Execution(
            client, answer, timeout_s, _print_progress, CheckpointCaller(client, FetchedReports(client))
        )
        outcome = await run.run()
    terminal.write(execution.to_text(outcome) if output == "text" else _encode(outcome, output))
    return 0 if outcome.started else 1


def _print_progress(text: str) -> None:
    terminal.write_error(f"{text}\n")


def _is_confirmed(moves: int) -> bool:
    if not sys.stdin.isatty():
        return False
    terminal.write_error(f"Move {moves} pods? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _read_terms(sooner: str, min_run: str, restart: str, max_moves: int | None, *, everyone: bool = False) -> Terms:
    if max_moves is not None and max_moves < 1:
        raise errors.Permanent(f"--max-moves {max_moves}: must be at least 1")
    return Terms(
        sooner_s=_parse_duration("--sooner", sooner),
        min_run_s=_parse_duration("--min-run", min_run),
        restart_s=_parse_duration("--restart", restart),
        max_moves=max_moves,
        everyone=everyone,
    )


def _parse_duration(option: str, text: str) -> float:
    try:
        return quantity.parse_duration(text)
    except (ValueError, errors.KgweError) as exc:
        raise errors.Permanent(f"{option} {text!r}: expected a duration such as 90s, 10m or 4h") from exc


def _encode(answer: Any, output: str) -> str:
    if output == "yaml":
        return msgspec.yaml.encode(answer).decode()
    return msgspec.json.format(msgspec.json.encode(answer)).decode() + "\n"
