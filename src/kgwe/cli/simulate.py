"""`kgwe simulate`: runs a workload on a simulated fleet with a placement policy, without a cluster."""

from __future__ import annotations

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kgwe import errors, terminal
from kgwe.local.fleet import models
from kgwe.model.simfleet import inventory
from kgwe.placement.fleet.node import GPU_MILLI
from kgwe.placement.queue.reservation import BackfillRule, ReservationSettings
from kgwe.records import decisions
from kgwe.sim.fleet import fleets, prices, sensitivity
from kgwe.sim.fleet.faults import Faults
from kgwe.sim.fleet.fleet import World
from kgwe.sim.loop import Options
from kgwe.sim.policies import registry
from kgwe.sim.record_writer import RecordWriter
from kgwe.sim.report import compare as study
from kgwe.sim.report import fill as filling
from kgwe.sim.report import html_page as page
from kgwe.sim.report import report
from kgwe.sim.traces import generate, loaders, openb, recorded
from kgwe.visible_text import escape_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from kgwe.placement.fleet.node import Node
    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.placement.packing.fleet import NodeSpec
    from kgwe.sim.loop import Simulation, Watcher
    from kgwe.sim.traces.workload import Job, Workload

# Fleet name that stands for the nodes of the openb trace.
OPENB = "openb"
_DEFAULT_FLEET = "dgx-h100"
_DEFAULT_NODES = 64
_WIDEST = 1000
# The trace requests hardly more GPUs than its own 1,213 nodes have, and most of its pods are short. A tenth of the
# nodes is enough for a full fleet.
_OPENB_NODES = 120

# Seconds of simulated time between two reviews of a reservation. The scheduler uses 30 s. Here run times are exact,
# and reviews take most of the CPU time of a run.
_REFRESH_S = 300.0
# Queue settings of each value of `--backfill`.
_RULES = {"none": BackfillRule.BLOCK, "greedy": BackfillRule.GREEDY, "easy": BackfillRule.BACKFILL}

_POLICIES = "\n".join(f"  {name:<12} {named.summary}" for name, named in registry.REGISTRY.items())
_MIXES = "\n".join(f"  {name:<16} {mix.summary}" for name, mix in generate.MIXES.items())

app = App(
    name="simulate",
    help="Compare placement policies on a simulated fleet. Needs no cluster; equal seeds give equal results.",
    help_format="plaintext",
    help_epilogue=f"""Policies:
{_POLICIES}

Mixes to generate:
{_MIXES}

Examples:
  kgwe simulate
  kgwe simulate --fleet mixed --nodes 256 --generate llm-pretrain --jobs 2000 --failures 0.2
  kgwe simulate --compare kgwe,spread,best-fit --html report.html
  kgwe simulate --trace jobs.csv --format philly --policy kgwe -o json
  kgwe simulate --trace openb_pod_list_default.csv --format openb --compare mixfit,fgd,best-fit
  kgwe simulate --trace openb_pod_list_default.csv --format openb --fill 3 --seed 42 --compare kgwe-mixfit,kgwe
  kgwe simulate --from-cluster --submit train.yaml --add-nodes dgx-h100=4""",
)


app.command(
    "kgwe.cli.whatif:app",
    name="--from-cluster",
    help="Plan workloads on a copy of the live cluster, and create nothing.",
)


