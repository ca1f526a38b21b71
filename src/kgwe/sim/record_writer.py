"""Writes the decisions of a simulation as decision records, in the scheduler's format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kgwe.placement.planning.ask import Ask
from kgwe.records import codec
from kgwe.records.decisions import Decision, End, PendingSnapshot, SimulatedJob, describe_seat
from kgwe.records.rows import FreeCopy, Mirror

if TYPE_CHECKING:
    from typing import BinaryIO

    from kgwe.placement.fleet.snapshot import Grant
    from kgwe.records.decisions import Line
    from kgwe.sim.loop import Simulation
    from kgwe.sim.traces.workload import Job


class RecordWriter:
    """Records one simulation. The first line is the whole fleet; each decision adds the changes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        self._mirror: Mirror | None = None

    def moment(self, simulation: Simulation, at_s: float) -> None:
        """Write nothing."""

    def on_start(self, simulation: Simulation, at_s: float, job: Job, grants: tuple[Grant, ...]) -> None:
        """Write the decision, made on a snapshot that does not contain it yet."""
        world = simulation.world
        if self._mirror is None:
            self._mirror = Mirror(FreeCopy.copy_from(world.snapshot))
            self._write(PendingSnapshot(at_s, self._mirror.last, self._mirror.digest, world.tree).line())
        rows = self._mirror.take_changes(world.snapshot)
        nodes = world.snapshot.nodes
        ask = Ask(
            job.name, job.request, pods=job.pods, priority=job.priority, namespace=job.user, name=job.name
        )  # fmt: skip
        self._write(
            Decision(
                at_s=at_s,
                by="simulate",
                job=job.name,
                snapshot=self._mirror.digest,
                ask=codec.encode_ask(ask),
                rows=rows,
                seats=tuple(describe_seat(nodes[grant.node].name, grant) for grant in grants),
                simulated=SimulatedJob(job.arrival_s, job.model, job.checkpoint_s),
            )
        )

    def on_end(self, simulation: Simulation, at_s: float, job: Job) -> None:
        del simulation
        self._write(End(at_s, job.name))

    def _write(self, line: Line) -> None:
        self._file.write(self._encoder.encode(line) + b"\n")
