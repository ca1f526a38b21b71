"""Jobs under team budgets: whether each budget acts before its money is spent, and what that delays.

The jobs of a trace belong to teams, and every team has a monthly limit. Half of the teams have more than they ever use:
none of their jobs may wait. The others have less than they would spend. A job that its budget refuses waits, and is
tried again when money is freed or the next month begins. GPUs are unlimited, so every delay comes from a budget.

    kgwe            Block, with durations known from the trace
    kgwe_predicted  Block, with the 90th percentile of earlier jobs of the same team and size
    cutoff          starts every job while the published spend is below the limit, as tools without encumbrances do
"""

from __future__ import annotations

import bisect
import csv
import datetime as dt
import gzip
import heapq
import itertools
import zlib
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kgwe import errors
from kgwe.bench import report
from kgwe.bench.workloads import data
from kgwe.costing import money
from kgwe.costing.budgets.admission import Budget, Demand, Outcome, Policy, Spend, decide
from kgwe.costing.budgets.encumbrances import MOST_SECONDS, Encumbrance, EncumbranceBook
from kgwe.costing.budgets.periods import Period, find_period, list_periods

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from kgwe.local.host.progress import Progress

JOBS: Final = "philly_jobs.csv.gz"
MICROS_PER_GPU_HOUR: Final = 2 * money.MICROS
_TEAMS_OF_A_CLUSTER: Final = 5
_LARGEST: Final = 4
_AMPLE, _TIGHT = 1.2, 0.7
_PUBLISH_EVERY_S: Final = 600
_P90: Final = 0.9
_LEAST_HISTORY: Final = 10
_UNKNOWN_S: Final = 86_400
# How many waiting jobs are asked again when money is freed: small ones may pass large ones.
_TRIES: Final = 20
_DECIMALS: Final = 5


@dataclass(frozen=True, slots=True)
class Job:
    number: int
    team: str
    arrival_s: int
    duration_s: int
    gpus: int

    @property
    def rate(self) -> int:
        return self.gpus * MICROS_PER_GPU_HOUR


Costs = dict[tuple[str, Period], int]


def run(folder: Path | None, progress: Progress, most: int | None = None) -> report.Report:
    """Replay the jobs under each policy."""
    machine = report.examine_machine()
    jobs = read_jobs(data.find_folder("jobs", folder, JOBS) / JOBS)[:most]
    free = compute_costs((job, job.arrival_s) for job in jobs)
    limits, ample = choose_limits(free)
    metrics: dict[str, Any] = {"unrestricted_dollars": _to_dollars(sum(free.values()))}
    for name, make in _POLICIES.items():
        with progress.step(f"{len(jobs)} jobs, {len(limits)} teams, {name}"):
            replay = Replay(jobs, limits, make)
            replay.run()
        metrics[name] = summarise(replay, free, limits, ample)
    params = {"jobs": len(jobs), "teams": len(limits), "tight": len(limits) - len(ample), "file": JOBS}
    return report.Report("budgets", params, metrics, machine)


def read_jobs(path: Path) -> list[Job]:
    """Read the jobs of the four largest clusters, each divided into five teams by a hash of the row."""
    with gzip.open(path, "rt", newline="") as file:
        rows = [row for row in csv.DictReader(file) if _is_job(row)]
    sizes = Counter(row["cluster"] for row in rows)
    chosen = {name for name, _ in sizes.most_common(_LARGEST)}
    jobs = [_read_job(number, row) for number, row in enumerate(rows) if row["cluster"] in chosen]
    if not jobs:
        raise errors.NotFound(f"{path} has no jobs with timestamp,duration,num_gpus,cluster")
    return sorted(jobs, key=lambda job: (job.arrival_s, job.number))


def _is_job(row: dict[str, str]) -> bool:
    try:
        return float(row["duration"]) > 0 and int(row["num_gpus"]) > 0 and bool(row["timestamp"])
    except (KeyError, TypeError, ValueError):
        return False


