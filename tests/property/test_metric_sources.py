"""Properties of metric sources: no body breaks the parser, and no step is invented."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from kgwe.metrics.exposition import ExpositionReader, parse_labels
from kgwe.metrics.fields import FAMILIES, Field, reject_bad_samples
from kgwe.metrics.grid import Samples, aggregate_samples, make_usage_window, plan_steps
from kgwe.model.usage.window import QUANTITIES, Device, DeviceKey, PodKey

NAMES = sorted(FAMILIES)
LINE = 'DCGM_FI_DEV_FB_USED{UUID="GPU-1",Hostname="n1",namespace="team",pod="a"} 5\n'

fragments = st.sampled_from(
    [*'{}"\\,= \n#\0', "\r\n", "NaN", "1e400", "0x1", "UUID", "Hostname", "GPU_I_ID", *NAMES],
)
bodies = st.one_of(
    st.binary(max_size=400),
    st.lists(st.one_of(fragments, st.text(max_size=8), st.just(LINE)), max_size=40).map(
        lambda parts: "".join(parts).encode("utf-8", "surrogatepass")
    ),
)


@given(bodies)
@example(b"DCGM_FI_DEV_FB_USED{" * 1000)
@example(b'DCGM_FI_DEV_FB_USED{UUID="\xff\xfe",Hostname="\x80"} 1\n')
def test_any_body_is_read_without_an_error_and_good_lines_survive(body):
    reader = ExpositionReader()
    scrape = reader.read(body + b"\n" + LINE.replace("GPU-1", "GPU-good").encode())
    assert "GPU-good" in {device.key.uuid for device in scrape.devices}
    assert scrape.values.shape == (len(scrape.devices), len(Field))
    known = scrape.values[~np.isnan(scrape.values)]
    assert (known >= 0).all()
    assert np.isfinite(known).all()
    assert all(count > 0 for count in scrape.rejected.values())


label_values = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=12
)


@given(
    st.dictionaries(st.sampled_from(["UUID", "Hostname", "pod", "namespace", "modelName"]), label_values, min_size=1)
)
def test_labels_are_read_as_the_reference_parser_reads_them(labels):
    escaped = {
        name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in labels.items()
    }
    text = ",".join(f'{name}="{value}"' for name, value in escaped.items())
    (family,) = text_string_to_metric_families(f"m{{{text}}} 1\n")
    assert parse_labels(text) == family.samples[0].labels == labels


values = st.one_of(st.floats(-2, 2), st.sampled_from([math.nan, math.inf, -math.inf, 1.005, 2e9]))


@given(st.lists(st.lists(values, min_size=len(Field), max_size=len(Field)), min_size=1, max_size=5))
def test_every_sample_is_kept_or_counted_once(rows):
    cells = np.array(rows, dtype=np.float32)
    present = np.ones(cells.shape, dtype=np.bool_)
    rejected = reject_bad_samples(cells, present)
    assert int((~np.isnan(cells)).sum()) + sum(rejected.values()) == cells.size
    assert not (cells < 0).any()
    assert not (cells[:, : Field.DRAM + 1] > 1).any()


@given(st.lists(st.tuples(st.integers(-50_000, 350_000), st.floats(0, 1)), max_size=30))
def test_every_known_step_lies_within_its_samples(samples):
    steps = plan_steps(300, 300, 60)
    rows = np.zeros(len(samples), dtype=np.int64)
    times_s = np.array([at for at, _ in samples], dtype=np.float64) / 1000
    cells = np.full((len(samples), len(Field)), np.nan, dtype=np.float32)
    cells[:, Field.ENGINE] = [share for _, share in samples]
    fields = aggregate_samples(Samples(rows, times_s, cells), steps, 1)
    for column in range(steps.count):
        inside = [share for at, share in samples if column * 60_000 < at <= column * 60_000 + 60_000]
        found = fields[Field.ENGINE][0, column]
        assert np.isnan(found) if not inside else min(inside) - 1e-6 <= found <= max(inside) + 1e-6


cells = st.tuples(st.sampled_from([None, "a", "b"]), st.sampled_from(["", "5"]), st.integers(1, 300), st.floats(0, 1))


@given(st.lists(cells, max_size=30))
def test_a_window_names_only_sampled_devices_and_agrees_on_sharers(samples):
    keys = [DeviceKey("n1", "GPU-1", part, PodKey("team", pod) if pod else None) for pod, part, _, _ in samples]
    devices = [Device(key) for key in dict.fromkeys(keys)]
    rows = np.array([[device.key for device in devices].index(key) for key in keys], dtype=np.int64)
    values = np.full((len(samples), len(Field)), np.nan, dtype=np.float32)
    values[:, Field.ENGINE] = [share for *_, share in samples]
    steps = plan_steps(300, 300, 60)
    times_s = np.array([at for _, _, at, _ in samples], dtype=np.float64)
    fields = aggregate_samples(Samples(rows, times_s, values), steps, len(devices))
    window = make_usage_window(devices, fields, steps, {})
    assert {device.key for device in window.devices} <= set(keys)
    assert all(getattr(window, name).shape == (len(window.devices), steps.count) for name in QUANTITIES)
    for device in window.devices:
        others = {each.key.pod for each in devices if each.key.pod and each.key[:3] == device.key[:3]}
        assert 1 <= device.sharers <= max(len(others), 1)
