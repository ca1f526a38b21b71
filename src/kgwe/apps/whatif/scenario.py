"""What-if scenarios: other nodes, another topology level, or new workloads, planned on a view that they change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe import errors
from kgwe.apps.whatif import manifests, parts, subject, waiting_explanation
from kgwe.apps.whatif.explanation import Explanation, Gpus, WhatIf
from kgwe.cluster.workload.owner import owner_of_holder
from kgwe.cluster.workload.unpinned import strip_placement
from kgwe.kube.api import timestamp
from kgwe.kube.client.informer import Change
from kgwe.model.units import amounts
from kgwe.model.units.phrasing import end_sentence, list_names
from kgwe.placement.planning.ask import Ask
from kgwe.placement.planning.explain import explain as planned
from kgwe.placement.planning.plan import Plan
from kgwe.placement.refusal import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kgwe.apps.whatif.explanation import Waiting
    from kgwe.apps.whatif.manifests import Document
    from kgwe.cluster.offline import View
    from kgwe.kube.api import core
    from kgwe.kube.api.kgwe.gpunode import GPUNode

LEVELS: Final = ("required", "preferred")


@dataclass
class Scenario:
    """A view, and what is assumed on top of it."""

    view: View
    changes: list[str] = field(default_factory=list)
    displaced: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    levels: dict[str, str] = field(default_factory=dict)
    #: owners to be planned, in order
    owners: list[str] = field(default_factory=list)

    # --- nodes ------------------------------------------------------------------------------------------

    def add_nodes(self, nodes: Iterable[tuple[core.Node, GPUNode | None]], words: str) -> None:
        known = self.view.state.reader
        for node, gpu_node in nodes:
            name = node.metadata.name
            if any(each.name == name for each in known.nodes()):
                raise errors.Permanent(f"node {name} already exists")
            self.view.state.on_node(Change(name, None, node))
            if gpu_node is not None:
                self.view.state.on_gpunode(Change(name, None, gpu_node))
        self.changes.append(f"added {words}")

    def remove_node(self, name: str) -> None:
        if name not in self.view.fleet.snapshot.index:
            names = ", ".join(sorted(self.view.fleet.snapshot.index)[:5])
            raise errors.NotFound(f"no GPU node {name!r}; there are {names} …" if names else f"no GPU node {name!r}")
        holders = self.view.fleet.holders(name)
        self.displaced += sorted(
            {self.view.state.owners.title(self._owner(key)) for key in holders} - set(self.displaced)
        )
        self.view.state.on_node(Change(name, None, None))
        self.changes.append(f"removed node {name}")

    def _owner(self, key: str) -> str:
        """Whose a holder is: a pod's workload or gang, or the owner of a seat."""
        pod = self.view.state.pods.get(key)
        if pod is not None:
            return subject.owner_of(self.view, pod)
        return owner_of_holder(key)

    # --- work -------------------------------------------------------------------------------------------

    def set_level(self, text: str) -> None:
        """`required=leaf`, `preferred=spine`; `required=` for none."""
        which, equals, level = text.partition("=")
        if not equals or which not in LEVELS:
            raise errors.Permanent(f"--level {text!r}: give required=LEVEL or preferred=LEVEL, such as required=leaf")
        self.levels[which] = level
        self.changes.append(f"{which} level {level or 'none'}")

    def submit(self, documents: Sequence[Document], namespace: str) -> None:
        view = self.view
        submitted = manifests.Submitted(view, namespace, timestamp.format_time(view.now_s))
        submitted.put(documents)
        self.ignored += submitted.ignored
        view.find_waiting()
        mine = [owner for owner in (*view.asks, *view.problems) if self._is_mine(owner, submitted.uids)]
        self.owners += dict.fromkeys(mine)
        if not self.owners:
            raise errors.Permanent("nothing in it asks for GPUs; give GPUWorkloads, pods, Jobs or Deployments")

    def _is_mine(self, owner: str, uids: set[str]) -> bool:
        return owner in uids or any(pod.metadata.uid in uids for pod in self.view.state.owners.pods(owner))

    def plan_again(self, owner: str) -> None:
        """Plan an existing workload, gang or pod as if it held no GPUs."""
        view = self.view
        workload = view.state.find_workload(owner)
        if owner not in view.asks and owner not in view.problems:
            view.asks[owner] = view.ask_of(workload) if workload is not None else self._ask_again(owner)
        for pod in view.state.owners.pods(owner):
            view.state.ledger.remove_pod(pod.metadata.uid)
        view.state.ledger.release_seats(owner)
        self.owners.append(owner)

    def _ask_again(self, owner: str) -> Ask:
        """What a running gang or pod requests, as if it had no place; Permanent if it cannot be planned."""
        view = self.view
        pod = view.state.pods.get(owner)
        if pod is not None:
            return view.ask_of_pod(strip_placement(pod))
        title = view.state.owners.title(owner)
        running = view.census.find(owner)
        if running is None or running.gang is None:
            raise errors.Permanent(f"{title} cannot be planned again: its pods do not form a complete gang")
        gang = running.gang
        return view.limit_ask(Ask(owner, gang.roles[0].request, pods=gang.replicas, gang=gang, name=title))

    # --- the answer -------------------------------------------------------------------------------------

    def answer(self) -> WhatIf:
        """Plan all of it, one after the other, each in what those before have left."""
        gpus = self._gpus()
        results = tuple(self._plan(owner) for owner in self.owners)
        warnings = self.view.warnings
        return WhatIf(tuple(self.changes), gpus, results, tuple(self.displaced), tuple(self.ignored), warnings)

    def _gpus(self) -> Gpus:
        snapshot = self.view.fleet.snapshot
        ready = [number for number, node in enumerate(snapshot.nodes) if node.ready]
        cards = sum(snapshot.nodes[number].usable.bit_count() for number in ready)
        return Gpus(len(ready), cards, sum(int(snapshot.free[number]).bit_count() for number in ready))

    def _plan(self, owner: str) -> Explanation:
        view = self.view
        base = Explanation(kind="", namespace="", name=view.state.owners.title(owner), state="Waiting", summary="")
        if owner in view.problems:
            return msgspec.structs.replace(base, summary=f"would wait. {view.problems[owner]}")
        ask = self._apply_levels(view.asks[owner])
        turn = waiting_explanation.turn(view, owner)
        base = msgspec.structs.replace(base, asked=waiting_explanation.describe_ask(view, ask), turn=turn)
        found = view.check_allowed(ask) or planned(view.fleet, ask, evictable=view.list_evictable())
        if isinstance(found, Refusal):
            return _would_wait(base, found.message, waiting_explanation.describe_refusal(found))
        if not isinstance(found, Plan):
            return _would_wait(base, end_sentence(found.binding), waiting_explanation.describe_why(found))
        view.state.ledger.commit_plan(
            owner, _list_amounts(found), found.grants, [seat.node for seat in found.seats], extend=True
        )
        where = list_names(found.nodes, 4)
        return msgspec.structs.replace(
            base, state="WouldStart", summary=f"would start on {where}", would_go=parts.describe_plan(view, found)
        )

    def _apply_levels(self, ask: Ask) -> Ask:
        if not self.levels:
            return ask
        gang = None if ask.gang is None else replace(ask.gang, **self.levels)  # type: ignore[arg-type] # two of its texts
        return replace(ask, nearness=replace(ask.nearness, **self.levels), gang=gang, first=None)  # type: ignore[arg-type]


def _would_wait(base: Explanation, problem: str, waiting: Waiting) -> Explanation:
    """A workload that waiting does not help has no turn."""
    turn = None if waiting.hopeless else base.turn
    return msgspec.structs.replace(base, summary=f"would wait. {problem}", waiting=waiting, turn=turn)


def _list_amounts(plan: Plan) -> list[Mapping[str, int]]:
    """Return the amounts of each seat; externally created gangs give them only in their roles."""
    return [each or {amounts.PODS: 1} for each in plan.amounts_by_seat]
