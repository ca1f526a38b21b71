"""Nodes as placement sees them, from Node and GPUNode objects of the fleet models."""

from __future__ import annotations

import msgspec
import pytest

from kgwe.kube.api import resources
from kgwe.kube.api.kgwe.gpunode import CardSpec, Fabric, HeldDevices, MIGLayout, Reliability
from kgwe.kube.translate import mig_layouts
from kgwe.kube.translate.nodes import FleetReader
from kgwe.local.fleet import gpunodes, models
from kgwe.model.devices.assignment import DeviceSet
from kgwe.model.simfleet import inventory
from kgwe.model.units import amounts


def built(model="dgx-h100", count=2, faults=()):
    """(Node, GPUNode) objects of a fleet model."""
    unhealthy = gpunodes.unhealthy_cards(faults)
    for node in inventory.expand_fleet(models.load(model), count):
        manifest = gpunodes.node_manifest(node, unhealthy, now="2026-01-01T00:00:00Z")
        described = gpunodes.gpu_node(node, "uid", faults)
        yield (
            msgspec.convert(manifest, resources.NODE.type),
            msgspec.convert(described.manifest(), resources.GPU_NODE.type),
        )


def plain(name="n1", gpus=8, **changes):
    offers = {amounts.GPU: str(gpus), "cpu": "64", "memory": "1Ti", "pods": "110"} | changes.pop("offers", {})
    body = {
        "metadata": {"name": name, "labels": changes.pop("labels", {})},
        "spec": changes.pop("spec", {}),
        "status": {"allocatable": offers, "conditions": [{"type": "Ready", "status": "True"}], **changes},
    }
    return msgspec.convert(body, resources.NODE.type)


@pytest.fixture
def reader():
    made = FleetReader()
    for node, gpu_node in built():
        made.set_node(node.metadata.name, node)
        made.set_gpu_node(gpu_node.metadata.name, gpu_node)
    return made


def test_a_described_node_has_its_wiring_memory_and_family(reader):
    first, second = reader.nodes()
    assert first.shape is second.shape, "hundreds of nodes share few shapes"
    assert (first.shape.gpu_count, first.shape.architecture) == (8, "Hopper")
    assert first.shape.wiring.switch_links
    assert first.usable == 0xFF


def test_cards_and_slices_have_names(reader):
    name = next(iter(reader.nodes())).name
    assert len(set(reader.cards(name).uuids.values())) == 8
    assert reader.cards(name).slices == {}
    assert reader.cards("nobody").uuids == {}


def test_slices_are_offered_as_the_device_plugin_does():
    reader = FleetReader()
    for node, gpu_node in built("hgx-a100", 1):
        reader.set_node(node.metadata.name, node)
        reader.set_gpu_node(gpu_node.metadata.name, gpu_node)
    (made,) = reader.nodes()
    slices = reader.cards(made.name).slices
    for card, cut in made.cut.items():
        for each in cut:
            assert slices[card, each.start][2] == each.profile.name


def test_a_sick_card_is_not_given(reader):
    (node, gpu_node), *_ = built(faults=(gpunodes.Xid(gpu=3, xid=79, since="2026-01-01T00:00:00Z"),))
    assert reader.set_gpu_node(node.metadata.name, gpu_node)
    made = next(each for each in reader.nodes() if each.name == node.metadata.name)
    assert made.usable == 0xFF & ~(1 << 3)


def test_a_node_is_as_reliable_as_its_agent_says_and_well_without_one(reader):
    (node, gpu_node), *_ = built()
    told = msgspec.structs.replace(gpu_node.status, reliability=Reliability(score=0.37))
    assert reader.set_gpu_node(node.metadata.name, msgspec.structs.replace(gpu_node, status=told))
    scores = {each.name: each.reliability for each in reader.nodes()}
    assert scores.pop(node.metadata.name) == 0.37
    assert set(scores.values()) == {1.0}


def test_what_the_device_plugin_does_not_offer_is_not_free(reader):
    (node, _), *_ = built()
    fewer = msgspec.structs.replace(
        node, status=msgspec.structs.replace(node.status, allocatable=node.status.allocatable | {amounts.GPU: "5"})
    )
    assert reader.set_node(node.metadata.name, fewer)
    made = next(each for each in reader.nodes() if each.name == node.metadata.name)
    assert made.usable.bit_count() == 5


