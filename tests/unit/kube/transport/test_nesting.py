"""Objects nested as deep as the API server stores them: they are read, and they hide no other."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.builders.things import Json

from kgwe import errors
from kgwe.apps.mig import demand
from kgwe.kube.api import resources
from kgwe.kube.client.client import KubeClient
from kgwe.kube.client.manifests import load_manifests
from kgwe.kube.transport import nesting
from kgwe.kube.transport.codec import JsonCodec
from kgwe.kube.transport.httpx_transport import HttpxTransport

# The API server refuses what is nested deeper than 10,000 levels.
DEPTHS = (150, 900, 960, 990, 1000, 3000, 9900)
OPEN_CLOSE = (('{"a":', "}"), ("[", "]"), ('[{"]":', "}]"))


def deep(levels: int, opening: str = '{"a":', closing: str = "}") -> str:
    return opening * levels + "1" + closing * levels


def workload(name: str, inner: str) -> bytes:
    meta = json.dumps({"name": name, "namespace": "n", "uid": f"u-{name}", "resourceVersion": "7"})
    spec = f'{{"gpuRequirements":{{"count":1}},"podTemplate":{{"spec":{{"containers":[],"zz":{inner}}}}}}}'
    return f'{{"metadata":{meta},"spec":{spec}}}'.encode()


def claim(inner: str) -> bytes:
    meta = '{"name":"deep","namespace":"n","uid":"u-deep","resourceVersion":"7"}'
    config = f'[{{"opaque":{{"driver":"gpu.nvidia.com","parameters":{{"a":{inner}}}}}}}]'
    held = '[{"request":"g","driver":"gpu.nvidia.com","pool":"n1","device":"gpu-0"}]'
    status = f'{{"allocation":{{"devices":{{"results":{held}}}}}}}'
    return f'{{"metadata":{meta},"spec":{{"devices":{{"config":{config}}}}},"status":{status}}}'.encode()


def levels_of(value: Any) -> int:
    level, count = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        count += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return count


# --- codec ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", DEPTHS)
@pytest.mark.parametrize(("opening", "closing"), OPEN_CLOSE)
def test_a_deep_object_hides_no_other_in_a_list(levels: int, opening: str, closing: str) -> None:
    codec = JsonCodec(resources.GPU_WORKLOAD.type)
    items = b",".join((workload("a", "1"), workload("deep", deep(levels, opening, closing)), workload("b", "1")))
    page = codec.page(b'{"metadata":{"resourceVersion":"9"},"items":[' + items + b"]}")
    assert [obj.metadata.name for obj, _ in page.items] == ["a", "deep", "b"]
    assert page.version == "9"


@pytest.mark.parametrize("levels", DEPTHS)
def test_a_deep_object_next_to_one_of_another_shape_is_read(levels: int) -> None:
    codec = JsonCodec(resources.GPU_WORKLOAD.type)
    wrong = b'{"metadata":{"name":"wrong","namespace":"n","uid":"u"},"spec":5}'
    items = b",".join((wrong, workload("deep", deep(levels))))
    page = codec.page(b'{"metadata":{"resourceVersion":"9"},"items":[' + items + b"]}")
    assert [obj.metadata.name for obj, _ in page.items] == ["deep"]
    assert [identity.name for identity, _ in page.unreadable if identity is not None] == ["wrong"]


@pytest.mark.parametrize("levels", DEPTHS)
@pytest.mark.parametrize("type_", ["ADDED", "MODIFIED", "DELETED"])
def test_a_deep_object_in_an_event_is_read_and_known_by_name(levels: int, type_: str) -> None:
    codec = JsonCodec(resources.GPU_WORKLOAD.type)
    raw = workload("deep", deep(levels))
    event = codec.event(b'{"type":"%s","object":%s}' % (type_.encode(), raw))
    assert event.type == type_
    for given_bytes in (event.object, raw):
        assert codec.object(given_bytes).metadata.name == "deep"
        assert codec.identity(given_bytes).key == "n/deep"


def test_a_cut_template_is_deeper_than_templates_may_be() -> None:
    """So it is refused as a whole, and its cut form never runs."""
    codec = JsonCodec(resources.GPU_WORKLOAD.type)
    event = codec.event(b'{"type":"ADDED","object":%s}' % workload("deep", deep(9000)))
    assert levels_of(codec.object(event.object).spec.podTemplate) > nesting.MOST_IN_TEMPLATE


@pytest.mark.parametrize("levels", DEPTHS)
def test_devices_of_a_claim_with_deep_parameters_stay_allocated(levels: int) -> None:
    codec = JsonCodec(resources.RESOURCE_CLAIM.type)
    found = codec.object(claim(deep(levels, "[", "]")))
    assert found.status.allocation is not None
    assert [each.device for each in found.status.allocation.devices.results] == ["gpu-0"]


# --- informer -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [Json()], ids=["Json"])
@pytest.mark.parametrize("levels", [980, 9000])
async def test_an_informer_outlives_deep_objects(things, server, seen, running, levels):
    state = server.thing("deep", other="DEEP")
    whole = server.encoding.page(list(server.objects.values()), str(server.version))
    page = whole.replace(b'"DEEP"', deep(levels).encode())
    server.answers.append(lambda _: httpx2.Response(200, content=page))
    async with running(things):
        assert await seen.until(1) == ["new n/deep"]
        event = server.encoding.event("MODIFIED", server.thing("deep", other="DEEP"))
        server.send_bytes(event.replace(b'"DEEP"', deep(levels, "[", "]").encode()))
        server.send("ADDED", server.thing("a"))
        event = server.encoding.event("DELETED", state)
        server.send_bytes(event.replace(b'"DEEP"', deep(levels).encode()))

        assert (await seen.until(4))[1:] == ["changed n/deep", "new n/a", "gone n/deep"]
        assert server.lists == 1


# --- other readers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", DEPTHS)
async def test_a_client_reads_replies_that_are_deep(levels: int) -> None:
    raw = workload("deep", deep(levels))

    def answer(request: httpx2.Request) -> httpx2.Response:
        one = request.url.path.endswith("/deep")
        return httpx2.Response(200, content=raw if one else b'{"items":[' + raw + b"," + raw + b"]}")

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url="https://cluster.example")
    client = KubeClient(HttpxTransport(http))
    assert (await client.get(resources.GPU_WORKLOAD, "deep", "n")).metadata.name == "deep"
    assert len(await client.list(resources.GPU_WORKLOAD)) == 2


@pytest.mark.parametrize("levels", [900, 9000])
def test_the_demand_for_slices_is_worked_out_next_to_a_deep_template(levels: int) -> None:
    found = JsonCodec(resources.GPU_WORKLOAD.type).object(workload("deep", deep(levels)))
    assert demand.allowed_nodes(found, demand.Nodes([], {})) == frozenset()


def test_a_deep_manifest_is_refused_with_its_name(tmp_path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text(deep(5000, "[", "]"))
    with pytest.raises(errors.Permanent, match=r"deep\.yaml"):
        load_manifests(path)


# --- cutting --------------------------------------------------------------------------------------------

TREES = st.recursive(
    st.none() | st.integers() | st.text('a"\\[]{}\n,:') | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('k"\\[]{}'), inner, max_size=4),
    max_leaves=30,
)


def expected(value: Any, levels: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        return None
    if isinstance(value, dict):
        return {key: expected(each, levels - 1) for key, each in value.items()}
    return [expected(each, levels - 1) for each in value]


@given(TREES, st.integers(0, 5), st.sampled_from([None, 1]))
def test_what_lies_below_a_level_becomes_null_and_nothing_else_changes(tree: Any, levels: int, indent: Any) -> None:
    data = json.dumps(tree, indent=indent).encode()
    assert json.loads(nesting.cut_nesting(data, levels)) == expected(tree, levels)


@given(st.binary() | st.text('a"\\[]{}').map(str.encode))
def test_any_bytes_can_be_cut(data: bytes) -> None:
    assert len(nesting.cut_nesting(data, 1)) <= max(len(data) * 3, 4)


def test_what_ends_in_the_middle_of_the_deep_part_is_not_made_whole() -> None:
    data = b'{"a":' * 400
    assert nesting.cut_nesting(data) == data
