"""Idle actions on an API server in memory and a real SQLite file, round by round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.support.builders.assessments import assessment, facts
from tests.support.fakes.memory_api import MemoryApi

from kgwe import errors
from kgwe.apps.optimizer.history.writer import StoreThread
from kgwe.apps.optimizer.idle.actions import IdleActions, Outlets
from kgwe.apps.optimizer.idle.ledger import Entry, IdleLedger
from kgwe.cluster.suspension import owner_kinds
from kgwe.cluster.suspension.suspender import Suspender
from kgwe.forecast.waste.idle_policy import IdlePolicy
from kgwe.forecast.waste.states import State
from kgwe.kube.api import resources
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client.client import KubeClient
from kgwe.store.history import HistoryStore

if TYPE_CHECKING:
    from pathlib import Path

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.kube.client.events import Event
    from kgwe.model.usage.window import PodKey
    from kgwe.notify.notification import Notification

START_S: Final = 1_795_003_200.0
INTERVAL_S: Final = 30.0
JOB: Final = next(each for each in owner_kinds.KINDS if each.resource.full_name == "jobs.batch")
_POLICY: Final = IdlePolicy(idle_after_s=60.0, grace_s=60.0, interval_s=INTERVAL_S)


class IdleBed:
    """Jobs with one pod each. The namespace `team` has opted in."""

    def __init__(self, path: Path) -> None:
        self.api = MemoryApi()
        self.client = KubeClient(self.api)
        self.path = path
        self.is_store_down = False
        self.pods: dict[PodKey, PodFacts] = {}
        self.namespaces = {"team": ObjectMeta(name="team", annotations={"kgwe.nvidia.io/idle-action": "suspend"})}
        self.events: list[Event] = []
        self.notified: list[Notification] = []
        self.counts: list[str] = []
        self.now_s = START_S
        self.stores: list[StoreThread] = []
        self.start()

    def start(self) -> None:
        """Start the process, or start it again: only the store and the cluster are remembered."""
        self.store = StoreThread(self._open)
        self.stores.append(self.store)
        self.ledger = IdleLedger(self.store)
        self.actions = IdleActions(
            self.client,
            Suspender(self.client, "kgwe-optimizer"),
            self.ledger,
            policy=_POLICY,
            list_pods=lambda: self.pods,
            find_namespace=self.namespaces.get,
            outlets=Outlets(self.events.append, self.notified.append, self.counts.append),
        )

    async def restart(self) -> None:
        """End the process without any last words, and start it again."""
        await self.store.close()
        self.start()

    async def close(self) -> None:
        await self.store.close()

    def _open(self) -> HistoryStore:
        if self.is_store_down:
            raise errors.Transient("the disk is full")
        return HistoryStore.open(str(self.path))

    async def break_store(self) -> None:
        await self.store.close()
        self.is_store_down = True
        self.store = StoreThread(self._open)
        self.ledger.store = self.store

    # --- the cluster ------------------------------------------------------------------------------------

    def add(self, name: str = "notebook", **changes: Any) -> PodFacts:
        """Create a Job with a pod."""
        spec = {"selector": {"matchLabels": {"job": name}}}
        job = self.api.call("POST", JOB.resource.path(namespace="team"), {"metadata": {"name": name}, "spec": spec})
        return self.add_pod(name, job["metadata"]["uid"], **changes)

    def add_pod(self, owner: str, uid: str, **changes: Any) -> PodFacts:
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": uid, "controller": True}
        meta = {"name": f"{owner}-0", "labels": {"job": owner}, "ownerReferences": [reference] if uid else []}
        made = self.api.call("POST", resources.POD.path(namespace="team"), {"metadata": meta})
        pod = facts(f"{owner}-0", owner=owner if uid else "", uid=made["metadata"]["uid"], **changes)
        self.pods[pod.key] = pod
        return pod

    def end_pods(self) -> None:
        """Delete all pods, as the Job controller does with those of a suspended Job."""
        for key in list(self.pods):
            self.api.call("DELETE", resources.POD.path(namespace="team", name=key.name))
            del self.pods[key]

    def job(self, name: str = "notebook") -> dict[str, Any]:
        return self.api.call("GET", JOB.resource.path(namespace="team", name=name))

    def notes(self, name: str = "notebook") -> dict[str, str]:
        return dict(self.job(name)["metadata"].get("annotations") or {})

    def is_suspended(self, name: str = "notebook") -> bool:
        return bool(self.job(name)["spec"].get("suspend"))

    # --- rounds -----------------------------------------------------------------------------------------

    async def round(self, state: State = State.IDLE, count: int = 1, elapsed_s: float = INTERVAL_S) -> None:
        """Judge all pods to be in this state, and act."""
        for _ in range(count):
            self.now_s += elapsed_s
            judged = assessment([(pod, state) for pod in self.pods.values()], self.now_s)
            await self.actions.act(judged, self.now_s, self.now_s - START_S)

    def entry(self, name: str = "notebook") -> Entry:
        return self.ledger.entries["team", "Job", name]

    def phase(self, name: str = "notebook") -> str:
        return str(self.entry(name).record.phase)
