"""A client that notes writes and fails as it is told to, one write at a time.

It is for tests of what is written after which failure. Decisions that need objects and versions are tested with
`memory_api.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kgwe.kube.api.resources import Resource


class Write(NamedTuple):
    """A write that succeeded."""

    verb: str
    kind: str
    name: str
    body: Any
    subresource: str
    #: options of the call, such as `uid` and `grace_s`
    options: dict[str, Any]


class RecordingClient:
    """The writes of a KubeClient."""

    def __init__(self, *failures: Exception, stored: Any = None) -> None:
        """`failures` are raised by the next writes; `stored` is the object that every read returns."""
        self.failures = list(failures)
        #: name -> raised by every write to the object
        self.failures_by_name: dict[str, Exception] = {}
        self.stored = stored
        self.writes: list[Write] = []
        #: verb of every write, also of those that failed
        self.attempts: list[str] = []
        self.refused = 0

    @property
    def patches(self) -> Sequence[tuple[str, Any]]:
        """Names and bodies of the patches."""
        return [(each.name, each.body) for each in self.writes if each.verb == "patch"]

    async def get(self, _resource: Resource[Any], _name: str, _namespace: str = "") -> Any:
        return self.stored

    async def create(
        self, resource: Resource[Any], body: Any, _namespace: str = "", *, name: str = "", subresource: str = ""
    ) -> None:
        self._note("create", resource, name or body["metadata"]["name"], body, subresource)

    async def patch(
        self, resource: Resource[Any], name: str, body: Any, _namespace: str = "", *, subresource: str = "", **more: Any
    ) -> None:
        self._note("patch", resource, name, body, subresource, **more)

    async def delete(self, resource: Resource[Any], name: str, _namespace: str = "", **more: Any) -> None:
        self._note("delete", resource, name, None, **more)

    async def replace_message(self, resource: Resource[Any], name: str, body: bytes, _namespace: str = "") -> None:
        self._note("put", resource, name, body)

    def _note(
        self, verb: str, resource: Resource[Any], name: str, body: Any, subresource: str = "", **more: Any
    ) -> None:
        self.attempts.append(verb)
        failure = self.failures_by_name.get(name) or (self.failures.pop(0) if self.failures else None)
        if failure is not None:
            self.refused += 1
            raise failure
        self.writes.append(Write(verb, resource.kind, name, body, subresource, more))
