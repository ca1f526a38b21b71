"""The levels that the search for a gang tries."""

from __future__ import annotations

import pytest
from tests.support.builders.racks import cards, racks

from kgwe.placement.gang.candidates import LevelBounds
from kgwe.placement.gang.levels import build_level_table
from kgwe.placement.gang.request import GangRequest, Strategy

# Levels of the table: 0 node, 1 leaf, 2 spine, 3 cluster.
FLEET = {"s": {"a": [8, 8], "b": [8, 8]}, "t": {"c": [8, 8]}}


@pytest.mark.parametrize(
    ("strategy", "preferred", "required", "expected"),
    [
        pytest.param(Strategy.CONSOLIDATED, "", "", (0, 3, 3), id="consolidated starts at the node"),
        pytest.param(Strategy.CONSOLIDATED, "leaf", "spine", (0, 1, 2), id="the required level is the highest"),
        pytest.param(Strategy.BALANCED, "", "", (1, 3, 3), id="balanced starts at the leaf"),
        pytest.param(Strategy.BALANCED, "spine", "", (2, 2, 3), id="balanced starts at the preferred level"),
        pytest.param(Strategy.DISTRIBUTED, "", "", (3, 3, 3), id="distributed uses the cluster"),
        pytest.param(Strategy.DISTRIBUTED, "", "leaf", (1, 3, 1), id="distributed uses the required level"),
        pytest.param(Strategy.PACK, "leaf", "", (1, 1, 3), id="pack starts at the preferred level"),
    ],
)
def test_strategy_and_levels_of_a_gang_bound_its_search(strategy, preferred, required, expected):
    fleet = racks(FLEET)
    table = build_level_table(fleet.tree, fleet.snapshot)
    gang = GangRequest.uniform(cards(8), 2, strategy=strategy, preferred=preferred, required=required)
    assert LevelBounds.from_gang(table, gang) == expected
