"""Reports findings where users look: an Event, and the GPUWorkload's status or, without one, a condition on the pod.

All are written when a finding changes, not in every round.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from kgwe import errors
from kgwe.apps.optimizer.history import gpu_pods
from kgwe.apps.optimizer.waste.workload_advice import WorkloadAdvice
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.meta import ObjectMeta
from kgwe.kube.client.client import STRATEGIC_MERGE_PATCH, Forbidden
from kgwe.kube.client.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.apps.optimizer.history.gpu_pods import GpuPod, PodFacts
    from kgwe.apps.optimizer.waste.detector import Assessed, Assessment
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.client.client import KubeClient
    from kgwe.model.usage.window import PodKey

log = structlog.get_logger(__name__)

#: type of the pod's condition; True while the pod wastes GPUs
CONDITION: Final = "kgwe.nvidia.io/GPUUnderused"
# A finding that stays is reported as an Event again after this time.
_REPEAT_S: Final = 3600.0
# Conditions written in one round: a cluster full of idle pods must not flood the API server.
_MAX_WRITES: Final = 50
_MONTH_H: Final = 730


class FindingReporter:
    """Writes Events and conditions of findings."""

    def __init__(
        self,
        client: KubeClient,
        record: Callable[[Event], None],
        list_pods: Callable[[], Mapping[PodKey, PodFacts]] = dict,
    ) -> None:
        self._client = client
        self._list_pods = list_pods
        self._workloads = WorkloadAdvice(client)
        self._record = record
        self._told: dict[str, tuple[str, float]] = {}  # pod uid -> reason and time of its last Event
        self._conditions: dict[str, tuple[str, str, str]] = {}  # pod uid -> namespace, name, reason
        self.failures = 0

    def restore(self, pods: Iterable[GpuPod], workloads: Iterable[Workload] = ()) -> None:
        """Take over what the last leader wrote."""
        self._workloads.restore(workloads)
        for pod in pods:
            for condition in pod.status.conditions:
                if condition.type == CONDITION and condition.status == "True":
                    meta = pod.metadata
                    self._conditions[meta.uid] = (meta.namespace, meta.name, condition.reason)
                    # The last leader wrote an Event with it.
                    since_s = gpu_pods.parse_time(condition.lastTransitionTime)
                    if since_s is not None:
                        self._told[meta.uid] = (condition.reason, since_s)

    async def report(self, assessment: Assessment) -> None:
        """Report what changed since the last round. Pods whose state is unknown keep their condition."""
        found = {each.facts.uid: each for each in assessment.findings}
        for each in found.values():
            self._record_event(each, assessment.at_s)
        # A gap in the metrics does not make a finding new.
        kept = found.keys() | self._conditions.keys()
        kept |= {facts.uid for facts in self._list_pods().values() if self._workloads.find_finding(facts)}
        self._told = {uid: told for uid, told in self._told.items() if uid in kept}
        writes = await self._workloads.report(assessment, self._list_pods(), describe, _MAX_WRITES)
        for uid, each in found.items():
            reason = str(each.finding.kind)
            if not self._workloads.is_absent(each.facts):
                continue
            if writes < _MAX_WRITES and self._conditions.get(uid, ("", "", ""))[2] != reason:
                writes += await self._write(uid, each.facts.key, reason, describe(each), assessment.at_s)
        # Also conditions of pods that an earlier release wrote, or of a time without the GPUWorkload.
        told = {uid for uid, each in found.items() if self._workloads.is_absent(each.facts)}
        cleared = [uid for uid in self._conditions if uid not in told and self._is_known(uid, assessment)]
        for uid in cleared[: _MAX_WRITES - writes]:
            namespace, name, _ = self._conditions[uid]
            await self._write(uid, (namespace, name), "", "", assessment.at_s)

    def _is_known(self, uid: str, assessment: Assessment) -> bool:
        """Whether the pod was judged, or is gone."""
        namespace, name, _ = self._conditions[uid]
        verdict = next(
            (each for key, each in assessment.verdicts.items() if (key.namespace, key.name) == (namespace, name)), None
        )
        return verdict is None or str(verdict.state) != "unknown"

    def _record_event(self, each: Assessed, now_s: float) -> None:
        reason, facts = str(each.finding.kind), each.facts
        told = self._told.get(facts.uid)
        if told is None and self._workloads.find_finding(facts) == reason:
            # Another pod of the workload, or the last leader, wrote the Event.
            self._told[facts.uid] = (reason, now_s)
            return
        if told is not None and told[0] == reason and now_s - told[1] < _REPEAT_S:
            return
        self._told[facts.uid] = (reason, now_s)
        about = ObjectMeta(name=facts.key.name, namespace=facts.key.namespace, uid=facts.uid)
        self._record(Event(resources.POD, about, "Warning", reason, describe(each), "Optimizing"))

    async def _write(self, uid: str, key: tuple[str, str], reason: str, message: str, now_s: float) -> int:
        """Write or clear the condition; return how many writes it took."""
        namespace, name = key
        condition: dict[str, Any] = {
            "type": CONDITION,
            "status": "True" if reason else "False",
            "reason": reason or "InUse",
            "message": message[:1024],
            "lastTransitionTime": timestamp.format_time(now_s),
        }
        body = {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}
        try:
            await self._client.patch(
                resources.POD,
                name,
                body,
                namespace,
                subresource="status",
                kind=STRATEGIC_MERGE_PATCH,
            )
        except (errors.NotFound, errors.Conflict):
            self._conditions.pop(uid, None)
        except errors.KgweError as exc:
            if isinstance(exc, errors.Permanent) and not isinstance(exc, Forbidden):
                # Another pod has the name now; its UID does not match.
                self._conditions.pop(uid, None)
            self.failures += 1
            log.warning("condition_not_written", pod=f"{namespace}/{name}", error=str(exc))
        else:
            if reason:
                self._conditions[uid] = (namespace, name, reason)
            else:
                self._conditions.pop(uid, None)
        return 1


def describe(each: Assessed) -> str:
    """Return the finding and the advice in one or two sentences."""
    advised = each.recommendation
    if advised is None or advised.alternative is None:
        return f"{each.finding.message}."
    saving = f" It would save ${advised.hourly_saving * _MONTH_H:,.0f} per month." if advised.hourly_saving else ""
    return f"{each.finding.message}. Recommended: {advised.alternative}.{saving}"
