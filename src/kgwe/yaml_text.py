"""Reads YAML with the C parser, which is ten times faster, up to a depth: the C parser crashes on deeper documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH: Final = 200
# PyYAML may be built without the C parser.
_FASTEST: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class TooDeep(yaml.YAMLError):
    """The document is nested more deeply than any that people write."""

    def __init__(self) -> None:
        super().__init__(f"nested too deeply: at most {MAX_DEPTH} levels are read")


class _Loader(_FASTEST):  # type: ignore[misc] # the class is chosen at run time
    """Both parsers call these two methods before and after each node."""

    _depth = 0

    def descend_resolver(self, current_node: Any, current_index: Any) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooDeep
        super().descend_resolver(current_node, current_index)

    def ascend_resolver(self) -> None:
        self._depth -= 1
        super().ascend_resolver()


class HasAlias(yaml.YAMLError):
    """The document uses an alias: a few lines of aliases of aliases become a document that no memory holds."""


def check_plain(text: str) -> None:
    """Raise TooDeep or HasAlias at the first place that is nested too deeply or is an alias; other errors are ignored.

    The rest of the text is not read.
    """
    fault = _find_fault(text)
    if fault is not None:
        raise fault


def _find_fault(text: str) -> yaml.YAMLError | None:
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_FASTEST):
            if isinstance(event, yaml.AliasEvent):
                return HasAlias()
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                return TooDeep()
    except (yaml.YAMLError, ValueError):
        pass  # the parser says what is wrong
    return None


def parse_yaml(text: str) -> Any:
    """Return the only document of a text; yaml.YAMLError if it is not valid."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    except ValueError as exc:  # of the 13th month, or of a number of 5,000 digits
        raise yaml.YAMLError(str(exc)) from exc


def parse_documents(text: str) -> Iterator[Any]:
    """Yield the documents of a text; yaml.YAMLError if one is not valid."""
    return yaml.load_all(text, Loader=_Loader)