def test_without_a_description_cards_are_counted_and_their_wiring_is_not_known():
    reader = FleetReader()
    reader.set_node("n1", plain())
    (made,) = reader.nodes()
    assert made.shape.gpu_count == 8
    assert not made.shape.wiring.switch_links
    assert made.shape.memory_mib is None


def test_slices_that_nobody_describes_are_counted():
    reader = FleetReader()
    reader.set_node("n1", plain(gpus=0, offers={"nvidia.com/mig-1g.10gb": "7"}))
    (made,) = reader.nodes()
    assert sum(len(cut) for cut in made.cut.values()) == 7
    assert made.usable == 0


def test_nodes_without_gpus_are_no_concern():
    reader = FleetReader()
    assert not reader.set_node("n1", plain(gpus=0))
    assert list(reader.nodes()) == []


@pytest.mark.parametrize(
    "changes",
    [{"spec": {"unschedulable": True}}, {"conditions": [{"type": "Ready", "status": "False"}]}, {"conditions": []}],
)
def test_a_node_that_takes_no_pods_is_not_ready(changes):
    reader = FleetReader()
    reader.set_node("n1", plain(**changes))
    (made,) = reader.nodes()
    assert not made.ready


def test_heartbeats_and_equal_descriptions_are_no_news(reader):
    (node, gpu_node), *_ = built()
    before = list(reader.nodes())
    later = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, resourceVersion="99"))
    assert not reader.set_node(node.metadata.name, later)
    assert not reader.set_gpu_node(node.metadata.name, gpu_node)
    assert [id(each) for each in reader.nodes()] == [id(each) for each in before]


def test_a_change_of_the_network_alone_is_news(reader):
    (node, gpu_node), *_ = built()
    status = msgspec.structs.replace(gpu_node.status, fabric=Fabric("cluster", 7))
    assert reader.set_gpu_node(node.metadata.name, msgspec.structs.replace(gpu_node, status=status))
    moved = msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            node.metadata, labels=node.metadata.labels | {"fabric.topograph.run/tier-0": "elsewhere"}
        ),
    )
    before = reader.tree()
    assert reader.set_node(node.metadata.name, moved)
    assert reader.tree() is not before


def test_the_network_is_built_again_only_when_a_place_in_it_changes(reader):
    (node, _), *_ = built()
    before = reader.tree()
    spec = msgspec.structs.replace(node.spec, unschedulable=True)
    assert reader.set_node(node.metadata.name, msgspec.structs.replace(node, spec=spec))
    assert reader.tree() is before
    assert reader.set_node(node.metadata.name, None)
    assert reader.tree() is not before


def test_a_node_that_goes_is_gone_from_the_network_too(reader):
    name = next(iter(reader.nodes())).name
    assert reader.set_node(name, None)
    assert name not in [node.name for node in reader.nodes()]
    assert len(list(reader.nodes())) == 1
    assert reader.tree() is not None
    assert not reader.set_node(name, None)


