"""Whatever a struct says, its message says: written as a message by these tests, it is read as it was."""

from __future__ import annotations

import contextlib
import datetime as dt
import types
import typing
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.examples import examples

from kgwe.kube.api import core, resources
from kgwe.kube.transport import protobuf
from kgwe.proto import kubernetes_pb2

TIME = kubernetes_pb2.Time.DESCRIPTOR
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
KINDS: list[resources.Resource[Any]] = [resources.POD, resources.NODE]
READERS = {kind: protobuf.reader(kind.type, kind.message) for kind in KINDS}


def values(hint: Any, field: Any, *, least: int = 0) -> st.SearchStrategy[Any]:
    """Of a field of a struct, as its message can hold them."""
    inner = field.message_type
    if get_origin(hint) is types.UnionType:
        (wanted,) = (each for each in get_args(hint) if each is not types.NoneType)
        return st.none() | (moments() if inner is TIME else values(wanted, field))
    if get_origin(hint) is dict:
        return st.dictionaries(TEXT, TEXT, max_size=3)
    if get_origin(hint) is tuple:
        return st.lists(values(get_args(hint)[0], field), max_size=3).map(tuple)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs(hint, inner)
    if hint is str:
        return TEXT.filter(lambda text: len(text) >= least)
    return st.booleans() if hint is bool else st.integers(0, 2**31 - 1)


def moments() -> st.SearchStrategy[str]:
    return st.datetimes().map(lambda moment: f"{moment.replace(microsecond=0).isoformat()}Z")


def structs(struct: Any, source: Any) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(struct)
    known = [info for info in msgspec.structs.fields(struct) if info.encode_name in source.fields_by_name]
    # What is empty is what is absent, also where that means something.
    drawn = {
        info.name: values(hints[info.name], source.fields_by_name[info.encode_name], least=bool(info.default))
        for info in known
    }
    return st.fixed_dictionaries(drawn).map(lambda drawn: struct(**drawn))


def write(obj: Any, message: Any) -> Any:
    """As the API server does: everything that is not absent, empty or not."""
    for info in msgspec.structs.fields(obj):
        field = message.DESCRIPTOR.fields_by_name.get(info.encode_name)
        value = getattr(obj, info.name)
        if field is None or value is None:
            continue
        if field.message_type is None and not field.is_repeated:
            setattr(message, field.name, value)
        else:
            put(value, getattr(message, field.name), field.message_type)
    return message


def put(value: Any, at: Any, inner: Any) -> None:
    if isinstance(value, dict) and inner.fields_by_name["value"].message_type:
        for key, each in value.items():
            at[key].string = each
    elif isinstance(value, dict):
        at.update(value)
    elif isinstance(value, tuple) and inner:
        for each in value:
            write(each, at.add())
    elif isinstance(value, tuple):
        at.extend(value)
    elif inner is TIME:
        moment = dt.datetime.fromisoformat(value)
        at.seconds = round((moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)).total_seconds())
    else:
        at.SetInParent()
        write(value, at)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
@given(data=st.data())
@examples(40)
def test_an_object_is_read_as_it_was_written(kind, data):
    source = getattr(kubernetes_pb2, kind.kind)
    obj = data.draw(structs(kind.type, source.DESCRIPTOR))
    raw = write(obj, source()).SerializeToString()

    assert READERS[kind].read(raw) == obj
    assert READERS[kind].open(kubernetes_pb2.Envelope(raw=raw).SerializeToString()) == obj
    assert READERS[kind].read(raw) == obj, "what was remembered is as true"


@given(raw=st.binary(max_size=40))
@examples(200)
def test_bytes_are_an_object_or_unreadable(raw):
    with contextlib.suppress(*protobuf.UNREADABLE):
        assert isinstance(READERS[resources.POD].read(raw), core.Pod)
