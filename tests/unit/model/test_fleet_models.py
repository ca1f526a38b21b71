"""The models that come with KGWE: all of them parse, and their wiring is that of real machines."""

from __future__ import annotations

import collections
import csv
import json
import os
import re
from pathlib import Path

import pytest

from kgwe.kube.api.kgwe import mig as api_mig
from kgwe.local.fleet import models
from kgwe.model.gpu import catalog, mig, topology
from kgwe.model.simfleet import inventory

DATA = Path(os.environ.get("KGWE_DATA", Path(__file__).parents[4] / "shared" / "data"))
NAMES = models.list_names()

LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def machine(name: str, pool: int = 0):
    return models.load(name).pools[pool].machine


def data(*parts: str) -> Path:
    path = DATA.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no reference data: {path} is absent (set KGWE_DATA to the folder that holds it)")
    return path


def real_machine(name: str):
    machines = json.loads(data("topology", "machines.json").read_text())["machines"]
    return next(m for m in machines if m["name"].startswith(name))


def test_the_models_promised_are_there():
    assert set(NAMES) >= {"dgx-h100", "hgx-a100", "l40s", "gb200-nvl72", "v100-cube", "mixed"}


@pytest.mark.parametrize("name", NAMES)
def test_every_model_parses_and_describes_itself(name):
    fleet = models.load(name)
    assert fleet.name == name
    assert fleet.description
    assert len(inventory.expand_fleet(fleet, 40)) == 40


@pytest.mark.parametrize("name", NAMES)
def test_wiring_is_symmetric(name):
    for pool in models.load(name).pools:
        table = pool.machine.wiring.matrix()
        assert table == [list(row) for row in zip(*table, strict=True)]


@pytest.mark.parametrize("name", NAMES)
def test_wiring_is_fully_known(name):
    for pool in models.load(name).pools:
        assert "?" not in {cell for row in pool.machine.wiring.matrix() for cell in row}


@pytest.mark.parametrize(
    ("name", "links", "version"), [("dgx-h100", 18, 4), ("hgx-a100", 12, 3), ("gb200-nvl72", 18, 5)]
)
def test_an_nvswitch_joins_every_card_to_every_other(name, links, version):
    wires = machine(name).wiring
    cards = range(len(wires.slots))
    assert {wires.nvlinks(a, b) for a in cards for b in cards if a != b} == {links}
    assert wires.nvlink_version == version
    assert not any(wires.peers(card) for card in cards)


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("v100-cube", "8xV100-SXM2 hybrid cube mesh"),
        ("hgx-a100", "AWS p4d.24xlarge"),
        ("dgx-h100", "HGX H100 2-socket"),
        ("l40s", "8-GPU PCIe, PIX pairs, 2 sockets"),
    ],
)
def test_wiring_equals_that_of_the_real_machine(name, real):
    want = real_machine(real)
    wires = machine(name).wiring
    assert wires.matrix() == want["link"]
    assert [slot.numa for slot in wires.slots] == want["numa_of_gpu"]


def test_the_cube_mesh_uses_all_six_links_of_every_card():
    wires = machine("v100-cube").wiring
    assert [sum(wires.peers(card).values()) for card in range(8)] == [6, 6, 6, 6, 6, 6, 6, 6]
    assert collections.Counter(links for _, _, links in wires.mesh) == {1: 8, 2: 8}


def test_every_h100_has_a_network_card_on_its_own_pcie_switch():
    wires = machine("dgx-h100").wiring
    near = [[nic for nic in range(8) if wires.nic_relation(nic, card) == topology.Relation.PIX] for card in range(8)]
    assert near == [[0], [1], [2], [3], [4], [5], [6], [7]]


def test_an_l40s_has_no_nvlink():
    model = machine("l40s").model
    assert (model.nvlink_links, model.nvlink_gb_per_s, machine("l40s").wiring.nvlink_version) == (0, 0, 0)


@pytest.mark.parametrize(("name", "gb_per_s"), [("v100-cube", 150), ("hgx-a100", 300), ("dgx-h100", 450)])
def test_nvlink_bandwidth_is_per_card_and_direction(name, gb_per_s):
    assert machine(name).model.nvlink_gb_per_s == gb_per_s


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_legal_kubernetes_labels(name):
    for node in inventory.expand_fleet(models.load(name), 64):
        for key, value in inventory.labels(node).items():
            prefix, slash, last = key.rpartition("/")
            assert LABEL_NAME.fullmatch(last), key
            assert not slash or (LABEL_PREFIX.fullmatch(prefix) and len(prefix) <= 253), key
            assert LABEL_VALUE.fullmatch(value), (key, value)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", node.name)


@pytest.mark.parametrize("name", NAMES)
def test_the_memory_label_is_a_plain_integer(name):
    for node in inventory.expand_fleet(models.load(name), 20):
        assert int(inventory.labels(node)["nvidia.com/gpu.memory"]) == node.model.memory_mib


# --- MIG tables -----------------------------------------------------------------------------------------


def test_mig_geometry_equals_the_published_tables():
    named = {"RTX PRO 6000 Blackwell 96GB": "RTX-PRO-6000"}
    found = set()
    with data("mig", "mig_profiles_placements.csv").open() as file:
        for row in csv.DictReader(file):
            geometry = mig.GEOMETRIES[named.get(row["gpu"], re.split(r" [(/]", row["gpu"])[0])]
            profile = geometry.profiles[row["profile"]]
            assert geometry.units == int(row["gpu_memory_units"])
            assert (profile.compute, profile.units) == (int(row["compute_slices"]), int(row["memory_units"]))
            assert profile.starts == tuple(map(int, row["allowed_starts"].split()))
            assert profile.limit == int(row["max_instances"])
            found.add((geometry.name, profile.name))
    assert found == {(g.name, name) for g in mig.GEOMETRIES.values() for name in g.profiles}


def test_every_profile_can_be_named_in_a_manifest():
    assert {name for g in mig.GEOMETRIES.values() for name in g.profiles} <= set(api_mig.PROFILES)


def test_instances_of_a_card_never_have_more_memory_than_the_card():
    for model in catalog.CATALOGUE.values():
        if model.geometry:
            for profile in model.geometry.profiles.values():
                assert profile.memory_mib * (model.geometry.units // profile.units) <= model.memory_mib