def described(**changes):
    reader = FleetReader()
    reader.set_node("n1", plain(**changes))
    (made,) = reader.nodes()
    return made


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("karpenter.sh/capacity-type", "spot"), ("eks.amazonaws.com/capacityType", "SPOT")),
        *(("cloud.google.com/gke-spot", "true"), ("kubernetes.azure.com/scalesetpriority", "spot")),
        ("gpu-autoscaler.io/capacity-type", "spot"),
    ],
)
def test_spot_nodes_are_known_by_label_or_taint(key, value):
    assert described(labels={key: value}).spot
    assert described(spec={"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}).spot
    assert not described(labels={key: "on-demand"}).spot


def test_a_node_that_is_declared_cheap_is_not_a_spot_node():
    made = described(labels={"gpu-orchestrator/cheap-node": "true"})
    assert (made.spot, made.cheap) == (False, True)


# --- cards that are to be cut ---------------------------------------------------------------------------


def strategy(generation=1, **spec):
    body = {
        "metadata": {"name": "s"},
        "spec": {"profileDistribution": {"1g.10gb": 1.0}, **spec},
        "status": {"observedGeneration": generation} if generation else {},
    }
    return msgspec.convert(body, resources.MIG_STRATEGY.type)


def cut_node():
    return next(pair for pair in built("hgx-a100", 4) if pair[1].status.gpus[0].mig.enabled)


def wishing(gpu_node, card, **mig):
    """The GPUNode, with a layout asked of one card."""
    uuid = gpu_node.status.gpus[card].uuid
    spec = msgspec.structs.replace(gpu_node.spec, cards=(CardSpec(uuid, MIGLayout(**mig)),))
    return msgspec.structs.replace(gpu_node, spec=spec)


def relabelled(node, **labels):
    kept = {key: value for key, value in node.metadata.labels.items() if key != mig_layouts.DEPLOY_LABEL}
    metadata = msgspec.structs.replace(node.metadata, labels=kept | labels)
    return msgspec.structs.replace(node, metadata=metadata)


def read(node, gpu_node, *strategies):
    reader = FleetReader()
    for each in strategies:
        reader.set_strategy(each.metadata.name, each)
    reader.set_node(node.metadata.name, node)
    reader.set_gpu_node(node.metadata.name, gpu_node)
    return reader


def usable(reader):
    (made,) = reader.nodes()
    return made.usable


def test_a_card_that_is_to_be_cut_is_not_given_whole():
    (node, gpu_node), *_ = built()
    reader = read(node, gpu_node)
    assert reader.set_gpu_node(node.metadata.name, wishing(gpu_node, 3, enabled=True, instances=("7g.80gb@0",)))
    (made,) = reader.nodes()
    assert made.usable == 0xFF & ~(1 << 3)
    assert reader.set_gpu_node(node.metadata.name, wishing(gpu_node, 3, enabled=False))
    (made,) = reader.nodes()
    assert made.usable == 0xFF


def test_a_slice_that_is_to_go_is_not_given():
    node, gpu_node = cut_node()
    before = read(node, gpu_node)
    (made,) = before.nodes()
    card = next(card for card, cut in made.cut.items() if len(cut) > 1)
    stays = made.cut[card][0]
    wish = wishing(gpu_node, card, enabled=True, instances=(f"{stays.profile.name}@{stays.start}",))
    (after,) = read(node, wish).nodes()
    assert after.cut[card] == (stays,)
    others = {other: cut for other, cut in made.cut.items() if other != card}
    assert {other: cut for other, cut in after.cut.items() if other != card} == others
    (after,) = read(node, wishing(gpu_node, card, enabled=False)).nodes()
    assert after.cut[card] == ()
    assert not after.usable >> card & 1


def test_after_a_failed_cut_what_is_there_is_given():
    node, gpu_node = cut_node()
    (made,) = read(node, gpu_node).nodes()
    card = next(card for card, cut in made.cut.items() if cut)
    wish = wishing(gpu_node, card, enabled=True, instances=())
    gpus = list(wish.status.gpus)
    mig = msgspec.structs.replace(gpus[card].mig, phase="RolledBack")
    gpus[card] = msgspec.structs.replace(gpus[card], mig=mig)
    (after,) = read(
        node, msgspec.structs.replace(wish, status=msgspec.structs.replace(wish.status, gpus=tuple(gpus)))
    ).nodes()
    assert after.cut[card] == made.cut[card]


def test_a_card_that_could_not_be_cut_is_given_whole():
    (node, gpu_node), *_ = built()
    wish = wishing(gpu_node, 0, enabled=True, instances=("7g.80gb@0",))
    assert usable(read(node, wish)) == 0xFE
    first, *others = wish.status.gpus
    failed = msgspec.structs.replace(first, mig=msgspec.structs.replace(first.mig, phase="RolledBack"))
    status = msgspec.structs.replace(wish.status, gpus=(failed, *others))
    assert usable(read(node, msgspec.structs.replace(wish, status=status))) == 0xFF


def test_a_new_card_that_a_strategy_means_waits_for_the_controllers_word():
    (node, gpu_node), *_ = built()
    assert not usable(read(node, gpu_node, strategy()))
    reader = read(node, gpu_node, strategy())
    assert reader.set_gpu_node(node.metadata.name, wishing(gpu_node, 0, enabled=False))
    assert usable(reader) == 1, "decided: it stays whole"
    assert reader.set_strategy("s", None)
    assert usable(reader) == 0xFF


def test_a_new_node_that_nobody_has_described_waits_too():
    (node, _), *_ = built()
    reader = FleetReader()
    reader.set_node(node.metadata.name, node)
    assert usable(reader) == 0xFF
    assert reader.set_strategy("s", strategy())
    assert usable(reader) == 0
    assert reader.set_strategy("s", strategy(gpuSelector={"model": "A100"}))
    assert usable(reader) == 0xFF
    reader.set_strategy("s", strategy())
    incapable = relabelled(node, **{mig_layouts.DEPLOY_LABEL: "false", mig_layouts.CAPABLE_LABEL: "false"})
    assert reader.set_node(node.metadata.name, incapable)
    assert usable(reader) == 0xFF


@pytest.mark.parametrize(
    "other",
    [
        strategy(generation=0),
        strategy(nodeSelector={"pool": "other"}),
        strategy(gpuSelector={"model": "A100"}),
        strategy(gpuSelector={"minMemoryGB": 90}),
        strategy(gpuSelector={"architecture": "Ampere"}),
    ],
)
def test_cards_that_no_strategy_means_are_given(other):
    (node, gpu_node), *_ = built()
    assert usable(read(node, gpu_node, other)) == 0xFF


def test_beside_mig_manager_its_word_counts():
    (node, gpu_node), *_ = built()
    config, state = mig_layouts.CONFIG_LABEL, mig_layouts.STATE_LABEL
    managed = relabelled(node)
    assert "mig-manager" in mig_layouts.left_alone(managed.metadata.labels)
    assert not mig_layouts.left_alone(node.metadata.labels)
    assert usable(read(managed, gpu_node, strategy())) == 0xFF, "left alone, as it is"
    pending = relabelled(node, **{config: "all-1g.10gb", state: "pending"})
    assert not usable(read(pending, gpu_node)), "mig-manager is about to cut them"
    done = relabelled(node, **{config: "all-1g.10gb", state: "failed"})
    assert usable(read(done, gpu_node)) == 0xFF


def test_nodes_that_offer_slices_as_gpus_are_left_alone():
    (node, gpu_node), *_ = built()
    labels = node.metadata.labels | {mig_layouts.STRATEGY_LABEL: "single"}
    single = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels))
    assert "single" in mig_layouts.left_alone(labels)
    assert usable(read(single, gpu_node, strategy())) == 0xFF


