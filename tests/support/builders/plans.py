"""Small fleets with work on them, for tests of the plans that stop or move work.

    leaf-0: a b    leaf-1: c d        Fleet(nodes="ab cd", cards=4)

A fleet is written as leaves of one-letter nodes; `run` books work on it by name. What must hold for every plan, and
the plain counting that brute force is done with, is here too; it shares no code with the planners.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from tests.support.machines.reference import nvswitch

from kgwe.model.network import domains
from kgwe.placement.disruption.running import Member, Running
from kgwe.placement.fleet.node import Gpus, Node, Request, Shape
from kgwe.placement.fleet.snapshot import Grant, Snapshot, list_gpus
from kgwe.placement.pod.fit import Fitter

NOW = 10_000.0
HOUR_MILLI_S = 3_600_000


def whole(cards, cpu=0, **more):
    return Request(Gpus(count=cards), cpu_milli=cpu, **more)


class Fleet:
    def __init__(self, nodes="a", cards=4, cpu=64_000, spines=1, names=("leaf", "spine")):
        leaves = nodes.split()
        self.names = "".join(leaves)
        shape = Shape(nvswitch(cards), "H100-SXM5-80GB", 81_920, "hopper")
        self.nodes = [Node(name, shape, cpu, 2**40, 110) for name in self.names]
        self.snapshot = Snapshot.from_nodes(self.nodes)
        self.fitter = Fitter(self.snapshot)
        self.leaf = {name: number for number, leaf in enumerate(leaves) for name in leaf}
        per_spine = -(-len(leaves) // spines)
        places = [
            domains.Place(name, (f"leaf-{leaf}", f"spine-{leaf // per_spine}"), gb_per_s=50.0)
            for name, leaf in self.leaf.items()
        ]
        self.tree = domains.build_tree(places, names)
        self.cards = cards
        self.running: list[Running] = []

    def run(self, name, at, cards=1, *, request=None, book=True, **more):
        """Work with one member per letter of `at`, each of that many cards."""
        members = []
        for number, node in enumerate(at):
            asked = request or whole(cards)
            grant = self.fitter.find_grant(asked, self.names.index(node))
            assert grant is not None, f"{name} does not fit on {node}"
            if book:
                self.snapshot.commit(grant)
            members.append(Member(f"{name}-{number}", asked, grant))
        more.setdefault("started_at_s", NOW - 3600)
        work = Running(name, tuple(members), **more)
        self.running.append(work)
        return work

    def free(self):
        """Free cards by node."""
        return {name: int(self.snapshot.free[i]).bit_count() for i, name in enumerate(self.names)}


def state(snapshot):
    """All that a booking can change."""
    arrays = (snapshot.free, snapshot.cpu_milli, snapshot.memory_bytes, snapshot.pods, snapshot.milli, snapshot.owed)
    slices = {key: list(held) for key, held in snapshot.free_slices.items()}
    return [array.tolist() for array in (*arrays, snapshot.share_mib)], slices


def check_books(nodes, grants):
    """Nothing is given twice: counted by hand, without the snapshot."""
    for number, node in enumerate(nodes):
        mine = [grant for grant in grants if grant.node == number]
        held = [card for grant in mine for card in list_gpus(grant.gpus)]
        assert len(held) == len(set(held)), f"a card of {node.name} is given twice"
        assert all(node.usable >> card & 1 for card in held)
        assert sum(grant.cpu_milli for grant in mine) <= node.cpu_milli
        assert len(mine) <= node.pods


def losses(workload):
    """Every set of members that can go: some that it can spare, or all."""
    held = workload.placed_members
    yield ()
    yield held
    for count in range(1, min(workload.expendable, len(held) - 1) + 1):
        yield from itertools.combinations(held, count)


def without(running, stopped):
    """The work that is left when those members (workload -> members) are gone."""
    left = []
    for number, workload in enumerate(running):
        gone = stopped.get(number, ())
        kept = tuple(member for i, member in enumerate(workload.members) if i not in gone)
        if kept:
            left.append(replace(workload, members=kept))
    return left


def grants_of(running):
    return [member.grant for workload in running for member in workload.members if member.grant is not None]


def free_after(fleet, running):
    """Free cards per node with only this work running."""
    free = [fleet.cards] * len(fleet.nodes)
    for grant in grants_of(running):
        free[grant.node] -= grant.gpus.bit_count()
    return free


def grant(node, cards, cpu=0):
    return Grant(node, cpu, gpus=cards)
