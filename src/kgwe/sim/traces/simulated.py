"""Recorded decisions as JSON lines: what was asked, in which state of the fleet, and what was decided.

Two kinds of lines, in order of time:

    {"kind":"decision","at_s":12.5,"job":"train-7","arrival_s":10.0,"snapshot":"9f2c…","pods":2,
     "request":{"gpus":{"count":8},"cpu_milli":64000,"memory_bytes":412316860416},
     "priority":0,"user":"ana","model":"bert",
     "seats":[{"node":"h100-0001","cards":[0,1,2,3,4,5,6,7]},{"node":"h100-0002","cards":[0,1,2,3,4,5,6,7]}]}
    {"kind":"end","at_s":3612.5,"job":"train-7"}

`snapshot` is a hash of the free amounts of every node before the decision: two decisions with the same hash and request
were asked the same question, so a change of policy shows as a difference in `seats`. Fields at their default are
left out. Reading gives the jobs back, as long as they ran where they were; one that never ended is taken to run until
the last line.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from kgwe import errors
from kgwe.placement.fleet.constraints import Constraints, Operator, Requirement
from kgwe.placement.fleet.node import Gpus, Preference, Request
from kgwe.placement.fleet.snapshot import bits
from kgwe.placement.fleet.taints import Toleration
from kgwe.records.live import End, Seat
from kgwe.sim.traces.workload import CHECKPOINT_S, Job, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import BinaryIO

    from kgwe.placement.fleet.snapshot import Grant, Snapshot
    from kgwe.sim.loop import Simulation

_HASH_BYTES = 8
# msgspec leaves a float out only when it is the very object that is the default.
_NO_LIMIT = 0.0


class GpusRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    count: int = 0
    milli: int = 0
    share_mib: int = 0
    profile: str = ""
    slices: int = 0


class RequirementRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    key: str
    operator: Operator
    values: tuple[str, ...] = ()


class TolerationRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    gpus: GpusRecord = GpusRecord()
    cpu_milli: int = 0
    memory_bytes: int = 0
    preference: Preference = Preference.NONE
    min_bandwidth_gbps: float = _NO_LIMIT
    min_memory_gb: int = 0
    model: str = ""
    architecture: str = ""
    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[RequirementRecord, ...], ...] | None = None
    tolerations: tuple[TolerationRecord, ...] = ()
    avoid: tuple[str, ...] = ()


class Decision(msgspec.Struct, frozen=True, omit_defaults=True, tag="decision", tag_field="kind"):
    at_s: float
    job: str
    arrival_s: float
    snapshot: str
    request: RequestRecord
    seats: tuple[Seat, ...]
    pods: int = 1
    priority: int = 0
    user: str = ""
    model: str = ""
    checkpoint_s: float = CHECKPOINT_S


Line = Decision | End


# --- writing --------------------------------------------------------------------------------------------


def snapshot_hash(snapshot: Snapshot) -> str:
    """Of everything that is free, node by node."""
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    arrays = (snapshot.free, snapshot.milli, snapshot.share_mib, snapshot.cpu_milli, snapshot.memory_bytes)
    for array in (*arrays, snapshot.pods, snapshot.ready):
        digest.update(array.tobytes())
    for (node, card), free in sorted(snapshot.free_slices.items()):
        digest.update(repr((node, card, [(each.profile.name, each.start) for each in free])).encode())
    return digest.hexdigest()


def decision(snapshot: Snapshot, at_s: float, job: Job, grants: Iterable[Grant]) -> Decision:
    """The record of a decision taken on a snapshot that does not hold it yet."""
    return Decision(
        at_s=at_s,
        job=job.name,
        arrival_s=job.arrival_s,
        snapshot=snapshot_hash(snapshot),
        request=_described(job.request),
        seats=tuple(_seat(snapshot, grant) for grant in grants),
        pods=job.pods,
        priority=job.priority,
        user=job.user,
        model=job.model,
        checkpoint_s=job.checkpoint_s,
    )


class Writer:
    """Watches a simulation and writes down what it decides."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()

    def moment(self, simulation: Simulation, at_s: float) -> None:
        """Nothing to write."""

    def started(self, simulation: Simulation, at_s: float, job: Job, grants: tuple[Grant, ...]) -> None:
        self.write(decision(simulation.world.snapshot, at_s, job, grants))

    def ended(self, simulation: Simulation, at_s: float, job: Job) -> None:
        del simulation
        self.write(End(at_s, job.name))

    def write(self, line: Line) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")


