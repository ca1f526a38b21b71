"""What the exporter shows, as Prometheus reads it."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import httpx2
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser
from tests.support.builders.samples import A100, H100, card, cut_into, machine, reading, to_card
from tests.support.examples import examples

from kgwe.apps.agent.metrics import families
from kgwe.apps.agent.metrics.exporter import Exporter, ExporterApp
from kgwe.apps.agent.metrics.sampler import Sampler, Surroundings
from kgwe.model.gpu.driver_data import Faults, LinkErrors, Process, Reading, Throttle
from kgwe.model.telemetry.sample import Activity
from kgwe.telemetry import http

MIB = 1024 * 1024
FULL: dict[str, Any] = {
    "util": 0.5,
    "memory_used_mib": 1000,
    "memory_total_mib": 81_559,
    "power_w": 350.5,
    "power_limit_w": 700.0,
    "energy_j": 12_345.5,
    "gpu_c": 60,
    "memory_c": 70,
    "sm_mhz": 1980,
    "memory_mhz": 2619,
    "throttle": Throttle.POWER_CAP,
    "pcie_tx_bytes_per_s": 10**9,
    "pcie_rx_bytes_per_s": 2 * 10**9,
    "nvlink_tx_bytes": ((0, 100), (1, 200)),
    "nvlink_rx_bytes": ((0, 1), (1, 2)),
    "processes": (Process(7, 300, 0.25),),
    "faults": Faults(ecc_corrected=3, ecc_uncorrected=1, pcie_replays=4, links=(LinkErrors(0, 1, 2, 3),)),
}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def samples(text: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    found = {}
    for family in parser.text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, f"{sample.name} twice with the same labels"
            found[key] = sample.value
    return found


def values(text: bytes, name: str, **labels: str) -> list[float]:
    wanted = set(labels.items())
    return [value for (found, pairs), value in samples(text).items() if found == name and wanted <= pairs]


def shown(on, *readings: Reading, around: Surroundings | None = None, before: tuple[Reading, ...] = ()) -> bytes:
    clock = Clock()
    out = Exporter("node-1", clock=clock)
    out.set_machine(on)
    out.set_health({device.uuid: True for device in on.devices})
    keeps = Sampler()
    if before:
        keeps.take(on, before, 99.0, around)
    out.set_sample(keeps.take(on, readings, 100.0, around))
    return out.render()


def everything() -> bytes:
    on = machine(
        card(0, H100, links=to_card(1, range(2))),
        card(1, H100, links=to_card(0, range(2))),
        card(2, A100, cut=cut_into("3g.40gb@0", "1g.10gb@4", index=2)),
    )
    around = Surroundings(
        pods={7: "team/a"},
        activities={
            ("GPU-0", None): Activity(0.4, 0.3, 0.2, 0.1),
            ("GPU-2", 1): Activity(0.4, 0.3, 0.2, 0.1),
        },
        holders={"MIG-2-0": ["team/b"]},
    )
    cut = reading(2, instance_memory_mib=((1, 500), (2, 0)), memory_used_mib=600, gpu_c=50)
    before = (reading(0, **{**FULL, "nvlink_tx_bytes": ((0, 0), (1, 0)), "nvlink_rx_bytes": ((0, 0), (1, 0))}),)
    return shown(on, reading(0, **FULL), reading(1), cut, around=around, before=before)


def test_every_metric_can_be_shown_and_every_one_shown_is_declared():
    text = everything()
    names = set(re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE))
    assert names == {family.name for family in families.ALL}
    assert len(names) == len(families.ALL)
    for line in text.decode().splitlines():
        if not line.startswith("#"):
            assert 'node="node-1"' in line, line


def test_units_are_those_of_the_names():
    text = everything()
    card_0 = {"gpu_uuid": "GPU-0", "node": "node-1", "model": H100.product}
    expected = {
        "kgwe_gpu_utilization_percent": 50,
        "kgwe_gpu_tensor_active_percent": 20,
        "kgwe_gpu_memory_used_bytes": 1000 * MIB,
        "kgwe_gpu_memory_total_bytes": 81_559 * MIB,
        "kgwe_gpu_temperature_celsius": 60,
        "kgwe_gpu_power_watts": 350.5,
        "kgwe_gpu_health_status": 1,
        "kgwe_gpu_energy_joules_total": 12_345.5,
        "kgwe_gpu_sm_clock_hertz": 1.98e9,
    }
    for name, value in expected.items():
        assert values(text, name, **card_0) == [value], name
    assert values(text, "kgwe_pcie_bandwidth_gbps", **card_0, direction="tx") == [8]
    assert values(text, "kgwe_pcie_bandwidth_gbps", **card_0, direction="rx") == [16]
    # 300 bytes in a second.
    assert values(text, "kgwe_nvlink_traffic_gbps", **card_0, direction="tx") == [2.4e-6]
    pair = {"gpu_uuid_1": "GPU-0", "gpu_uuid_2": "GPU-1", "node": "node-1"}
    assert values(text, "kgwe_nvlink_bandwidth_gbps", **pair) == [400]
    assert values(text, "kgwe_nvlink_bandwidth_gbps", gpu_uuid_1="GPU-1") == []
    assert values(text, "kgwe_gpu_count", model=H100.product) == [2]
    assert values(text, "kgwe_gpu_throttled", gpu_uuid="GPU-0", reason="power_cap") == [1]
    assert values(text, "kgwe_gpu_throttled", gpu_uuid="GPU-0", reason="idle") == [0]


def test_instances_have_labels_of_their_own():
    text = everything()
    one = {"gpu_uuid": "GPU-2", "node": "node-1", "profile": "3g.40gb"}
    assert values(text, "kgwe_mig_instance_count", **one) == [1]
    instance = {**one, "mig_uuid": "MIG-2-0", "gpu_instance_id": "1"}
    assert values(text, "kgwe_mig_instance_utilization_percent", **instance) == [40]
    assert values(text, "kgwe_mig_instance_memory_used_bytes", **instance) == [500 * MIB]
    assert values(text, "kgwe_mig_instance_in_use", **instance) == [1]
    # Not measured by anybody, so not shown.
    assert values(text, "kgwe_mig_instance_utilization_percent", gpu_instance_id="2") == []
    assert values(text, "kgwe_gpu_utilization_percent", gpu_uuid="GPU-2") == []


def test_what_is_not_known_is_absent_and_never_zero():
    text = shown(machine(card(0)), reading(0)).decode()
    names = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names == {
        "kgwe_gpu_count",
        "kgwe_gpu_health_status",
        "kgwe_gpu_memory_total_bytes",
        "kgwe_gpu_unmeasured_percent",
        "kgwe_exporter_sample_age_seconds",
    }


def test_health_is_absent_where_nobody_knows_it():
    out = Exporter("node-1", clock=Clock())
    on = machine(card(0), card(1), card(2))
    out.set_machine(on)
    out.set_health({"GPU-0": False, "GPU-1": None})
    out.set_sample(Sampler().take(on, [reading(0), reading(1), reading(2)], 100.0))
    assert values(out.render(), "kgwe_gpu_health_status") == [0]
    assert values(out.render(), "kgwe_gpu_health_status", gpu_uuid="GPU-0") == [0]


@examples(50)
@given(
    util=st.one_of(st.none(), st.floats(0, 1)),
    busy=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=6),
    owned=st.integers(0, 6),
)
def test_the_percentages_of_a_card_add_up_to_100_as_they_are_written(util, busy, owned):
    processes = tuple(Process(pid, 10, share) for pid, share in enumerate(busy))
    around = Surroundings(pods={pid: f"team/pod-{pid % 3}" for pid in range(owned)})
    text = shown(machine(card(0)), reading(0, util=util, processes=processes), around=around).decode()
    parts = re.findall(r"^kgwe_gpu_(?:pod_share|idle|unattributed|unmeasured)_percent\{.*\} (\S+)$", text, re.MULTILINE)
    assert sum(map(Fraction, parts)) == 100


def test_old_samples_vanish_instead_of_freezing():
    clock = Clock()
    out = Exporter("node-1", stale_after_s=30, clock=clock)
    assert out.problem() == "there is no sample yet"
    assert out.render() == b""
    on = machine(card(0))
    out.set_machine(on)
    out.set_sample(Sampler().take(on, [reading(0, util=0.5)], clock.now))
    assert values(out.render(), "kgwe_gpu_utilization_percent") == [50]
    assert out.problem() is None
    clock.now += 31
    assert out.problem() == "the newest sample is 31 s old"
    assert values(out.render(), "kgwe_gpu_utilization_percent") == []
    assert values(out.render(), "kgwe_exporter_sample_age_seconds") == [31]
    out.set_sample(Sampler().take(on, [reading(0, util=0.6)], clock.now))
    assert values(out.render(), "kgwe_gpu_utilization_percent") == [60]


def test_a_machine_that_is_cut_anew_has_new_labels():
    out = Exporter("node-1", clock=Clock())
    for layout, profiles in ((("7g.80gb@0",), ["7g.80gb"]), (("3g.40gb@0", "3g.40gb@4"), ["3g.40gb", "3g.40gb"])):
        on = machine(card(0, A100, cut=cut_into(*layout)))
        out.set_machine(on)
        out.set_sample(Sampler().take(on, [reading(0)], 100.0))
        found = re.findall(
            r'^kgwe_mig_instance_memory_total_bytes\{.*profile="([^"]+)"', out.render().decode(), re.MULTILINE
        )
        assert found == profiles


def test_a_sample_older_than_the_machine_leaves_no_labels_behind():
    out = Exporter("node-1", clock=Clock())
    before = machine(card(0, A100, cut=cut_into("7g.80gb@0")))
    after = machine(card(0, A100, cut=cut_into("3g.40gb@0")))
    out.set_machine(before)
    out.set_sample(Sampler().take(before, [reading(0)], 100.0))
    out.set_machine(after)
    out.render()
    out.set_sample(Sampler().take(after, [reading(0)], 100.0))
    assert 'profile="7g.80gb",mig_uuid' not in out.render().decode()


def test_instances_that_come_into_use_and_go_out_of_it_are_counted():
    out = Exporter("node-1", clock=Clock())
    on = machine(card(0, A100, cut=cut_into("3g.40gb@0", "3g.40gb@4")))
    out.set_machine(on)
    for held in ([], ["MIG-0-0"], ["MIG-0-0", "MIG-0-1"], ["MIG-0-1"], ["MIG-0-1"]):
        around = Surroundings(holders={uuid: ["team/a"] for uuid in held})
        out.set_sample(Sampler().take(on, [reading(0)], 100.0, around))
    assert values(out.render(), "kgwe_mig_allocations_total", profile="3g.40gb") == [2]
    assert values(out.render(), "kgwe_mig_releases_total", profile="3g.40gb") == [1]


def test_names_that_need_escaping_are_escaped():
    around = Surroundings(pods={7: 'team/a"b\\c'})
    text = shown(machine(card(0)), reading(0, util=0.5, processes=(Process(7, 1, 0.5),)), around=around)
    assert values(text, "kgwe_gpu_pod_share_percent", namespace="team", pod='a"b\\c') == [50]


async def test_metrics_and_health_over_http():
    clock = Clock()
    out = Exporter("node-1", clock=clock)
    app = ExporterApp(out, more=lambda: b"own_metric 1\n")
    async with http.serving(app, http.Address("127.0.0.1", 0)) as port, httpx2.AsyncClient() as client:
        base = f"http://127.0.0.1:{port}"
        starting = await client.get(f"{base}/health")
        assert (starting.status_code, starting.text) == (503, "there is no sample yet\n")
        assert (await client.get(f"{base}/healthz")).status_code == 200
        on = machine(card(0))
        out.set_machine(on)
        out.set_sample(Sampler().take(on, [reading(0, util=0.5)], clock.now))
        assert (await client.get(f"{base}/health")).text == "ok\n"
        metrics = await client.get(f"{base}/metrics")
        assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert values(metrics.content, "kgwe_gpu_utilization_percent") == [50]
        assert values(metrics.content, "own_metric") == [1]
        assert (await client.get(f"{base}/other")).status_code == 404


def test_the_documentation_lists_exactly_what_is_emitted():
    page = (Path(__file__).parents[4] / "docs" / "telemetry.md").read_text()
    listed = re.findall(r"^\| `(kgwe_\w+)` \| (\w+) \|", page, re.MULTILINE)
    assert sorted(listed) == sorted((family.name, family.kind) for family in families.ALL)