@app.default
def simulate(
    *,
    fleet: str | None = None,
    nodes: int | None = None,
    trace: Path | None = None,
    format: Literal["openb", "philly", "records"] = "philly",  # noqa: A002 - the name of the option
    generate: Annotated[str, Parameter(name="--generate")] = "research",
    jobs: int = 1000,
    load: float = 0.9,
    policy: str = "kgwe",
    compare: str = "",
    backfill: Literal["none", "greedy", "easy"] = "easy",
    seed: int = 1,
    failures: float = 0.0,
    spot_reclaims: float = 0.0,
    spot_take_backs: Annotated[float | None, Parameter(show=False)] = None,
    output: Annotated[Literal["json", "table"], Parameter(name=["--output", "-o"])] = "table",
    html: Path | None = None,
    record: Path | None = None,
    sensitivity_data: Path | None = None,
    oversubscription: str = "",
    price_list: Path | None = None,
    fill: int = 0,
) -> int:
    """Run a workload on a simulated fleet and report allocation, waiting times, locality, failures and cost.

    Parameters
    ----------
    fleet
        Fleet model: a name such as dgx-h100 or mixed, a file, or openb (the nodes of the openb trace).
    nodes
        Number of nodes. Default: 64, or 120 for openb (spread evenly over its list).
    trace
        Read jobs from this file instead of generating them.
    format
        Format of the trace: openb (pod list), philly (CSV, one job per row) or records (decisions written with
        --record, or by the scheduler).
    generate
        Mix of jobs to generate if no trace is given.
    jobs
        Number of jobs to generate.
    load
        Requested GPU time divided by the fleet's GPU time while jobs arrive; for generated and openb workloads.
    policy
        Placement policy.
    compare
        Policies to compare, separated by commas, or "all".
    backfill
        Jobs that may start before a blocked job: none, greedy (any job), easy (jobs that do not delay it).
    seed
        Seed of the generated workload, of faults and of the random policy.
    failures
        Failures per node in 30 days: half of them of the whole node, half of one GPU.
    spot_reclaims
        Reclaims per spot node and day.
    spot_take_backs
        Old name of --spot-reclaims.
    output
        Output format.
    html
        Write an HTML report with charts to this file. The file needs no other files.
    record
        Write each decision to this file as JSON lines. Works with one policy only.
    sensitivity_data
        Directory of measured step times by placement, one CSV file per model. Default: the built-in data.
    oversubscription
        Oversubscription of the network above the leaf, the spine and so on: "2" or "2,4". Gangs that span leaves run
        slower accordingly. Default: no slowdown.
    price_list
        CSV file of prices (instance_type, region, price_usd_h, spot_price_usd_h) instead of the built-in prices.
    fill
        Fill an openb fleet this many times, as `kgwe bench packing` does: pods arrive in random order until they
        request 130 % of all GPUs; no pod leaves or waits. The first run uses --seed. Default of --nodes: all nodes.
    """
    names = _policies(policy, compare)
    if record is not None and len(names) > 1:
        raise errors.Permanent("--record works with one policy only; remove --compare or --record")
    chosen = _Chosen(fleet, nodes, trace, format, price_list)
    if fill:
        return _fill(chosen, names, range(seed, seed + fill), output)
    machines = chosen.machines()
    workload = chosen.workload(machines, mix=generate, jobs=jobs, load=load, seed=seed)
    options = Options(
        ReservationSettings(_RULES[backfill], refresh_s=_REFRESH_S),
        faults=Faults(
            per_node_month=failures, spot_per_day=spot_reclaims if spot_take_backs is None else spot_take_backs
        ),
        seed=seed,
        slowdowns=sensitivity.fit_slowdowns(sensitivity_data) if sensitivity_data else sensitivity.DEFAULTS,
    )
    try:
        with _recording(record) as writers, _progress(len(workload)) as bars:
            results = study.compare_policies(
                machines,
                workload,
                names,
                options,
                lambda name: (*writers, _Bar(bars, name)),
                oversubscription=_parse_ratios(oversubscription),
            )
    except KeyboardInterrupt:
        terminal.write_error("kgwe: interrupted; no report was written.\n")
        return 128 + signal.SIGINT
    found = report.Report(
        params={
            "fleet": chosen.fleet,
            "nodes": len(machines),
            "GPUs": World.from_nodes(machines).total // GPU_MILLI,
            "workload": workload.name,
            "jobs": len(workload),
            "backfill": backfill,
            "failures per node and month": failures,
            "seed": seed,
        },
        results=results,
    )
    _print_report(found, output, html)
    return 0


def _fill(chosen: _Chosen, names: Sequence[str], seeds: Sequence[int], output: str) -> int:
    if not chosen.is_openb or chosen.trace is None or chosen.fleet != OPENB:
        raise errors.Permanent("--fill needs --trace with a pod list and --format openb, and no other --fleet")
    listed = openb.read_nodes(chosen.openb_nodes())
    trace = openb.read_trace(chosen.trace)
    console = Console(stderr=True)
    means = []
    with console.status("") as status:
        for name in names:
            runs = []
            for seed in seeds:
                status.update(f"Filling with {name}, seed {seed}")
                experiment = openb.draw_experiment(trace, _pick_evenly(listed, chosen.count or len(listed)), seed)
                runs.append(filling.fill(experiment, registry.find_policy(name), seed=seed))
            means.append(filling.mean(name, runs))
    if output == "json":
        terminal.write(filling.to_json(trace.name, seeds, means) + "\n")
    else:
        Console().print(filling.to_table(trace.name, seeds, means))
    return 0


def _policies(policy: str, compare: str) -> list[str]:
    if compare == "all":
        return list(registry.REGISTRY)
    names = [name.strip() for name in compare.split(",") if name.strip()] or [policy]
    for name in names:
        registry.find_policy(name)
    return list(dict.fromkeys(names))


def _parse_ratios(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(each) for each in text.split(",") if each.strip())
    except ValueError:
        raise errors.Permanent(f"--oversubscription {text!r}: expected numbers of at least 1, such as 2,4") from None


