"""How several test processes share the tests.

The first process prefers tests without a cluster, which use the processor. The others prefer cluster tests, which
mostly wait.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.support.families import UNIT, family
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class FamilyScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Gives a worker whole modules, preferably of the family whose cluster it already runs."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._choose(node), last=False)
        super()._assign_work_unit(node)

    def _choose(self, node: WorkerController) -> str:
        others = {self._last_family(each) for each in self.nodes if each is not node}
        mine = self._last_family(node)
        remaining: Counter[str] = Counter()
        for module, tests in self.workqueue.items():
            remaining[family(module)] += len(tests)

        def merit(of: str) -> tuple[bool, bool, bool, int]:
            is_liked = (of == UNIT) is (node.gateway.id == "gw0")
            return is_liked, of == mine, of not in others, remaining[of]

        best = max(remaining, key=merit)
        modules: list[str] = [module for module in self.workqueue if family(module) == best]
        return max(modules, key=lambda module: len(self.workqueue[module]))

    def _last_family(self, node: WorkerController) -> str:
        given = self.assigned_work.get(node)
        return family(next(reversed(given))) if given else ""
