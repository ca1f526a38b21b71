"""The device plugin's sharing configuration."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kgwe import errors
from kgwe.sharing import timeslicing
from kgwe.sharing.timeslicing import Method, Sharing

GPU = "nvidia.com/gpu"


def test_the_text_is_what_the_plugin_documents():
    assert timeslicing.render_config(Sharing(((GPU, 4),))) == (
        "version: v1\n"
        "sharing:\n"
        "  timeSlicing:\n"
        "    failRequestsGreaterThanOne: true\n"
        "    resources:\n"
        "    - name: nvidia.com/gpu\n"
        "      replicas: 4\n"
    )


def test_mps_renaming_and_the_mig_strategy_have_their_keys():
    made = timeslicing.build_document(Sharing(((GPU, 10),), Method.MPS, renames=True, refuses_many=False))
    assert made["sharing"] == {
        "mps": {
            "renameByDefault": True,
            "failRequestsGreaterThanOne": False,
            "resources": [{"name": GPU, "replicas": 10}],
        }
    }
    cut = timeslicing.build_document(Sharing((("mig-1g.10gb", 2),), mig_strategy="mixed"))
    assert cut["flags"] == {"migStrategy": "mixed"}
    assert cut["sharing"]["timeSlicing"]["resources"] == [{"name": "nvidia.com/mig-1g.10gb", "replicas": 2}]


@pytest.mark.parametrize(
    ("sharing", "word"),
    [
        (Sharing(()), "no resources"),
        (Sharing(((GPU, 1),)), "begins with 2"),
        (Sharing(((GPU, 2), ("gpu", 3))), "named twice"),
        (Sharing((("nvidia.com/GPU", 2),)), "not the name"),
        (Sharing((("x" * 60, 2),)), "not the name"),
        (Sharing((("nvidia.com/gpu.shared", 2),)), "renaming adds"),
        (Sharing(((GPU, 49),), Method.MPS), "at most 48"),
        (Sharing((("nvidia.com/mig-3g.40gb", 2),), Method.MPS), "MPS on MIG"),
        (Sharing(((GPU, 2),), Method.MPS, mig_strategy="single"), "MPS on MIG"),
        (Sharing(((GPU, 2),), mig_strategy="some"), "none of none"),
    ],
)
def test_what_the_plugin_would_refuse_is_refused_here(sharing, word):
    with pytest.raises(errors.Permanent, match=word):
        timeslicing.render_config(sharing)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("a: [", "not YAML"),
        ("[]", "a mapping"),
        ("version: v2\nsharing: {timeSlicing: {resources: []}}", "reads v1"),
        ("sharing: {timeSlicing: {resources: []}, mps: {resources: []}}", "takes mps"),
        ("sharing: {}", "timeSlicing or mps"),
        ("sharing: {timeslicing: {resources: []}}", "timeslicing is not known"),
        ("sharing: {timeSlicing: {}}", "a list of resources"),
        ("sharing: {timeSlicing: {resources: []}}", "no resources"),
        ("sharing: {timeSlicing: {replicas: 4, resources: []}}", "replicas is not known"),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu}]}}", "a whole number"),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: true}]}}", "a whole number"),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, rename: x}]}}", "ignores it"),
        ("sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2, devices: [0]}]}}", "ignores it"),
        ("sharing: {mps: {failRequestsGreaterThanOne: 3, resources: []}}", "true or false"),
    ],
)
def test_a_bad_configuration_is_told_what_is_wrong_with_it(source, word):
    with pytest.raises(errors.Permanent, match=word):
        timeslicing.parse_config(source)


def test_defaults_are_the_plugins_own():
    plain = "version: v1\nsharing: {%s: {resources: [{name: gpu, replicas: 4, devices: all}]}}"
    assert timeslicing.parse_config(plain % "timeSlicing") == Sharing((("gpu", 4),), refuses_many=False)
    assert timeslicing.parse_config(plain % "mps") == Sharing((("gpu", 4),), Method.MPS, refuses_many=True)


@examples(60)
@given(
    st.builds(
        Sharing,
        st.lists(
            st.tuples(st.sampled_from([GPU, "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"]), st.integers(0, 50)),
            max_size=3,
        ).map(tuple),
        st.sampled_from(Method),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "none", "single", "mixed"]),
    )
)
def test_what_is_written_is_read_back_and_what_is_wrong_is_never_written(sharing):
    if timeslicing.find_problems(sharing):
        with pytest.raises(errors.Permanent):
            timeslicing.build_document(sharing)
    else:
        assert timeslicing.parse_config(timeslicing.render_config(sharing)) == sharing


def test_a_node_offers_pieces_under_the_name_they_are_given():
    sharing = Sharing(((GPU, 4),), renames=True)
    assert timeslicing.offered_resources(sharing, {GPU: 8, "nvidia.com/mig-1g.10gb": 7}) == {
        "nvidia.com/gpu.shared": 32,
        "nvidia.com/mig-1g.10gb": 7,
    }


def test_a_config_map_has_a_configuration_per_key():
    made = timeslicing.build_config_map({"any": Sharing(((GPU, 4),))}, name="gpu-sharing", namespace="ops")
    assert made["metadata"] == {"name": "gpu-sharing", "namespace": "ops"}
    assert yaml.safe_load(made["data"]["any"])["sharing"]["timeSlicing"]["resources"][0]["replicas"] == 4
