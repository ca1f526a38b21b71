"""The text format: wanted families only, and one bad line costs one line."""

from __future__ import annotations

import numpy as np
import pytest

from kgwe import errors
from kgwe.metrics.exposition import ExpositionReader, parse_labels
from kgwe.metrics.fields import Field
from kgwe.model.usage.window import PodKey

GPU = 'gpu="0",UUID="GPU-1",modelName="NVIDIA H100 80GB HBM3",Hostname="n1"'
POD = f'{GPU},container="main",namespace="team",pod="train"'


def read(*lines: str):
    return ExpositionReader().read("\n".join(lines).encode() + b"\n")


def test_a_row_has_the_fields_of_all_its_lines():
    scrape = read(
        "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).",
        f"DCGM_FI_DEV_FB_USED{{{POD}}} 1024",
        f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{POD}}} 0.25",
        f"DCGM_FI_DEV_GPU_UTIL{{{POD}}} 30",
        f"DCGM_FI_DEV_XID_ERRORS{{{POD}}} 0",
    )
    (device,) = scrape.devices
    assert (device.key.node, device.key.uuid, device.key.pod) == ("n1", "GPU-1", PodKey("team", "train"))
    assert device.model == "NVIDIA H100 80GB HBM3"
    assert scrape.values[0, Field.USED] == 1024
    assert scrape.values[0, Field.ENGINE] == 0.25
    assert scrape.values[0, Field.UTIL] == np.float32(0.3)
    assert np.isnan(scrape.values[0, Field.POWER])
    assert scrape.rejected == {}


def test_a_bad_sample_is_counted_and_others_are_kept():
    scrape = read(
        f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{POD}}} NaN",
        f"DCGM_FI_PROF_DRAM_ACTIVE{{{POD}}} -0.1",
        f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{POD}}} 1.5",
        f"DCGM_FI_DEV_POWER_USAGE{{{POD}}} 140737488355328",
        f"DCGM_FI_DEV_FB_FREE{{{POD}}} +Inf",
        f"DCGM_FI_DEV_FB_USED{{{POD}}} 7",
        f"DCGM_FI_DEV_FB_USED{{{POD}}} 8",
        f"DCGM_FI_DEV_FB_TOTAL{{{POD}}} 1e300",
    )
    assert scrape.rejected == {"nan": 1, "negative": 1, "out_of_range": 4, "duplicate": 1}
    assert np.flatnonzero(~np.isnan(scrape.values[0])).tolist() == [Field.USED]
    assert scrape.values[0, Field.USED] == 7


def test_a_share_a_little_above_one_is_one():
    scrape = read(f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{POD}}} 1.005")
    assert scrape.values[0, Field.ENGINE] == 1.0
    assert scrape.rejected == {}


@pytest.mark.parametrize(
    "line",
    [
        "DCGM_FI_DEV_FB_USED 5",
        "DCGM_FI_DEV_FB_USED{",
        f"DCGM_FI_DEV_FB_USED{{{POD} 5",
        f"DCGM_FI_DEV_FB_USED{{{POD}}}",
        f"DCGM_FI_DEV_FB_USED{{{POD}}} five",
        f"DCGM_FI_DEV_FB_USED{{{POD}}} 1_000",
        f"DCGM_FI_DEV_FB_USED{{{POD}}} 5 tomorrow",
        'DCGM_FI_DEV_FB_USED{UUID="GPU-1",Hostname="n1",broken} 5',
        'DCGM_FI_DEV_FB_USED{UUID="GPU-1",Hostname="n1} 5',
        'DCGM_FI_DEV_FB_USED{UUID="GPU-1"} 5',
        'DCGM_FI_DEV_FB_USED{Hostname="n1"} 5',
    ],
)
def test_a_malformed_line_is_counted_and_the_next_one_is_read(line):
    scrape = read(line, f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{POD}}} 0.5")
    assert scrape.rejected == {"malformed": 1}
    assert len(scrape.devices) == 1


def test_label_values_may_contain_braces_quotes_and_commas():
    labels = parse_labels(r'a="}{,\"x\\",b="line\nbreak",')
    assert labels == {"a": '}{,"x\\', "b": "line\nbreak"}
    scrape = read(r'DCGM_FI_DEV_FB_USED{UUID="GPU-1",Hostname="n}1",modelName="a\"} 3"} 5')
    assert scrape.devices[0].key.node == "n}1"
    assert scrape.values[0, Field.USED] == 5


def test_a_time_that_the_exporter_wrote_is_kept():
    scrape = read(f"DCGM_FI_DEV_FB_USED{{{POD}}} 5 1800000000500")
    assert scrape.at_s == 1_800_000_000.5


def test_an_empty_body_has_no_rows():
    assert read("").values.shape == (0, len(Field))


def test_the_agents_own_metrics_are_read_in_the_same_units():
    card = 'gpu_uuid="GPU-1",node="n1",model="NVIDIA L4"'
    scrape = read(
        f"kgwe_gpu_engine_active_percent{{{card}}} 50",
        f"kgwe_gpu_memory_used_bytes{{{card}}} 1073741824",
        f'kgwe_gpu_pod_share_percent{{{card},namespace="team",pod="a"}} 12.5',
        f'kgwe_mig_instance_utilization_percent{{{card},profile="1g.5gb",mig_uuid="MIG-1",gpu_instance_id="7"}} 10',
    )
    rows = {(d.key.instance, d.key.pod, d.mig_profile): scrape.values[i] for i, d in enumerate(scrape.devices)}
    assert rows["", None, ""][Field.ENGINE] == 0.5
    assert rows["", None, ""][Field.USED] == 1024
    assert rows["", PodKey("team", "a"), ""][Field.ENGINE] == 0.125
    assert rows["7", None, "1g.5gb"][Field.ENGINE] == np.float32(0.1)


def test_a_body_about_too_many_devices_is_refused():
    lines = [f'DCGM_FI_DEV_FB_USED{{UUID="GPU-{number}",Hostname="n1"}} 5' for number in range(11)]
    reader = ExpositionReader(max_devices=10)
    assert len(reader.read("\n".join(lines[:10]).encode()).devices) == 10
    with pytest.raises(errors.Transient, match="more than 10 devices"):
        reader.read("\n".join(lines).encode())


def test_reading_stops_when_the_body_is_no_longer_wanted():
    looks = iter([True, True, False])
    with pytest.raises(errors.Transient, match="no longer wanted"):
        ExpositionReader().read(b"# a comment\n" * 100_000, lambda: next(looks))
