"""What is written of asks and nodes can be read back."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import msgspec
import pytest
from tests.support.builders import small_fleet

from kgwe import errors
from kgwe.model.network import domains
from kgwe.placement.disruption.partial_gang import PartialGang, PartialMember
from kgwe.placement.fleet.node import Gpus, Node, Request
from kgwe.placement.fleet.taints import Taint
from kgwe.placement.gang.plan import DomainWeights
from kgwe.placement.gang.request import Following, GangRequest, Intent
from kgwe.placement.planning.ask import Ask
from kgwe.placement.pod.score import Weights
from kgwe.records import codec

REQUEST = Request(Gpus(count=2), cpu_milli=1000, min_bandwidth_gbps=0.1)


def kinds_in(kind: Any, seen: set[Any]) -> set[Any]:
    """All dataclasses that values of a type can hold."""
    for part in (kind, *typing.get_args(kind)):
        if dataclasses.is_dataclass(part) and part not in seen:
            seen.add(part)
            hints: dict[str, Any] = codec._hints(typing.cast("Any", part))
            for hint in hints.values():
                kinds_in(hint, seen)
        elif typing.get_args(part) and part is not kind:
            kinds_in(part, seen)
    return seen


@pytest.mark.parametrize("kind", [Ask, Node])
def test_every_field_has_a_type_that_is_known(kind: type[Any]) -> None:
    # A field whose type is imported for the type checker alone has to be named in the codec.
    assert kinds_in(kind, set()) >= {kind}


#: as records on disk call the fields; a field may be renamed in the code, never here
WIRE_NAMES = {
    "Ask": "owner request amounts pods divisible ranks nearness strategy priority preemptible since namespace name"
    " expected_s first_claim serves service gang first partial hint following fields",
    "Constraints": "selector affinity tolerations avoid",
    "DomainWeights": "availability alignment utilisation history",
    "Fields": "model architecture min_memory preference min_bandwidth share profile spot_policy hardware template"
    " is_pod",
    "Following": "kinds order expected intent",
    "GangRequest": "roles required preferred strategy hardware min_network_gb_per_s max_nodes_per_leaf"
    " max_gpus_per_leaf max_pods_per_node priority name exposed",
    "Geometry": "name units compute profiles",
    "Gpus": "count milli share_mib profile slices",
    "Intent": "parts tight reason",
    "Nic": "name gbit_per_s numa pcie rail",
    "Node": "name shape cpu_milli memory_bytes pods labels taints ready healthy cut price_micro_per_hour spot cheap"
    " reliability history pieces cordoned",
    "PartialGang": "members gang least",
    "PartialMember": "pod request node",
    "Placement": "profile start",
    "Profile": "name compute units starts limit memory_mib",
    "Request": "gpus cpu_milli memory_bytes preference min_bandwidth_gbps min_memory_gb model architecture constraints"
    " spot",
    "Requirement": "key operator values",
    "Role": "name request replicas min_replicas segments",
    "Segment": "size level",
    "Shape": "wiring model memory_mib architecture geometry",
    "Slot": "bus numa cpus pcie",
    "Taint": "key value effect",
    "Toleration": "key operator value effect",
    "TopologyRequest": "required preferred segments hardware min_network_gb_per_s max_nodes_per_leaf max_gpus_per_leaf"
    " max_pods_per_node",
    "Weights": "topology resource balance",
    "Wiring": "slots nvlink_version switch_links mesh nics links_down link_gb_per_s pcie_gb_per_s seen nics_seen",
}


def test_the_names_in_records_do_not_change() -> None:
    seen: set[Any] = set()
    for kind in (Ask, Node, Weights, DomainWeights):
        kinds_in(kind, seen)
    names = {}
    for kind in seen:
        renamed = codec._WIRE_NAMES.get(kind, {})
        names[kind.__name__] = {renamed.get(field.name, field.name) for field in dataclasses.fields(kind)}
    assert names == {kind: set(fields.split()) for kind, fields in WIRE_NAMES.items()}


def test_every_renamed_field_exists() -> None:
    for kind, names in codec._WIRE_NAMES.items():
        assert names.keys() <= codec._hints(kind).keys(), kind


def test_a_renamed_field_is_written_and_read_by_its_name_in_records() -> None:
    partial = PartialGang((PartialMember("p0", REQUEST),), GangRequest.uniform(REQUEST, 1), min_members=1)
    assert "least" in codec.encode_value(partial)
    assert "min_members" not in codec.encode_value(partial)
    assert again(PartialGang, partial) == partial


def again(kind: type[Any], value: Any) -> Any:
    return codec.decode_value(kind, msgspec.json.decode(msgspec.json.encode(codec.encode_value(value))))


def test_a_part_of_a_gang_is_read_back() -> None:
    partial = PartialGang(
        (PartialMember("p0", REQUEST, "n1"), PartialMember("p1", REQUEST)),
        GangRequest.uniform(REQUEST, 2),
        min_members=1,
    )
    ask = Ask("gang", REQUEST, pods=1, partial=partial)
    assert again(Ask, ask) == ask


def test_the_gangs_that_follow_an_ask_are_read_back() -> None:
    gangs = [GangRequest.uniform(REQUEST, pods, preferred="leaf", name=f"gang-{pods}") for pods in (4, 2, 4)]
    following = Following.from_gangs(gangs)
    assert following.order == (0, 1, 0)
    assert again(Ask, Ask("gang", REQUEST, pods=2, following=following)).following == following
    intended = dataclasses.replace(following, intent=Intent((("leaf-1", 2),), tight=True, reason="planned together"))
    assert again(Ask, Ask("gang", REQUEST, pods=2, following=intended)).following == intended


def test_nodes_are_read_back() -> None:
    for node in (
        small_fleet.node(0, cut=2),
        small_fleet.node(1, spot=True, price=None),
        small_fleet.node(2, ready=False, healthy=0b101, taints=(Taint("a", "b", "NoSchedule"),)),
    ):
        assert again(Node, node) == node


def test_a_network_is_read_back_and_compared() -> None:
    speeds = {"leaf": domains.Speed(25.0, 2.0)}
    places = [domains.Place(f"n{i}", (f"leaf-{i // 2}", ""), nvlink="a" * (i % 2), gb_per_s=50.0) for i in range(5)]
    tree = domains.build_tree(places, ("leaf", "spine"), speeds=speeds, connected=[("leaf", "leaf-0", "leaf-1")])
    other = codec.decode_tree(msgspec.json.decode(msgspec.json.encode(codec.encode_tree(tree))))
    assert codec.same_tree(tree, other)
    assert other.gb_per_s(0, 4) == tree.gb_per_s(0, 4)
    assert not codec.same_tree(tree, domains.build_tree(places, ("leaf", "spine")))
    assert not codec.same_tree(tree, domains.build_tree(places[:4], ("leaf", "spine")))


def test_what_is_something_else_is_refused() -> None:
    with pytest.raises(errors.Permanent, match="not a Ask"):
        codec.decode_value(Ask, {"owner": "w", "request": {"gpus": {"count": "many"}}})
