"""The finding and the recommendation on the GPUWorkload whose pods waste GPUs: `status.optimization`.

It is written when it changes, not in every round. A workload whose pods are judged as used, or that has none, loses it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from kgwe import errors
from kgwe.cluster.workload import metadata_keys, replica_uid
from kgwe.kube.api import resources, timestamp
from kgwe.kube.api.kgwe.gpuworkload_status import Optimization

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kgwe.apps.optimizer.history.gpu_pods import PodFacts
    from kgwe.apps.optimizer.waste.detector import Assessed, Assessment
    from kgwe.cluster.workload.workload import Workload
    from kgwe.kube.client.client import KubeClient
    from kgwe.model.usage.window import PodKey

    Describe = Callable[[Assessed], str]

log = structlog.get_logger(__name__)

OWNER_KIND: Final = "GPUWorkload"
_MONTH_H: Final = 730
_MESSAGE_CHARS: Final = 1024
_TARGET_CHARS: Final = 128

#: namespace and name of a GPUWorkload
Key = tuple[str, str]


@dataclass(slots=True)
class WorkloadAdvice:
    """Writes the advice of GPUWorkloads."""

    client: KubeClient
    failures: int = 0
    _written: dict[Key, Optimization] = field(default_factory=dict)
    _absent: set[Key] = field(default_factory=set)

    def restore(self, workloads: Iterable[Workload]) -> None:
        """Take over what the last leader wrote."""
        for each in workloads:
            if each.status.optimization is not None:
                self._written[each.meta.namespace, each.meta.name] = each.status.optimization

    def is_absent(self, facts: PodFacts) -> bool:
        """Whether a pod belongs to no GPUWorkload on which advice can be written."""
        return facts.owner_kind != OWNER_KIND or (facts.key.namespace, facts.owner_name) in self._absent

    def find_finding(self, facts: PodFacts) -> str:
        """Return the finding that is written on the GPUWorkload of a pod; empty if there is none."""
        written = self._written.get((facts.key.namespace, facts.owner_name))
        return written.finding if written is not None and facts.owner_kind == OWNER_KIND else ""

    async def report(
        self, assessment: Assessment, pods: Mapping[PodKey, PodFacts], describe: Describe, max_writes: int
    ) -> int:
        """Write what changed since the last round; return how many writes it took."""
        found: dict[Key, list[Assessed]] = defaultdict(list)
        for each in assessment.findings:
            if each.facts.owner_kind == OWNER_KIND:
                found[each.facts.key.namespace, each.facts.owner_name].append(each)
        # A workload that is gone may come back with the same name.
        self._absent &= found.keys()
        writes = 0
        for key, mine in found.items():
            new = _summarize(mine, assessment.at_s, describe)
            if writes < max_writes and key not in self._absent and not _is_same(self._written.get(key), new):
                writes += await self._write(key, mine[0].facts, new)
        held = _list_undecided(assessment, pods)
        for key in [key for key in self._written if key not in found and key not in held][: max_writes - writes]:
            writes += await self._write(key, None, None)
        return writes

    async def _write(self, key: Key, facts: PodFacts | None, new: Optimization | None) -> int:
        namespace, name = key
        uid = replica_uid.object_uid(facts.labels.get(metadata_keys.UID_LABEL, "")) if facts is not None else ""
        body = {"status": {"optimization": msgspec.to_builtins(new) if new is not None else None}}
        # Labels of pods are claims of their owner: a workload with another UID is not changed.
        patch = {"metadata": {"uid": uid}, **body} if uid else body
        try:
            await self.client.patch(resources.GPU_WORKLOAD, name, patch, namespace, subresource="status")
        except (errors.NotFound, errors.Conflict):
            self._written.pop(key, None)
            if new is not None:
                self._absent.add(key)
        except errors.KgweError as exc:
            self.failures += 1
            log.warning("advice_not_written", workload=f"{namespace}/{name}", error=str(exc))
        else:
            if new is None:
                self._written.pop(key, None)
            else:
                self._written[key] = new
        return 1


def _summarize(found: Sequence[Assessed], now_s: float, describe: Describe) -> Optimization:
    """Return the advice for a workload: that of its worst pod, and the saving of all of them."""
    worst = max(found, key=lambda each: each.finding.score or 0.0)
    advised = worst.recommendation
    target = "" if advised is None or advised.alternative is None else str(advised.alternative)
    savings = [
        each.recommendation.hourly_saving
        for each in found
        if each.recommendation is not None and each.recommendation.hourly_saving is not None
    ]
    return Optimization(
        finding=str(worst.finding.kind),
        message=describe(worst)[:_MESSAGE_CHARS],
        recommendation=target[:_TARGET_CHARS],
        savingPerMonth=round(math.fsum(savings) * _MONTH_H, 2) if savings and target else None,
        since=timestamp.format_time(now_s),
    )


def _is_same(old: Optimization | None, new: Optimization) -> bool:
    """Whether nothing notable changed: the words have figures that move in every round."""
    return old is not None and (old.finding, old.recommendation) == (new.finding, new.recommendation)


def _list_undecided(assessment: Assessment, pods: Mapping[PodKey, PodFacts]) -> set[Key]:
    """Return the workloads with a pod whose state is unknown: they keep what was written."""
    return {
        (facts.key.namespace, facts.owner_name)
        for key, facts in pods.items()
        if facts.owner_kind == OWNER_KIND
        and not facts.is_ended
        and ((verdict := assessment.verdicts.get(key)) is None or str(verdict.state) == "unknown")
    }
