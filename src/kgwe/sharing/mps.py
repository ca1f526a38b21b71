"""MPS: whether processes may share a GPU through one server, and with which limits.

Clients of an MPS server run at the same time in one context, each with a part of the threads and of the memory. That
is faster than time-slicing, and isolates them less:

- since Volta each client has its own address space; KGWE does not support older GPUs;
- a fatal error of one client ends every client of its server: share only among workloads that trust each other;
- a server serves one user at a time; clients of another wait until it has no client left.

With MIG on, a server serves one slice; it cannot span slices or the whole GPU. The thread percentage is then that of
the slice. Percentages of all clients may add up to more than 100: then they compete. Memory is never promised twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kgwe.model.gpu.driver_data import Device, Machine

THREAD_PERCENTAGE: Final = 25
MAX_CLIENTS: Final = 8
#: What one server can have, since Volta.
HARDWARE_CLIENTS: Final = 48
_VOLTA: Final = (7, 0)
_ALL_THREADS: Final = 100


@dataclass(frozen=True, slots=True)
class Target:
    """The GPU, or MIG slice of it, that a server would serve."""

    uuid: str
    memory_mib: int | None
    compute_capability: tuple[int, int] | None
    is_instance: bool = False
    is_cut: bool = False
    """A GPU with MIG on: only its instances can be used."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How a unit is shared."""

    thread_percentage: int = THREAD_PERCENTAGE
    """Of each client that names no other."""
    memory_mib: int | None = None
    """Of each client; None: an equal part of the memory there is."""
    max_clients: int = MAX_CLIENTS
    is_exclusive: bool = False
    """Only the server may use the GPU (compute mode exclusive-process); whole GPUs only."""


@dataclass(frozen=True, slots=True)
class Client:
    """A process that wants to be served."""

    name: str
    thread_percentage: int | None = None
    memory_mib: int | None = None
    user: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """The answer: what each client gets, in the order asked, or why not all can share."""

    problems: tuple[str, ...] = ()
    clients: tuple[Client, ...] = ()
    is_oversubscribed: bool = False
    """Together they may use more than all threads, and compete for them."""

    @property
    def is_admitted(self) -> bool:
        return not self.problems


def list_targets(machine: Machine) -> dict[str, Target]:
    """uuid -> everything on the machine that a server could be asked for."""
    found: dict[str, Target] = {}
    for device in machine.devices:
        found[device.uuid] = Target(
            device.uuid, device.memory_mib, device.compute_capability, is_cut=device.mig.is_enabled
        )
        found |= _list_instances(device)
    return found


def _list_instances(device: Device) -> dict[str, Target]:
    return {
        each.uuid: Target(each.uuid, each.memory_mib, device.compute_capability, is_instance=True)
        for each in device.mig.instances
        if each.uuid and device.mig.is_enabled
    }


def find_problems(target: Target, limits: Limits) -> list[str]:
    """Everything that prevents a server there with such limits; empty: nothing."""
    return [*_target_problems(target, limits), *_limit_problems(target, limits)]


def _target_problems(target: Target, limits: Limits) -> list[str]:
    found = []
    if target.compute_capability is None:
        found.append(f"the architecture of {target.uuid} is not known; MPS needs Volta or newer")
    elif target.compute_capability < _VOLTA:
        major, minor = target.compute_capability
        found.append(f"{target.uuid} has compute capability {major}.{minor}; MPS keeps clients apart since 7.0 (Volta)")
    if target.is_cut:
        found.append(f"MIG is on at {target.uuid}: name one of its instances, a server cannot span them")
    if target.is_instance and limits.is_exclusive:
        found.append("the compute mode is the whole GPU's: it cannot be exclusive for one instance")
    return found


def _limit_problems(target: Target, limits: Limits) -> list[str]:
    found = []
    if not 1 <= limits.thread_percentage <= _ALL_THREADS:
        found.append(f"an active thread percentage of {limits.thread_percentage} is not within 1 and 100")
    if not 1 <= limits.max_clients <= HARDWARE_CLIENTS:
        found.append(f"{limits.max_clients} clients: a server has 1 to {HARDWARE_CLIENTS}")
    if limits.memory_mib is not None and limits.memory_mib < 1:
        found.append(f"a memory limit of {limits.memory_mib} MiB leaves nothing")
    if limits.memory_mib is not None and target.memory_mib is not None and limits.memory_mib > target.memory_mib:
        found.append(f"a memory limit of {limits.memory_mib} MiB is more than the {target.memory_mib} MiB there are")
    return found


def memory_limit_mib(target: Target, limits: Limits) -> int | None:
    """What each client may have; None: not known, so not limited."""
    if limits.memory_mib is not None:
        return limits.memory_mib
    return None if target.memory_mib is None else target.memory_mib // limits.max_clients


def admit_clients(target: Target, limits: Limits, clients: Sequence[Client]) -> Admission:
    """Whether these clients may share the unit, and the limits of each. All or none."""
    found = find_problems(target, limits)
    if found:
        return Admission(tuple(found))
    if len(clients) > limits.max_clients:
        found.append(f"{len(clients)} clients for a server that takes {limits.max_clients}")
    if len({client.user for client in clients}) > 1:
        users = ", ".join(str(user) for user in sorted({client.user for client in clients}))
        found.append(f"a server serves one user at a time, not {users}")
    for client in clients:
        asked = client.thread_percentage
        if asked is not None and not 1 <= asked <= _ALL_THREADS:
            found.append(f"{client.name}: an active thread percentage of {asked} is not within 1 and 100")
    sizes, wrong = _split_memory(target, limits, clients)
    found += wrong
    if found:
        return Admission(tuple(found))
    # The daemon's defaults are ceilings: a client can ask for less, never for more.
    threads = [min(client.thread_percentage or _ALL_THREADS, limits.thread_percentage) for client in clients]
    given = tuple(
        Client(client.name, percentage, size, client.user)
        for client, percentage, size in zip(clients, threads, sizes, strict=True)
    )
    return Admission(clients=given, is_oversubscribed=sum(threads) > _ALL_THREADS)


def _split_memory(target: Target, limits: Limits, clients: Sequence[Client]) -> tuple[list[int | None], list[str]]:
    """Each client's memory, and what is wrong with it."""
    limit = memory_limit_mib(target, limits)
    sizes = [limit if client.memory_mib is None else client.memory_mib for client in clients]
    wrong = [
        f"{client.name}: {client.memory_mib} MiB are more than the {limit} MiB a client may have"
        for client in clients
        if client.memory_mib is not None and limit is not None and client.memory_mib > limit
    ]
    total = sum(size or 0 for size in sizes)
    if target.memory_mib is not None and total > target.memory_mib:
        wrong.append(f"{total} MiB for all clients are more than the {target.memory_mib} MiB there are")
    return sizes, wrong


# --- environments ---------------------------------------------------------------------------------------


def client_environment(uuid: str, pipe_directory: str, client: Client) -> Mapping[str, str]:
    """What a container of this client needs in its environment; the pipe directory must be mounted into it.

    The server shows its one device as number 0.
    """
    found = {"CUDA_MPS_PIPE_DIRECTORY": pipe_directory, "NVIDIA_VISIBLE_DEVICES": uuid}
    if client.thread_percentage is not None:
        found["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(client.thread_percentage)
    if client.memory_mib is not None:
        found["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={client.memory_mib}M"
    return found
