"""What `kgwe agent list` shows: a node nobody watches is never shown as good."""

from __future__ import annotations

import datetime as dt

from tests.support.machines import memory_driver

from kgwe.apps.agent.status import gpunode_status
from kgwe.apps.discovery import fleet
from kgwe.apps.discovery.freshness import judge
from kgwe.apps.discovery.live import Answer
from kgwe.cli.processes import agent_text
from kgwe.kube.api.kgwe.gpunode import GPUNode
from kgwe.kube.api.meta import ObjectMeta

NOW = dt.datetime(2026, 11, 16, 12, tzinfo=dt.UTC)
STATUS = gpunode_status.build_status(memory_driver.machine(memory_driver.node()))


def row(name: str, *, answer: Answer | None = None) -> fleet.Row:
    return fleet.Row(judge(GPUNode(metadata=ObjectMeta(name=name), status=STATUS), NOW), answer)


def test_a_node_without_an_agent_says_so_and_one_that_answers_is_live():
    silent, live = row("a"), row("b", answer=Answer(0.0, STATUS))
    away = row("c", answer=Answer(0.0, None, "agent 10.0.0.3:50052: timed out"))
    assert [each.is_good for each in (silent, live, away)] == [False, True, False]
    lines = agent_text.rows([silent, live, away]).splitlines()
    assert lines[0].split() == ["NODE", "GPUS", "HEALTHY", "MODEL", "FRESHNESS", "UPDATED", "REASON"]
    assert "Silent" in lines[1]
    assert "no agent has written this GPUNode" in lines[1]
    assert "Live" in lines[2]
    assert "NoAnswer" in lines[3]
    assert "timed out" in lines[3]


def test_a_cluster_without_nodes_says_what_to_do():
    assert "deploy/agent.yaml" in agent_text.rows([])


def test_addresses_are_those_of_the_nodes():
    def node(name: str, *addresses: tuple[str, str]) -> fleet.AddressedNode:
        return fleet.AddressedNode(
            ObjectMeta(name=name), fleet._Status(tuple(fleet.Address(kind, where) for kind, where in addresses))
        )

    nodes = [
        node("a", ("Hostname", "a"), ("InternalIP", "10.0.0.7")),
        node("b", ("InternalIP", "fd00::7")),
        node("c", ("Hostname", "c")),
    ]
    assert fleet.addresses(nodes, 50052) == {"a": "10.0.0.7:50052", "b": "[fd00::7]:50052"}
