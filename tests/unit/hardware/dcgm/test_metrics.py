"""The exposition reads like dcgm-exporter's and parses as Prometheus reads it."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import parser

from kgwe.hardware.dcgm import metrics
from kgwe.model.gpu import catalog, mig
from kgwe.model.simfleet import sensors, usage

H100 = catalog.CATALOGUE["H100-SXM5-80GB"]
A100 = catalog.CATALOGUE["A100-SXM4-80GB"]
L40S = catalog.CATALOGUE["L40S"]
CARD = metrics.Device(3, "GPU-aaaa", "00000000:61:00.0", H100.product, "h100-0000", "570.172.08")
SLICE = metrics.Device(0, "GPU-bbbb", "00000000:10:1C.0", A100.product, "a100-0000", "570.172.08", "3g.40gb", 2)
BUSY = usage.Usage(util=0.9, memory=0.5, tensor=0.5, dram=0.4)


def reading(model: catalog.GpuModel, how: usage.Usage, xid: int = 0) -> metrics.Reading:
    read = sensors.read_sensors(model, how, links=model.nvlink_links)
    return metrics.Reading(
        model, read, metrics.Counters(energy_mj=12_345, nvlink_bytes=67), metrics.Faults(xid), model.nvlink_links > 0
    )


def card_row(
    model: catalog.GpuModel = H100,
    how: usage.Usage = BUSY,
    device: metrics.Device = CARD,
    owner: metrics.Owner | None = None,
    xid: int = 0,
) -> metrics.Row:
    return metrics.label_block(device, owner), metrics.read_gpu_values(reading(model, how, xid), how)


def slice_row(how: usage.Usage = BUSY) -> metrics.Row:
    memory_mib = mig.GEOMETRIES["A100-80GB"].profile("3g.40gb").memory_mib
    owner = metrics.Owner("team", "pod-1", "main")
    return metrics.label_block(SLICE, owner), metrics.read_instance_values(reading(A100, how), how, memory_mib)


def parsed(*rows: metrics.Row) -> tuple[dict[str, Any], list[Any]]:
    families = list(parser.text_string_to_metric_families(metrics.render_metrics(rows).decode()))
    return {sample.name: sample for family in families for sample in family.samples}, families


def value(samples: dict[str, Any], field: metrics.Field) -> float:
    name = field.value[0]
    # The parser appends _total to counters that lack it, as Prometheus clients do.
    return float((samples.get(name) or samples[f"{name}_total"]).value)


def test_every_field_has_one_group_with_help_and_type():
    text = metrics.render_metrics([card_row(), slice_row()]).decode()
    for field in metrics.Field:
        name, kind, help_text = field.value
        assert text.count(f"# HELP {name} {help_text}\n") == 1
        assert text.count(f"# TYPE {name} {kind}\n") == 1
    _, families = parsed(card_row(), slice_row())
    assert len(families) == len(metrics.Field)


def test_a_whole_card_reads_as_used():
    samples, _ = parsed(card_row())
    assert value(samples, metrics.Field.GPU_UTIL) == 90
    assert value(samples, metrics.Field.GR_ENGINE_ACTIVE) == 0.9
    assert value(samples, metrics.Field.TENSOR_ACTIVE) == 0.5
    assert value(samples, metrics.Field.ENERGY) == 12_345
    assert H100.idle_w < value(samples, metrics.Field.POWER_USAGE) <= H100.limit_w


@pytest.mark.parametrize("model", list(catalog.CATALOGUE.values()), ids=lambda model: model.name)
@pytest.mark.parametrize("memory", [0.0, 0.333, 1.0])
def test_free_used_and_reserved_memory_add_up_to_the_card(model, memory):
    samples, _ = parsed(card_row(model, usage.Usage(memory=memory)))
    parts = [
        value(samples, field) for field in (metrics.Field.FB_FREE, metrics.Field.FB_USED, metrics.Field.FB_RESERVED)
    ]
    assert sum(parts) == model.memory_mib
    assert min(parts) >= 0


def test_utilization_of_an_instance_reads_zero_while_its_engine_is_busy():
    samples, _ = parsed(slice_row())
    assert value(samples, metrics.Field.GPU_UTIL) == 0
    assert value(samples, metrics.Field.GR_ENGINE_ACTIVE) == 0.9
    labels = samples["DCGM_FI_DEV_GPU_UTIL"].labels
    assert (labels["GPU_I_PROFILE"], labels["GPU_I_ID"]) == ("3g.40gb", "2")
    assert value(samples, metrics.Field.FB_USED) + value(samples, metrics.Field.FB_FREE) == 40192


def test_labels_are_those_of_dcgm_exporter():
    samples, _ = parsed(card_row(owner=metrics.Owner("team", "pod-1", "main")))
    assert samples["DCGM_FI_DEV_GPU_UTIL"].labels == {
        "gpu": "3",
        "UUID": "GPU-aaaa",
        "pci_bus_id": "00000000:61:00.0",
        "device": "nvidia3",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": "h100-0000",
        "DCGM_FI_DRIVER_VERSION": "570.172.08",
        "container": "main",
        "namespace": "team",
        "pod": "pod-1",
    }


def test_a_card_nobody_uses_has_no_pod_labels():
    samples, _ = parsed(card_row(how=usage.IDLE))
    assert not {"pod", "namespace", "container", "GPU_I_ID"} & samples["DCGM_FI_DEV_GPU_UTIL"].labels.keys()


def test_a_card_without_nvlink_has_no_nvlink_counter():
    assert b"NVLINK" not in metrics.render_metrics([card_row(L40S)])
    assert b"NVLINK" in metrics.render_metrics([card_row(H100)])


def test_an_xid_shows_in_the_error_fields():
    samples, _ = parsed(card_row(xid=48))
    assert value(samples, metrics.Field.XID_ERRORS) == 48
    assert value(samples, metrics.Field.ECC_DBE) == 1


def test_label_values_are_escaped():
    odd = metrics.Device(0, 'a"b\\c\nd', "", "", "", "")
    samples, _ = parsed(card_row(device=odd))
    assert samples["DCGM_FI_DEV_GPU_UTIL"].labels["UUID"] == 'a"b\\c\nd'


def test_nothing_to_tell_is_an_empty_exposition():
    assert metrics.render_metrics([]) == b""
