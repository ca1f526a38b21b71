"""Kubernetes' messages, read into the same structs as its JSON.

`reader` makes one function per struct, as text that Python compiles once: with some forty fields to a
pod, going over a table of fields each time would take longer than all the rest. Each function parses a message made of
its struct's fields alone, with the numbers that `proto/kubernetes.proto` gives them. Below the parts of an object,
messages stay bytes until their own function reads them, and short ones that were read before (a toleration, a label, a
time) are not read again.

What is empty here is absent in JSON: the API server leaves empty strings, lists, maps and times out of the one and
writes them into the other.
"""

from __future__ import annotations

import datetime as dt
import types
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from kgwe.proto import kubernetes_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from msgspec.structs import FieldInfo

    Read = Callable[[bytes], Any]

T = TypeVar("T")

#: what is raised for bytes that are no such message
UNREADABLE: Final[tuple[type[Exception], ...]] = (message.DecodeError, msgspec.ValidationError, OverflowError)

_TIME: Final = kubernetes_pb2.Time.DESCRIPTOR.full_name
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - naive on purpose: the zone is written by hand
# Of each kind of message, this many of at most this length are remembered.
_REMEMBERED: Final = 4096
_SHORT: Final = 256


class Reader(NamedTuple, Generic[T]):
    """Functions that read messages of one name as one struct; they raise one of UNREADABLE."""

    read: Callable[[bytes], T]
    #: in an envelope
    open: Callable[[bytes], T]


def reader(struct: type[T], name: str) -> Reader[T]:
    pool = kubernetes_pb2.DESCRIPTOR.pool
    compiler = _Compiler()
    draft = compiler.draft()
    value = compiler.construct(struct, pool.FindMessageTypeByName(name), draft, draft.message("Root"), "m", parts=True)
    _add(draft.message("Envelope"), pool.FindFieldByName("kgwe.kubernetes.Envelope.raw"), "Root")
    return Reader(compiler.function(draft, value, "Root"), compiler.function(draft, value, "Envelope"))


class _Ways(NamedTuple):
    """To one kind of message: `get` finds what was read before, `new` reads."""

    get: Callable[[bytes], Any]
    new: Read


@dataclass(frozen=True)
class _Draft:
    """A function to be: the messages it parses, what it does before it returns, and what its text refers to."""

    file: descriptor_pb2.FileDescriptorProto
    lines: list[str] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)

    def message(self, name: str) -> descriptor_pb2.DescriptorProto:
        return self.file.message_type.add(name=name)


class _Compiler:
    def __init__(self) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        self._drafts = 0
        self._ways: dict[tuple[Any, str], _Ways] = {}

    def draft(self) -> _Draft:
        self._drafts += 1
        name = f"slim{self._drafts}"
        return _Draft(descriptor_pb2.FileDescriptorProto(name=name, package=name, syntax="proto3"))

    def function(self, draft: _Draft, value: str, root: str) -> Read:
        names = {"parse": self._message(draft.file, root).FromString, "missing": _raise_missing, **draft.names}
        opened = ".raw" if root == "Envelope" else ""
        code = "\n ".join(["def read(raw):", f"m = parse(raw){opened}", *draft.lines, f"return {value}"])
        exec(code, names)  # noqa: S102 - made above from the names of our own fields
        read: Read = names["read"]
        return read

    def _message(self, file: descriptor_pb2.FileDescriptorProto, name: str) -> type[message.Message]:
        try:
            self._pool.FindFileByName(file.name)
        except KeyError:
            self._pool.Add(file)
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{file.package}.{name}"))

    # --- expressions: over `at`, a message that was parsed ----------------------------------------------------

    def construct(
        self,
        struct: Any,
        source: Descriptor | None,
        draft: _Draft,
        slim: descriptor_pb2.DescriptorProto,
        at: str,
        *,
        parts: bool = False,
    ) -> str:
        """`source` as `struct`; what the message does not have keeps the struct's default.

        `parts`: the structs right below are read from the same parse, because they are always there.
        """
        if source is None:
            raise TypeError(f"{struct.__name__} is no message")
        hints = typing.get_type_hints(struct)
        values = []
        for info in msgspec.structs.fields(struct):
            hint, origin = hints[info.name], source.fields_by_name.get(info.encode_name)
            default = _default(info, f"{at}_{info.name}", draft)
            if origin is None:
                values.append(default)
            elif parts and isinstance(hint, type) and issubclass(hint, msgspec.Struct):
                values.append(self._part(hint, origin, draft, slim, required=info.required))
            else:
                _add(slim, origin)
                values.append(self._value(hint, origin, draft, at, default))
        draft.names[f"{at}_struct"] = struct
        return f"{at}_struct({', '.join(values)})"

    def _part(
        self,
        struct: Any,
        origin: FieldDescriptor,
        draft: _Draft,
        slim: descriptor_pb2.DescriptorProto,
        *,
        required: bool,
    ) -> str:
        name = origin.name
        _add(slim, origin, f"Part_{name}")
        draft.lines.append(f"{name} = m.{name}")
        if required:
            draft.lines.append(f"m.HasField({name!r}) or missing({name!r})")
        return self.construct(struct, origin.message_type, draft, draft.message(f"Part_{name}"), name)

    def _value(self, hint: Any, origin: FieldDescriptor, draft: _Draft, at: str, default: str) -> str:
        """A field of a struct."""
        here, wanted, or_none = f"{at}.{origin.name}", *_without_none(hint)
        if origin.message_type is None:
            return _copy_expression(here, origin, default, or_none=or_none)
        get, new = f"{at}_{origin.name}_get", f"{at}_{origin.name}_new"
        inner = get_args(wanted)[0] if get_origin(wanted) is tuple else wanted
        draft.names[get], draft.names[new] = self._find_ways(inner, origin.message_type)
        if origin.is_repeated:
            collect = "dict" if get_origin(wanted) is dict else "tuple"
            return f"({collect}([{get}(b) or {new}(b) for b in every[:]]) if (every := {here}) else {collect}())"
        if or_none and wanted is not str:
            return f"({new}({here}) if {at}.HasField({origin.name!r}) else None)"  # given and empty is not absent
        return f"(({get}(b) or {new}(b)) if (b := {here}) else {default})"

    def _find_ways(self, hint: Any, source: Descriptor) -> _Ways:
        """To messages that stand for `hint`."""
        known = (hint, source.full_name)
        if known not in self._ways:
            draft = self.draft()
            slim = draft.message("Root")
            if source.GetOptions().map_entry:
                value = self._entry(source, draft, slim)
            elif source.full_name == _TIME:
                _add(slim, source.fields_by_name["seconds"])
                draft.names["moment"] = _moment
                value = "moment(m.seconds) if m.HasField('seconds') else None"
            else:
                value = self.construct(hint, source, draft, slim, "m")
            self._ways[known] = _cached_reader(self.function(draft, value, "Root"))
        return self._ways[known]

    def _entry(self, source: Descriptor, draft: _Draft, slim: descriptor_pb2.DescriptorProto) -> str:
        """An entry of a map, as a pair."""
        key, value = source.fields_by_name["key"], source.fields_by_name["value"]
        _add(slim, key)
        if value.message_type is None:
            _add(slim, value)
            return "(m.key, m.value)"
        _add(slim, value, "Quantity")  # the only message that maps have here
        _add(draft.message("Quantity"), value.message_type.fields_by_name["string"])
        return "(m.key, m.value.string)"