def _described(request: Request) -> RequestRecord:
    gpus, limits = request.gpus, request.constraints
    affinity = limits.affinity
    return RequestRecord(
        gpus=GpusRecord(gpus.count, gpus.milli, gpus.share_mib, gpus.profile, gpus.slices),
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        preference=request.preference,
        min_bandwidth_gbps=request.min_bandwidth_gbps or _NO_LIMIT,
        min_memory_gb=request.min_memory_gb,
        model=request.model,
        architecture=request.architecture,
        selector=limits.selector,
        affinity=None
        if affinity is None
        else tuple(
            tuple(RequirementRecord(line.key, line.operator, line.values) for line in term) for term in affinity
        ),
        tolerations=tuple(TolerationRecord(t.key, t.operator, t.value, t.effect) for t in limits.tolerations),
        avoid=tuple(sorted(limits.avoid)),
    )


def _seat(snapshot: Snapshot, grant: Grant) -> Seat:
    return Seat(
        node=snapshot.nodes[grant.node].name,
        cards=(grant.share[0],) if grant.share else tuple(bits(grant.cards)),
        milli=grant.share[1] if grant.share else 0,
        slices=tuple(f"{card}:{each.profile.name}@{each.start}" for card, each in grant.slices),
    )


# --- reading --------------------------------------------------------------------------------------------


def read(path: Path) -> list[Line]:
    """The lines of a file."""
    decoder = msgspec.json.Decoder(Line)
    lines: list[Line] = []
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    lines.append(_line(decoder, text, f"{path}:{number}"))
    except OSError as exc:
        raise errors.NotFound(f"reading recorded decisions: {exc}") from exc
    return lines


def _line(decoder: msgspec.json.Decoder[Line], text: bytes, where: str) -> Line:
    try:
        return decoder.decode(text)
    except msgspec.MsgspecError as exc:
        raise errors.Permanent(f"{where} is not a recorded decision: {exc}") from exc


def workload(name: str, lines: Iterable[Line]) -> Workload:
    """The jobs of recorded decisions, to be run again; of a job decided twice (it was interrupted) the first counts."""
    listed = list(lines)
    ends = {line.job: line.at_s for line in listed if isinstance(line, End)}
    last_s = max((line.at_s for line in listed), default=0.0)
    first: dict[str, Decision] = {}
    for line in listed:
        if isinstance(line, Decision):
            first.setdefault(line.job, line)
    return Workload.of(name, (_job(line, ends.get(line.job, last_s)) for line in first.values()))


def _job(line: Decision, end_s: float) -> Job:
    return Job(
        name=line.job,
        arrival_s=line.arrival_s,
        duration_s=max(end_s - line.at_s, 1.0),
        request=_request(line.request),
        pods=line.pods,
        priority=line.priority,
        user=line.user,
        model=line.model,
        checkpoint_s=line.checkpoint_s,
    )


def _request(record: RequestRecord) -> Request:
    affinity = record.affinity
    constraints = Constraints(
        selector=record.selector,
        affinity=None
        if affinity is None
        else tuple(tuple(Requirement(line.key, line.operator, line.values) for line in term) for term in affinity),
        tolerations=tuple(Toleration(t.key, t.operator, t.value, t.effect) for t in record.tolerations),
        avoid=frozenset(record.avoid),
    )
    gpus = record.gpus
    return Request(
        gpus=Gpus(gpus.count, gpus.milli, gpus.share_mib, gpus.profile, gpus.slices),
        cpu_milli=record.cpu_milli,
        memory_bytes=record.memory_bytes,
        preference=record.preference,
        min_bandwidth_gbps=record.min_bandwidth_gbps,
        min_memory_gb=record.min_memory_gb,
        model=record.model,
        architecture=record.architecture,
        constraints=constraints,
    )