def _read_job(number: int, row: dict[str, str]) -> Job:
    arrival = dt.datetime.fromisoformat(row["timestamp"]).replace(tzinfo=dt.UTC)
    part = zlib.crc32(f"{number} {row['timestamp']} {row['duration']}".encode()) % _TEAMS_OF_A_CLUSTER
    duration = min(int(float(row["duration"])), MOST_SECONDS)
    return Job(number, f"{row['cluster']}-{part}", int(arrival.timestamp()), duration, int(row["num_gpus"]))


def compute_costs(starts: Iterable[tuple[Job, int]]) -> Costs:
    """Return what each team spends in each month, in ticks."""
    costs: Costs = defaultdict(int)
    for job, start_s in starts:
        ends_s = start_s + job.duration_s
        for period in list_periods(_MONTHLY.length, _MONTHLY.zone, start_s, ends_s):
            costs[job.team, period] += job.rate * period.overlap_s(start_s, ends_s)
    return costs


def choose_limits(costs: Costs) -> tuple[dict[str, Budget], frozenset[str]]:
    """Return a budget for every team, and the teams that have more than they ever use."""
    months: dict[str, list[int]] = defaultdict(list)
    for (team, _), ticks in costs.items():
        months[team].append(ticks // money.TICKS)
    limits = {}
    teams = sorted(months)
    for position, team in enumerate(teams):
        spent = months[team]
        limit = max(spent) * _AMPLE if position % 2 else sum(spent) / len(spent) * _TIGHT
        limits[team] = Budget(team, max(int(limit), 1), policy=Policy.BLOCK)
    return limits, frozenset(teams[1::2])


@dataclass
class Team:
    """What is known of one team's budget at the time of the replay."""

    budget: Budget
    book: EncumbranceBook = field(default_factory=EncumbranceBook)
    waiting: deque[Job] = field(default_factory=deque)
    period: Period | None = None
    spend: Spend = field(default_factory=lambda: Spend(0, 0))

    def publish(self, now_s: int) -> Spend:
        """Count the spend as the cost engine does: every ten minutes, from the start of each month."""
        period = find_period(self.budget.length, self.budget.zone, now_s)
        if period != self.period:
            self.period, self.spend = period, Spend(0, period.start_s)
        if now_s - self.spend.until_s >= _PUBLISH_EVERY_S:
            window = Period(self.spend.until_s, now_s)
            spent = self.spend.ticks + self.book.total_in(window, window.start_s, now_s)
            self.spend = Spend(spent, now_s)
            self.book.forget_before(now_s)
        return self.spend


class Durations:
    """Durations of ended jobs by team and size, as known at a time."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int], list[int]] = defaultdict(list)

    def add(self, job: Job) -> None:
        bisect.insort(self._ended[job.team, job.gpus], job.duration_s)

    def predict(self, job: Job) -> int:
        """Return the 90th percentile; a day where too few have ended."""
        known = self._ended[job.team, job.gpus]
        return known[int(len(known) * _P90)] if len(known) >= _LEAST_HISTORY else _UNKNOWN_S


class Replay:
    """Jobs in order of time under one policy."""

    def __init__(
        self,
        jobs: Sequence[Job],
        limits: dict[str, Budget],
        make: Callable[[Durations], Callable[[Team, Job, int], Outcome]],
    ) -> None:
        self._durations = Durations()
        self._admit = make(self._durations)
        self._teams = {team: Team(budget) for team, budget in limits.items()}
        self._counter = itertools.count()
        self._events: list[tuple[int, int, int, Job | None]] = []
        for job in jobs:
            self._push(job.arrival_s, 1, job)
        last = max(job.arrival_s + job.duration_s for job in jobs)
        for period in list_periods(_MONTHLY.length, _MONTHLY.zone, jobs[0].arrival_s, last):
            self._push(period.end_s, 2, None)
        self.started: list[tuple[Job, int]] = []
        self.waited: set[int] = set()
        self.impossible: set[int] = set()

    def run(self) -> None:
        """Replay all events. At equal times ends come first, then arrivals, then new months."""
        while self._events:
            now_s, kind, _, job = heapq.heappop(self._events)
            if job is None:
                for team in self._teams.values():
                    self._try_waiting(team, now_s, len(team.waiting))
            elif kind == 0:
                self._end(job, now_s)
            elif not self._try(self._teams[job.team], job, now_s):
                self.waited.add(job.number)
                self._teams[job.team].waiting.append(job)

    def count_left(self) -> int:
        """Return how many jobs still wait at the end of the trace."""
        return sum(len(team.waiting) for team in self._teams.values())

    def _push(self, at_s: int, kind: int, job: Job | None) -> None:
        heapq.heappush(self._events, (at_s, kind, next(self._counter), job))

    def _end(self, job: Job, now_s: int) -> None:
        team = self._teams[job.team]
        team.book.end(str(job.number), now_s)
        self._durations.add(job)
        self._try_waiting(team, now_s, _TRIES)

    def _try_waiting(self, team: Team, now_s: int, most: int) -> None:
        kept: list[Job] = []
        for _ in range(min(most, len(team.waiting))):
            job = team.waiting.popleft()
            if not self._try(team, job, now_s):
                kept.append(job)
        team.waiting.extendleft(reversed(kept))

    def _try(self, team: Team, job: Job, now_s: int) -> bool:
        """Start the job if its budget admits it. Return False if it waits."""
        outcome = self._admit(team, job, now_s)
        if outcome is Outcome.IMPOSSIBLE:
            self.impossible.add(job.number)
            return True
        if outcome is Outcome.WAITS:
            return False
        self.started.append((job, now_s))
        self._push(now_s + job.duration_s, 0, job)
        return True


def _block_known(durations: Durations) -> Callable[[Team, Job, int], Outcome]:
    del durations
    return lambda team, job, now_s: _block(team, job, job.duration_s, now_s)


def _block_predicted(durations: Durations) -> Callable[[Team, Job, int], Outcome]:
    return lambda team, job, now_s: _block(team, job, durations.predict(job), now_s)


def _block(team: Team, job: Job, duration_s: int, now_s: int) -> Outcome:
    demand = Demand(str(job.number), job.rate, duration_s, duration_s)
    found = decide(team.budget, team.publish(now_s), team.book, demand, now_s)
    if found.is_admitted:
        team.book.add(Encumbrance(demand.owner, demand.rate, now_s, duration_s))
    return found.outcome


def _cut_off(durations: Durations) -> Callable[[Team, Job, int], Outcome]:
    del durations

    def admit(team: Team, job: Job, now_s: int) -> Outcome:
        if team.publish(now_s).ticks >= team.budget.limit_ticks:
            return Outcome.WAITS
        team.book.add(Encumbrance(str(job.number), job.rate, now_s, job.duration_s))
        return Outcome.ADMITTED

    return admit


def summarise(replay: Replay, free: Costs, limits: dict[str, Budget], ample: frozenset[str]) -> dict[str, float]:
    """Return overspend, jobs that waited without need, and the delay for the money saved."""
    costs = compute_costs(replay.started)
    over = [max(ticks / limits[team].limit_ticks - 1, 0.0) for (team, _), ticks in costs.items()]
    # Only months of the trace: jobs that waited spend their money later, which is no saving.
    months = {period for _, period in free}
    saved = sum(
        max(free.get((team, period), 0) - costs.get((team, period), 0), 0) for team in limits for period in months
    )
    delay_h = sum(start_s - job.arrival_s for job, start_s in replay.started) / money.HOUR_S
    return {
        "overspend_max": round(max(over, default=0.0), _DECIMALS),
        "overspend_mean": round(sum(over) / max(len(over), 1), _DECIMALS),
        "blocked_in_ample_teams": sum(job.number in replay.waited for job, _ in replay.started if job.team in ample),
        "waited": len(replay.waited),
        "left_waiting": replay.count_left(),
        "impossible": len(replay.impossible),
        "deferred_dollars": _to_dollars(saved),
        "delay_hours_per_deferred_dollar": round(delay_h / max(_to_dollars(saved), 1.0), 4),
    }


def _to_dollars(ticks: int) -> float:
    return round(ticks / money.TICKS / money.MICROS, 2)


_MONTHLY: Final = Budget("month", 1)
_POLICIES: Final = {"kgwe": _block_known, "kgwe_predicted": _block_predicted, "cutoff": _cut_off}
