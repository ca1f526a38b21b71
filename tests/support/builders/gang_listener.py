"""A listener in the planner's place, and the pods of externally created gangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support.builders.objects import added, make, node, pod_spec

from kgwe.cluster.gangs.leader_actions import LeaderActions
from kgwe.cluster.state.cluster_state import ClusterState
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.cluster.gangs.gang_group import Group
    from kgwe.placement.planning.ask import Ask


class Listener:
    """In the planner's place; looks only when told to."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.state.on_node(added(node("n1")))
        self.gangs = self.state.gangs
        self.asked: list[Ask] = []
        self.looks = 0
        self._later: list[Callable[[], None]] = []
        self.gangs.start_leading(
            LeaderActions(
                request_plan=self.asked.append,
                withdraw_request=lambda _owner: self.asked.clear(),
                assign_seat=lambda *_: None,
                remove_gate=lambda *_: None,
                call_soon=self._later.append,
            )
        )

    def catch_up(self) -> None:
        self.looks += len(self._later)
        while self._later:
            self._later.pop()()

    @property
    def group(self) -> Group:
        found = self.gangs.group(next(iter(self.gangs.owners())))
        assert found is not None
        return found


def member(name: str, size: int = 5, *, gates: tuple[str, ...] = (), **more: Any) -> Any:
    notes = {"kgwe.nvidia.io/gang": "g", "kgwe.nvidia.io/gang-size": str(size)}
    meta = {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": notes} | more
    spec = pod_spec(1) | {"schedulingGates": [{"name": gate} for gate in gates]}
    return make(resources.POD.type, {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}})
