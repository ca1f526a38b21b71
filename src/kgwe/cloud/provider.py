"""What the autoscaler needs from a cloud: launch, list and terminate instances.

Assumptions that every provider keeps, and that `tests/support/contracts/provider.py` checks:

- A launch is idempotent by `request_id`. The same request never buys twice, also after kill -9, and also after some or
  all of its instances were terminated. The id must be new for every purchase that is meant to be new.
- A launch whose answer was lost is repeated with the same request. It returns the instances that the first call bought.
- An atomic launch returns all instances or none. Where a cloud cannot promise it, `Traits.gangs` is best effort, and
  the provider terminates the part that it got before it returns the error.
- `list_instances` returns everything that this cluster owns in the cloud, by tag, whichever process bought it. It may
  lag: an instance counts as gone only if it is missing later than `Traits.settle_s` after its launch.
- `terminate` is idempotent. Ids that the cloud does not know are fine. Instances of other owners are never touched.
- An instance is gone if it is not listed, or listed as GONE. A stopped instance that still costs is listed.
- Every failure is a `LaunchError` with a kind. Other exceptions are defects.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from kgwe import errors

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kgwe.placement.fleet.taints import Taint

#: Tags on every instance, where a cloud has tags with such names: the owning cluster, the request and the pool.
CLUSTER_TAG: Final = "kgwe.nvidia.io/cluster"
REQUEST_TAG: Final = "kgwe.nvidia.io/launch-request"
POOL_TAG: Final = "kgwe.nvidia.io/node-pool"


class CapacityType(enum.StrEnum):
    """How an instance is paid for, as in the label of its node."""

    RESERVED = "reserved"
    SPOT = "spot"
    ON_DEMAND = "on-demand"


class GangSupport(enum.StrEnum):
    """Whether a cloud launches several instances all or none."""

    ATOMIC = "atomic"
    BEST_EFFORT = "best-effort"


class TopologySupport(enum.StrEnum):
    """Whether a cloud promises that instances of one request are close to each other."""

    GUARANTEED = "guaranteed"
    OBSERVED_AFTER_JOIN = "observed-after-join"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a provider promises."""

    gangs: GangSupport
    topology: TopologySupport
    settle_s: float = 60.0
    """How long after a launch a list may miss its instances."""


class LaunchErrorKind(enum.StrEnum):
    """Why a call failed. Each kind has a memory, a back-off and a fallback of its own."""

    NO_CAPACITY = "no-capacity"
    """The cloud has none left of this type, zone and capacity type. Another pool may have some."""
    QUOTA = "quota"
    """The account may not have more. Other zones do not help; another type or capacity type may."""
    LIMIT = "limit"
    """A limit of the group or pool itself is reached, such as the maximum of a scaling group."""
    AUTHENTICATION = "authentication"
    """Credentials are missing, expired or not allowed to do this. An operator must act."""
    BAD_TEMPLATE = "bad-template"
    """The request itself is wrong: unknown type, image, template or zone. An operator must act."""
    THROTTLED = "throttled"
    """Too many calls. The same call later succeeds."""
    TRANSIENT = "transient"
    """The outcome is unknown: no answer, or an error inside the cloud. Repeat the same request."""


#: After these a repeated call may succeed without any change.
RETRYABLE: Final = frozenset({LaunchErrorKind.THROTTLED, LaunchErrorKind.TRANSIENT})


class LaunchError(errors.KgweError):
    """A call to the cloud failed. `code` is the cloud's own word; `retry_after_s` is set if the cloud sent it."""

    def __init__(
        self, kind: LaunchErrorKind, message: str, *, code: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def is_retryable(self) -> bool:
        """Whether the same call may succeed later without any change."""
        return self.kind in RETRYABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One purchase: equal instances of one pool."""

    request_id: str
    """Idempotency token: 1 to 36 characters of `a-z`, `0-9` and `-`, a letter first; no dash at the end."""
    pool: str
    instance_type: str
    zone: str
    capacity_type: CapacityType = CapacityType.ON_DEMAND
    count: int = 1
    atomic: bool = False
    """All instances or none."""
    placement_group: str = ""
    """Instances are placed close together in this group. Empty: anywhere in the zone."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the nodes join with."""
    taints: tuple[Taint, ...] = ()
    template: str = ""
    """The cloud's reference for everything else: launch template, instance template, scale set, group or node class."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise errors.Permanent(f"launch request {self.request_id} asks for {self.count} instances")
        if not _is_token(self.request_id):
            raise errors.Permanent(
                f"launch request id {self.request_id!r} must be 1 to {_TOKEN_LENGTH} characters of a-z, 0-9 and '-', "
                "with a letter first and no dash at the end"
            )


#: The longest token that all clouds accept: GCP wants a UUID, which is made from it, and Azure names carry it.
_TOKEN_LENGTH: Final = 36
_TOKEN_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")


def _is_token(text: str) -> bool:
    return (
        0 < len(text) <= _TOKEN_LENGTH and set(text) <= _TOKEN_LETTERS and text[0].isalpha() and not text.endswith("-")
    )


class InstanceState(enum.StrEnum):
    """State of an instance in the cloud, not of its node."""

    LAUNCHING = "launching"
    RUNNING = "running"
    STOPPED = "stopped"
    """It does not run but still exists, as a preempted spot instance does on some clouds. It must be terminated."""
    REMOVING = "removing"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance that this cluster owns in the cloud."""

    provider_id: str
    """As in `spec.providerID` of its node, so the node is found whatever its name is."""
    request_id: str
    """Empty for an instance that no request of KGWE bought, such as one of an existing group."""
    pool: str
    instance_type: str
    zone: str
    capacity_type: CapacityType
    state: InstanceState
    node_name: str | None = None
    """The name its node is expected to join with; None if the cloud does not know it."""
    launched_at: float = 0.0
    """Unix time."""
    message: str = ""
    """What the cloud says about its state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """What a launch bought, and why the rest is missing."""

    instances: tuple[Instance, ...] = ()
    """All instances of the request, also those that an earlier call with the same request bought."""
    error: LaunchError | None = None
    """None: all instances were bought. Otherwise it says why some or all are missing."""


class NoticeKind(enum.StrEnum):
    """What a cloud announces about an instance."""

    REBALANCE = "rebalance"
    """A termination is likely; there is no deadline."""
    TERMINATION = "termination"
    """The instance is taken away at the deadline."""
    MAINTENANCE = "maintenance"
    """The instance is stopped or migrated at the deadline and comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptionNotice:
    """A cloud announces that an instance is about to be interrupted."""

    provider_id: str
    kind: NoticeKind
    deadline_at: float | None = None
    """Unix time; None if the cloud names no time."""
    message: str = ""


class Provider(Protocol):
    """A cloud as the autoscaler uses it. The module's docstring lists what every provider keeps."""

    @property
    def name(self) -> str:
        """Short name for reasons, metrics and logs, such as `aws`."""

    @property
    def traits(self) -> Traits:
        """What this provider promises."""

    async def launch(self, request: LaunchRequest) -> LaunchResult:
        """Buy instances. A failure is in the result, together with what was bought nevertheless."""

    async def list_instances(self) -> tuple[Instance, ...]:
        """Return everything that this cluster owns. Raises LaunchError."""

    async def terminate(self, provider_ids: Collection[str]) -> None:
        """Terminate instances. It returns when the cloud has accepted it. Raises LaunchError."""

    async def list_notices(self) -> tuple[InterruptionNotice, ...]:
        """Return announced interruptions that the cloud's API shows; empty if only the node itself can read them."""

    async def close(self) -> None:
        """Close connections."""