# --- cards that are shared -------------------------------------------------------------------------------


def shared(name="n1", pieces=16, label="", **offers):
    labels = {"nvidia.com/gpu.replicas": label} if label else {}
    return plain(name, 0, offers={amounts.SHARED: str(pieces), **offers}, labels=labels)


def test_a_node_that_divides_its_cards_offers_them_as_shares():
    reader = FleetReader()
    reader.set_node("n1", shared(label="2"))
    (made,) = reader.nodes()
    assert (made.shares_per_gpu, made.shape.gpu_count, made.usable) == (2, 8, 0xFF)


def test_without_a_label_its_cards_tell_how_it_divides_them(reader):
    name = next(iter(reader.nodes())).name
    reader.set_node(name, shared(name, 32))
    made = next(each for each in reader.nodes() if each.name == name)
    assert (made.shares_per_gpu, made.usable) == (4, 0xFF)
    assert made.shape.wiring.switch_links, "and it is wired as it was"


def test_only_as_many_cards_are_shared_as_the_plugin_offers():
    reader = FleetReader()
    reader.set_node("n1", shared(pieces=14, label="2"))
    assert next(iter(reader.nodes())).usable.bit_count() == 7


def test_shares_of_unknown_size_are_nobodys():
    reader = FleetReader()
    reader.set_node("n1", shared())
    assert not any(node.usable for node in reader.nodes())


def test_other_nodes_give_whole_cards_only(reader):
    assert {node.shares_per_gpu for node in reader.nodes()} == {0}


def test_who_has_a_share_is_known_where_shares_are_offered_as_such(reader):
    """Where replicas go by the name of whole cards they are more than there are cards, and cannot be booked."""
    (_, told), *_ = built()
    name = told.metadata.name
    held = (HeldDevices("ns/p", "uid", "4", replicas=1),)
    reader.set_gpu_node(name, msgspec.structs.replace(told, status=msgspec.structs.replace(told.status, held=held)))
    assert reader.reported_holders(name) == {}
    reader.set_node(name, shared(name))
    assert reader.reported_holders(name) == {"uid": DeviceSet(0b100)}
