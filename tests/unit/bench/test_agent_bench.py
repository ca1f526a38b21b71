"""What the benchmark of the agent measures on, and how it reads what the agent says of itself."""

from __future__ import annotations

from kgwe.bench.nodes import agent
from kgwe.model.gpu import mig


def test_the_machines_are_eight_whole_cards_and_56_instances():
    whole, cut = dict(agent.build_nodes()).values()
    assert [len(card.instances) for card in whole.gpus] == [0] * 8
    assert [len(card.instances) for card in cut.gpus] == [7] * 8
    geometry = cut.model.geometry
    assert geometry is not None
    assert mig.find_problems(geometry, cut.pool.layouts[0]) == []


def test_heartbeats_are_counted_apart():
    text = """# TYPE kgwe_agent_api_writes_total counter
kgwe_agent_api_writes_total{node="n",kind="heartbeat"} 3
kgwe_agent_api_writes_total{node="n",kind="status"} 2
kgwe_agent_api_writes_total{node="n",kind="object"} 1
kgwe_agent_api_written_bytes_total{node="n",kind="heartbeat"} 150
kgwe_agent_api_written_bytes_total{node="n",kind="status"} 9000
"""
    before = agent.Written(1, 50, 0, 0)
    assert agent.read_counters(text) - before == agent.Written(2, 100, 3, 9000)
