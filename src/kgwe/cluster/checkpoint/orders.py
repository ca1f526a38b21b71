"""Orders to checkpoint, and what the agents report about them.

An order is one entry of one ConfigMap that every agent watches. So an order to a gang of any size is one write, all
agents see it at the same time, it survives a change of the leader, and only KGWE can write it. An agent reports in an
annotation of its own GPUNode, once per order and change.
"""

from __future__ import annotations

import enum
import hashlib
from typing import TYPE_CHECKING, Final

import msgspec

from kgwe.cluster import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

CONFIG_MAP: Final = "kgwe-checkpoint-orders"
NAMESPACE: Final = names.SCHEDULER_LEASE_NAMESPACE
REPORT_ANNOTATION: Final = "kgwe.nvidia.io/checkpoints"
#: How long an order is kept after its deadline if its writer did not remove it.
KEEP_S: Final = 60.0


class Order(msgspec.Struct, frozen=True, rename="camel"):
    """Pods that must checkpoint before a time."""

    deadline_at: float
    """Unix time."""
    reason: str
    pods: dict[str, str]
    """Uid of the pod -> its node."""

    def list_on(self, node: str) -> list[str]:
        """Return the uids of its pods on a node."""
        return [uid for uid, where in self.pods.items() if where == node]


class State(enum.StrEnum):
    """How far an agent is with one pod."""

    SENT = "sent"
    DONE = "done"
    FAILED = "failed"


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent reports about one pod of an order."""

    state: State
    message: str = ""


Reports = dict[str, dict[str, Report]]
"""Order -> uid of the pod -> report."""


def make_order_id(cause: str, uids: Iterable[str]) -> str:
    """Return the same id for the same cause and pods, so that the next leader continues the order."""
    return hashlib.sha256("\n".join([cause, *sorted(uids)]).encode()).hexdigest()[:24]


def encode_order(order: Order) -> str:
    return msgspec.json.encode(order).decode()


def decode_orders(data: Mapping[str, str]) -> dict[str, Order]:
    """Return the orders of the ConfigMap. One that cannot be read hides no other."""
    found = {}
    for name, text in data.items():
        try:
            found[name] = msgspec.json.decode(text, type=Order)
        except msgspec.MsgspecError:
            continue
    return found


def encode_reports(reports: Mapping[str, Mapping[str, Report]]) -> str:
    return msgspec.json.encode(reports).decode()


def decode_reports(text: str | None) -> Reports:
    """Return the reports of one agent; none if they cannot be read."""
    if not text:
        return {}
    try:
        return msgspec.json.decode(text, type=Reports)
    except msgspec.MsgspecError:
        return {}


def find_expired(orders: Mapping[str, Order], now: float) -> list[str]:
    """Return the orders that their writers should have removed by now."""
    return [name for name, order in orders.items() if order.deadline_at + KEEP_S < now]
