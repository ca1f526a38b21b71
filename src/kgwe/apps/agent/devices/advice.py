"""The life of an advice: from the devices advised to the kubelet to those it lists.

    GetPreferredAllocation   ──► advised   the devices are reserved for the pod
    Allocate of these        ──► granted   they stay reserved until the kubelet lists them
    the kubelet lists them   ──► held      the kubelet is the authority; nothing is remembered here
    5 s without the next     ──► forgotten

The kubelet does not name the pod when it allocates. An allocation of exactly the advised devices follows that advice.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

# A kubelet takes milliseconds from advice to allocation, and from allocation to listing it.
_RESERVED_S: Final = 5.0


class Advice(NamedTuple):
    #: namespace/name; empty: the pod is not known
    pod: str
    uid: str
    devices: frozenset[str]
    #: the devices of the pod's plan
    planned: frozenset[str]
    until_s: float


class AdviceBook:
    """Advices of all resources, in the states `advised` and `granted`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._advised: dict[str, list[Advice]] = collections.defaultdict(list)  # by resource
        self._granted: dict[str, list[Advice]] = collections.defaultdict(list)  # by resource
        self._tries: collections.Counter[tuple[str, str]] = collections.Counter()  # (resource, pod)
        #: (resource, pod) -> devices granted; used only where the kubelet does not list devices
        self._granted_devices: dict[tuple[str, str], frozenset[str]] = {}

    # --- transitions ------------------------------------------------------------------------------------

    def advise(self, resource: str, *, pod: str, uid: str, devices: Collection[str], planned: frozenset[str]) -> None:
        """Record an advice (→ advised). A newer advice for the same pod replaces the older one."""
        kept = [each for each in self.list_advised(resource) if not pod or each.pod != pod]
        kept.append(Advice(pod, uid, frozenset(devices), planned, self._clock() + _RESERVED_S))
        self._advised[resource] = kept
        if pod:
            self._tries[resource, pod] += 1

    def grant(self, resource: str, devices: frozenset[str]) -> Advice | None:
        """Record a grant (advised → granted). Return the advice that an allocation of these devices follows, if
        any."""
        advised = self._advised[resource]
        followed = next((each for each in advised if each.devices == devices), None)
        if followed is None:
            return None
        advised.remove(followed)
        self._tries.pop((resource, followed.pod), None)
        if followed.pod:
            now = self._clock()
            granted = [each for each in self._granted[resource] if each.until_s > now]
            self._granted[resource] = [*granted, followed._replace(until_s=now + _RESERVED_S)]
            key = (resource, followed.pod)
            self._granted_devices[key] = self._granted_devices.get(key, frozenset()) | devices
        return followed

    def forget_pods(self, present: Collection[str]) -> None:
        """Forget the grants of pods that are no longer on the node."""
        for key in [key for key in self._granted_devices if key[1] not in present]:
            del self._granted_devices[key]

    def forget_tries(self, resource: str, waiting: Collection[str]) -> None:
        """Forget the advice counts of pods that no longer lack devices."""
        for key in [key for key in self._tries if key[0] == resource and key[1] not in waiting]:
            del self._tries[key]

    # --- queries ----------------------------------------------------------------------------------------

    def list_advised(self, resource: str) -> list[Advice]:
        """Return the advices without an allocation so far."""
        now = self._clock()
        return [each for each in self._advised[resource] if each.until_s > now]

    def list_unlisted_grants(self, resource: str, pod: str, uid: str, listed: frozenset[str]) -> list[Advice]:
        """Return the grants to this pod that the kubelet does not list yet."""
        now = self._clock()
        return [
            each
            for each in self._granted[resource]
            if each.until_s > now and (each.pod, each.uid) == (pod, uid) and not each.devices <= listed
        ]

    def count_tries(self, resource: str, pod: str) -> int:
        """Return how often the pod was advised without an allocation."""
        return self._tries[resource, pod]

    def granted_devices(self, resource: str, pod: str) -> frozenset[str]:
        """Return all devices granted to the pod; an estimate for kubelets that do not list devices."""
        return self._granted_devices.get((resource, pod), frozenset())

    def overlaps_advice(self, resource: str, devices: frozenset[str]) -> bool:
        """Return whether any of these devices was advised to a pod."""
        return any(each.devices & devices for each in self._advised[resource])
