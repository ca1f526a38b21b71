"""The addresses of a real node. Each node of a machine has a slot, and with it subnets of its own.

host     10.200.SLOT.1  kgwe-nodeSLOT ──── eth0  10.200.SLOT.2   node
                                                  10.244.SLOT.x  pods
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kgwe.errors import Permanent

if TYPE_CHECKING:
    from collections.abc import Collection

SLOTS: Final = range(16)
#: port of the relay to the API server
RELAY_PORT: Final = 6443
#: address of the DNS Service, within the range of the API server
DNS_ADDRESS: Final = "10.96.0.10"
#: name by which the node knows the host; the API server's certificate has it
HOST_NAME: Final = "kubernetes"
_INTERFACES: Final = Path("/sys/class/net")


@dataclass(frozen=True, slots=True)
class Addresses:
    slot: int

    @property
    def host(self) -> str:
        return f"10.200.{self.slot}.1"

    @property
    def node(self) -> str:
        return f"10.200.{self.slot}.2"

    @property
    def pods(self) -> str:
        return f"10.244.{self.slot}.0/24"

    @property
    def link(self) -> str:
        """Name of the host's end of the link."""
        return f"kgwe-node{self.slot}"

    @property
    def api_url(self) -> str:
        return f"https://{HOST_NAME}:{RELAY_PORT}"


def choose_slot(taken: Collection[int]) -> int:
    """Return a slot that no node of this machine has."""
    for slot in SLOTS:
        if slot not in taken and not (_INTERFACES / Addresses(slot).link).exists():
            return slot
    raise Permanent(f"{len(SLOTS)} real nodes run on this machine, the maximum; stop one with `kgwe local node down`")