def _print_report(found: report.Report, output: str, html: Path | None) -> None:
    if html is not None:
        try:
            html.write_text(page.render(found), encoding="utf-8")
        except OSError as exc:
            raise errors.Permanent(f"cannot write the report: {exc}") from exc
        terminal.write_error(f"Report: {html}\n")
    if output == "json":
        terminal.write(report.to_json(found) + "\n")
        return
    console = Console()
    params = found.params
    summary = (
        f"{params['jobs']:,} jobs ({params['workload']}) on {params['nodes']:,} nodes, {params['GPUs']:,} GPUs"
        f" ({params['fleet']}), seed {params['seed']}\n"
    )
    console.print(escape_text(summary), highlight=False, markup=False)
    table = report.to_table(found)
    # Keep long lines in a file or pipe. On a narrow terminal wrapped lines lose less than truncated cells.
    console.width = max(
        console.width, console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
    )
    console.print(table)


# --- fleet and jobs --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chosen:
    named_fleet: str | None
    count: int | None
    trace: Path | None
    format: str
    price_list: Path | None

    @property
    def is_openb(self) -> bool:
        return self.trace is not None and self.format == "openb"

    @property
    def fleet(self) -> str:
        return self.named_fleet or (OPENB if self.is_openb else _DEFAULT_FLEET)

    def machines(self) -> Sequence[Node]:
        if self.count is not None and self.count < 1:
            raise errors.Permanent("--nodes must be at least 1")
        if self.fleet == OPENB:
            return loaders.openb_nodes(_pick_evenly(openb.read_nodes(self.openb_nodes()), self.count or _OPENB_NODES))
        model = models.load(self.fleet)
        table = prices.read_prices(self.price_list, model.region) if self.price_list else prices.PRICES
        listed = inventory.expand_fleet(model, self.count or _DEFAULT_NODES)
        return fleets.build_nodes(listed, prices.of_pools(model.pools, table))

    def openb_nodes(self) -> Path:
        beside = self.trace.parent / openb.NODE_FILE if self.trace else None
        return beside if beside is not None and beside.is_file() else openb.find_folder() / openb.NODE_FILE

    def workload(self, machines: Sequence[Node], *, mix: str, jobs: int, load: float, seed: int) -> Workload:
        cards = World.from_nodes(machines).total // GPU_MILLI
        if self.trace is None:
            return generate.generate(mix, jobs=jobs, cards=cards, seed=seed, load=load)
        if self.format == "openb":
            return loaders.read_openb(self.trace, cards=cards, load=load, any_model=self.fleet != OPENB)
        if self.format == "records":
            return recorded.read_workload(self.trace.stem, decisions.read_lines([self.trace]))
        return loaders.read_philly(self.trace)


def _pick_evenly(listed: Sequence[NodeSpec], count: int) -> list[NodeSpec]:
    """Return `count` items, evenly spread over the list, which is sorted by model."""
    most = min(count, len(listed))
    return [listed[number * len(listed) // most] for number in range(most)]


# --- progress -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _recording(path: Path | None) -> Iterator[tuple[Watcher, ...]]:
    if path is None:
        yield ()
        return
    with _open_file(path) as file:
        yield (RecordWriter(file),)


def _open_file(path: Path) -> BinaryIO:
    try:
        return path.open("wb")
    except OSError as exc:
        raise errors.Permanent(f"cannot write decisions: {exc}") from exc


@contextlib.contextmanager
def _progress(jobs: int) -> Iterator[_Bars]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as drawn:
        yield _Bars(drawn, jobs)


@dataclass(frozen=True, slots=True)
class _Bars:
    drawn: Progress
    jobs: int


class _Bar:
    """A progress line with the number of finished jobs, updated a few times per percent."""

    def __init__(self, bars: _Bars, policy: str) -> None:
        self._bars = bars
        self._task = bars.drawn.add_task(f"Simulating {policy}", total=bars.jobs)
        self._told = 0
        self._step = max(1, bars.jobs // 400)

    def moment(self, simulation: Simulation, at_s: float) -> None:
        del at_s
        done = self._bars.jobs - simulation.unfinished
        if done - self._told >= self._step or done == self._bars.jobs:
            self._told = done
            self._bars.drawn.update(self._task, completed=done)

    def on_start(self, simulation: Simulation, at_s: float, job: Job, grants: tuple[Grant, ...]) -> None:
        """Report nothing: only finished jobs are counted."""

    def on_end(self, simulation: Simulation, at_s: float, job: Job) -> None:
        """Report nothing: `moment` reports finished jobs."""