def _add(slim: descriptor_pb2.DescriptorProto, origin: FieldDescriptor, part: str = "") -> None:
    """Have a message parse that field, too: as a message of the same file, or as bytes if it is another message."""
    copy = slim.field.add(name=origin.name, number=origin.number)
    if part:
        copy.type, copy.type_name = copy.TYPE_MESSAGE, part
    elif origin.message_type:
        copy.type = copy.TYPE_BYTES
    else:
        copy.type = copy.Type.ValueType(origin.type)
    if origin.is_repeated:
        copy.label = copy.LABEL_REPEATED
        return
    copy.label = copy.LABEL_OPTIONAL
    if not part:
        # What proto3 calls `optional`: it can be told from its zero.
        copy.proto3_optional, copy.oneof_index = True, len(slim.oneof_decl)
        slim.oneof_decl.add(name=f"_{origin.name}")


def _copy_expression(here: str, origin: FieldDescriptor, default: str, *, or_none: bool) -> str:
    if origin.is_repeated:
        return f"(tuple(every[:]) if (every := {here}) else ())"
    if or_none:
        at, _, name = here.partition(".")
        return f"({here} if {at}.HasField({name!r}) else None)"
    return here if default in ("''", "0", "False", _REQUIRED) else f"({here} or {default})"


def _cached_reader(read: Read) -> _Ways:
    seen: dict[bytes, Any] = {}

    def new(raw: bytes) -> Any:
        value = read(raw)
        if len(raw) <= _SHORT:
            if len(seen) >= _REMEMBERED:
                seen.clear()
            seen[raw] = value
        return value

    return _Ways(seen.get, new)


_REQUIRED: Final = "missing()"


def _default(info: FieldInfo, name: str, draft: _Draft) -> str:
    """The value of a field that is not given."""
    if info.default_factory is not msgspec.NODEFAULT:
        return repr(info.default_factory())
    if info.default is msgspec.NODEFAULT:
        return _REQUIRED
    if isinstance(info.default, str | int | None):
        return repr(info.default)
    draft.names[f"{name}_default"] = info.default
    return f"{name}_default"


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (types.UnionType, typing.Union):
        (wanted,) = (each for each in get_args(hint) if each is not types.NoneType)
        return wanted, True
    return hint, False


def _moment(seconds: int) -> str:
    """As in JSON, which knows no fractions."""
    return f"{(_EPOCH + dt.timedelta(seconds=seconds)).isoformat()}Z"


def _raise_missing(name: str = "") -> Any:
    raise msgspec.ValidationError(f"the message has no `{name}`")
