"""Workloads as messages."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgwe import errors
from kgwe.model.usage.description import WorkloadDescription
from kgwe.optimizerapi.messages import decode_workload, encode_workload
from kgwe.proto import optimizer_pb2 as pb

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.builds(
        WorkloadDescription,
        namespace=TEXT,
        name=TEXT,
        image=TEXT,
        command=st.lists(TEXT, max_size=3).map(tuple),
        labels=st.dictionaries(TEXT, TEXT, max_size=3),
        environment=st.dictionaries(TEXT, TEXT, max_size=3),
        pods=st.integers(1, 1000),
        milli_gpus=st.integers(0, 64000),
        user=TEXT.filter(bool),
        declared_s=st.none() | st.floats(1, 1e9),
        submitted_s=st.floats(1, 1e10),
        model_billions=st.none() | st.floats(0.1, 1000),
    )
)
def test_a_workload_survives_the_wire(workload):
    wire = pb.Workload.FromString(encode_workload(workload).SerializeToString())
    assert decode_workload(wire, now_s=5.0) == workload


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.Workload(declared_duration_s=math.nan), "declared_duration_s"),
        (pb.Workload(declared_duration_s=-1), "declared_duration_s"),
        (pb.Workload(submitted_s=math.inf), "submitted_s"),
        (pb.Workload(image="x" * 5000), "image"),
        (pb.Workload(command=["x"] * 300), "command"),
        (pb.Workload(pods=2**32 - 1), "pods"),
    ],
)
def test_values_out_of_range_are_refused_with_the_field(message, field):
    with pytest.raises(errors.Permanent, match=field):
        decode_workload(message, now_s=5.0)


def test_absent_values_have_defaults():
    workload = decode_workload(pb.Workload(namespace="ml"), now_s=5.0)
    assert (workload.pods, workload.user, workload.submitted_s, workload.declared_s) == (1, "ml", 5.0, None)
