"""How several test processes share the tests.

The first process prefers tests without a cluster, which use the processor. The others prefer cluster tests, which
mostly wait. A process stays with the family whose cluster it runs, and with the module whose objects are on it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tests.support.families import UNIT, family
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    import pytest
    from xdist.workermanage import WorkerController


class FamilyScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Gives out modules; those of the scheduler, which has the longest ones, test by test."""

    def _split_scope(self, nodeid: str) -> str:
        module = _module(nodeid)
        return nodeid if family(module).startswith("scheduler") else module

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._choose(node), last=False)
        super()._assign_work_unit(node)

    def _choose(self, node: WorkerController) -> str:
        mine = self._last_module(node)
        others = {self._last_module(each) for each in self.nodes if each is not node} - {""}
        other_families = {family(each) for each in others}
        in_module: Counter[str] = Counter()
        in_family: Counter[str] = Counter()
        for unit, tests in self.workqueue.items():
            in_module[_module(unit)] += len(tests)
            in_family[family(_module(unit))] += len(tests)

        def merit(module: str) -> tuple[int, ...]:
            of = family(module)
            return (
                (of == UNIT) is (node.gateway.id == "gw0"),
                bool(mine) and of == family(mine),
                of not in other_families,
                in_family[of],
                module == mine,
                module not in others,
                in_module[module],
            )

        best = max(in_module, key=merit)
        units: list[str] = [unit for unit in self.workqueue if _module(unit) == best]
        return units[0]

    def _last_module(self, node: WorkerController) -> str:
        given = self.assigned_work.get(node)
        return _module(next(reversed(given))) if given else ""


def _module(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def send_fewer_messages(config: pytest.Config) -> None:
    """Have a test process send only what the terminal shows; the process that shows it is busy half as long."""
    if config.option.durations or config.get_verbosity() > 0:
        return
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "WorkerInteractor":
            plugin.sendevent = _without_silence(plugin.sendevent)


def _without_silence(send: Any) -> Any:
    def send_what_is_shown(name: str, **details: Any) -> None:
        if name == "logstart" or (name == "testreport" and _is_silent(details["data"])):
            return
        send(name, **details)

    return send_what_is_shown


def _is_silent(report: dict[str, Any]) -> bool:
    """Whether the report is about a set-up or teardown that succeeded and printed nothing."""
    return report["when"] != "call" and report["outcome"] == "passed" and not report["sections"]
