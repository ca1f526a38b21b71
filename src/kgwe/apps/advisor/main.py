"""`kgwe advise --watch`: a process that compares each new placement and serves the totals as metrics.

A pod, or the last pod of a gang, is compared in the event that shows its binding, when the rest of the cluster is
still as it was. Existing placements are compared once at the start. Comparisons use at most half of the process's
time; placements beyond that count as skipped.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import CollectorRegistry, Counter, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kgwe.apps.advisor import judge as judging
from kgwe.apps.advisor.judge import Judge
from kgwe.apps.advisor.units import Unit, key_of, list_units, read_unit
from kgwe.cluster import offline as views
from kgwe.cluster.state.cluster_state import selector_of
from kgwe.kube import dialects
from kgwe.kube.api import resources
from kgwe.kube.client.informer import Informer, wait_synced
from kgwe.telemetry import http, probes

if TYPE_CHECKING:
    import collections
    from collections.abc import Callable, Iterable

    from prometheus_client import Metric

    from kgwe.apps.advisor.judge import Judged, Totals
    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.kube.api.resources import Resource
    from kgwe.kube.client.client import KubeClient
    from kgwe.kube.client.informer import Change
    from kgwe.placement.fleet.node import Request

log = structlog.get_logger(__name__)

# Maximum fraction of time for comparisons, and the period over which it is measured.
_SHARE: Final = 0.5
_WINDOW_S: Final = 2.0
# Seconds for which the mix of requests is cached.
_MIX_S: Final = 30.0
# Placements compared at a time during the start.
_AT_ONCE: Final = 20


def _informer(client: KubeClient, kind: Resource[Any]) -> Informer[Any]:
    selector = selector_of(kind)
    return Informer(client, kind, label_selector=selector.label, field_selector=selector.field)


class Advisor:
    """The advisor process."""

    def __init__(self, client: KubeClient, *, on_judged: Callable[[Judged], None] = lambda _: None) -> None:
        self.client = views.read_only(client)
        self.view: View = views.empty_view()
        self.judge = Judge(self.view)
        self.judged: dict[str, Judged] = {}
        self._on_judged = on_judged
        self._pods: dict[str, dict[str, core.Pod]] = {}  # unit -> its pods by uid
        self._key: dict[str, str] = {}  # pod -> the unit it was last counted in
        self._started = False
        self._spent: list[tuple[float, float]] = []
        self._mix: tuple[float, collections.Counter[Request]] | None = None
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._placements = Counter(
            "kgwe_advisor_placements",
            "Placements compared, by scheduler and outcome: optimal, worse, refused (by KGWE) or skipped",
            ["scheduler", "outcome"],
            registry=self.registry,
        )
        self.registry.register(_Gauges(self))

    # --- running ----------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, address: str) -> None:
        """Watch and compare until `stop` is set."""
        informers = await self._watch()
        tasks = [asyncio.create_task(informer.run()) for informer in informers]
        app = probes.ProbeApp(self.registry, live=lambda: None, ready=lambda: self._problem(informers))
        try:
            async with http.serving(app, http.Address.parse(address)) as port:
                log.info("advisor_started", port=port)
                await _wait_for_first(wait_synced(*informers), stop.wait(), *tasks)
                await _wait_for_first(self._judge_all(), stop.wait(), *tasks)
                await _wait_for_first(stop.wait(), *tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _problem(self, informers: Iterable[Informer[Any]]) -> str | None:
        behind = [informer.resource.plural for informer in informers if not informer.has_synced]
        return f"waiting for first list of {', '.join(behind)}" if behind else None

    async def _watch(self) -> list[Informer[Any]]:
        client, state = self.client, self.view.state
        served = set(await dialects.find_served(client, views.OWN))
        listeners = {
            kind: listener for kind, listener in state.listeners().items() if kind not in views.OWN or kind in served
        }
        watched = {kind: _informer(client, kind) for kind in listeners}
        for kind in await dialects.find_served(client):
            if kind not in watched:
                # Before the pods, so that the group of a gang is known when its first pod is read.
                watched = {kind: Informer(client, kind), **watched}
                listeners[kind] = state.gangs.on_group
            state.group_objects.add_store(kind, watched[kind].store)
        for kind, informer in watched.items():
            informer.on_change(listeners[kind])
        pods = watched[resources.POD]
        # After the update of the state.
        pods.on_change(self._on_pod)
        return list(watched.values())

    # --- judging ----------------------------------------------------------------------------------------

    def _on_pod(self, change: Change[core.Pod]) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        uid = pod.metadata.uid
        alive = self.view.state.pods.get(uid)
        key = key_of(self.view, alive) if alive is not None else ""
        before = self._key.pop(uid, "")
        if before and before != key:
            self._forget(before, uid)
        if alive is None:
            return
        self._key[uid] = key
        self._pods.setdefault(key, {})[uid] = alive
        was_bound = change.old is not None and change.old.metadata.uid == uid and bool(change.old.spec.nodeName)
        if self._started and alive.spec.nodeName and not was_bound:
            self._judge_piece(key)

    def _forget(self, key: str, uid: str) -> None:
        pods = self._pods.get(key, {})
        pods.pop(uid, None)
        if not pods:
            self._pods.pop(key, None)
            self.judged.pop(key, None)

    async def _judge_all(self) -> None:
        self._started = True
        mix = self._asked_for()
        for number, each in enumerate(list(list_units(self.view))):
            if isinstance(each, Unit) and each.key not in self.judged:
                self._note(each, mix)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        log.info("advisor_caught_up", placements=len(self.judged))

    def _judge_piece(self, key: str) -> None:
        found = read_unit(self.view, key, self._pods.get(key, {}).values())
        if not isinstance(found, Unit):
            return
        if not self._has_time():
            self._placements.labels(found.scheduler, "skipped").inc()
            return
        started = time.monotonic()
        self._note(found, self._asked_for())
        self._spent.append((started, time.monotonic() - started))

    def _has_time(self) -> bool:
        now = time.monotonic()
        self._spent = [(at, took) for at, took in self._spent if at > now - _WINDOW_S]
        return sum(took for _, took in self._spent) < _SHARE * _WINDOW_S

    def _asked_for(self) -> collections.Counter[Request]:
        now = time.monotonic()
        if self._mix is None or now > self._mix[0] + _MIX_S:
            self._mix = now, self.judge.mix()
        return self._mix[1]

    def _note(self, found: Unit, mix: collections.Counter[Request]) -> None:
        judged = self.judge.judge(found, mix)
        if judged is None:
            return
        regret = judged.regret
        outcome = "refused" if regret is None else "optimal" if regret.is_none else "worse"
        self._placements.labels(found.scheduler, outcome).inc()
        self.judged[found.key] = judged
        self._on_judged(judged)


def log_placement(judged: Judged) -> None:
    """Log a placement with a better alternative."""
    regret = judged.regret
    if regret is not None and not regret.is_none:
        log.info(
            "placement_could_be_better",
            work=judged.unit.name,
            scheduler=judged.unit.scheduler,
            lost_gb_per_s=round(regret.gb_per_s, 1),
            extra_leaves=regret.leaves,
            islands=regret.islands,
            would_go=regret.plan.nodes,
        )


class _Gauges(Collector):
    """The totals of all running placements, computed at a scrape."""

    def __init__(self, advisor: Advisor) -> None:
        self._advisor = advisor

    def describe(self) -> Iterable[Metric]:
        return [GaugeMetricFamily(name, about, labels=["scheduler"]) for name, about, _ in _GAUGES]

    def collect(self) -> Iterable[Metric]:
        sums = judging.report(self._advisor.judged.values(), top=0).by_scheduler
        for name, about, read in _GAUGES:
            family = GaugeMetricFamily(name, about, labels=["scheduler"])
            for scheduler, totals in sums.items():
                family.add_metric([scheduler], read(totals))
            yield family


_GAUGES: Final[tuple[tuple[str, str, Callable[[Totals], float]], ...]] = (
    ("kgwe_advisor_running", "Running placements that were compared", lambda t: t.placements),
    (
        "kgwe_advisor_regret_gb_per_s",
        "Bandwidth (GB/s) that running placements lose, summed over their rings",
        lambda t: t.lost_gb_per_s,
    ),
    (
        "kgwe_advisor_possible_gb_per_s",
        "Bandwidth (GB/s) that the rings of running placements could have",
        lambda t: t.possible_gb_per_s,
    ),
    (
        "kgwe_advisor_regret_leaves",
        "Leaves that gangs span beyond the necessary ones",
        lambda t: t.leaves - t.fewest_leaves,
    ),
    ("kgwe_advisor_regret_islands", "NVLink islands split that could have stayed whole", lambda t: t.islands_broken),
    (
        "kgwe_advisor_regret_fragmented_gpus",
        "Idle GPUs that no request can use because of the placements",
        lambda t: t.fragmented_gpus,
    ),
    ("kgwe_advisor_not_by_kgwe", "Placements that KGWE would refuse", lambda t: t.not_by_kgwe),
)


async def _wait_for_first(*waits: Any) -> None:
    """Return when the first of two tasks ends, and raise its exception. Existing tasks are not cancelled."""
    own = [asyncio.ensure_future(wait) for wait in waits if not isinstance(wait, asyncio.Task)]
    given = [wait for wait in waits if isinstance(wait, asyncio.Task)]
    try:
        done, _ = await asyncio.wait([*own, *given], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
