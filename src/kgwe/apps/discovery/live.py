"""Live queries to many agents: a bounded number at a time, each with a timeout; answers are cached for 30 s.

An agent that does not respond delays only its own answer: other agents are queried meanwhile, and the failure is
cached like an answer.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from kgwe import errors
from kgwe.agentapi import messages
from kgwe.agentapi.client import Access, AgentClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kgwe.kube.api.kgwe.gpunode import GPUNodeStatus

CACHE_S: Final = 30.0
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of an agent, or the error."""

    at_s: float
    status: GPUNodeStatus | None
    problem: str = ""


class LiveFleet:
    """Cached answers of agents by node. Close it, or use it as a context manager."""

    def __init__(
        self,
        access: Access | None = None,
        *,
        cache_s: float = CACHE_S,
        at_once: int = _AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._access = access or Access()
        self._cache_s = cache_s
        self._clock = clock
        self._room = asyncio.Semaphore(at_once)
        self._clients: dict[str, AgentClient] = {}
        self._answers: dict[str, Answer] = {}
        self._asking: dict[tuple[str, bool], asyncio.Task[Answer]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        clients, self._clients = list(self._clients.values()), {}
        await asyncio.gather(*(client.close() for client in clients))

    async def ask(self, addresses: Mapping[str, str], *, fresh: bool = False) -> dict[str, Answer]:
        """Return node -> answer, for `addresses` of node -> host:port. Recent answers are reused unless `fresh` is
        set.
        """
        answers = await asyncio.gather(
            *(self._query_cached(node, where, fresh=fresh) for node, where in addresses.items())
        )
        return dict(zip(addresses, answers, strict=True))

    async def _query_cached(self, node: str, address: str, *, fresh: bool) -> Answer:
        known = self._answers.get(node)
        if known is not None and not fresh and self._clock() - known.at_s < self._cache_s:
            return known
        asking = self._asking.get((node, fresh))
        if asking is None:
            asking = self._asking[node, fresh] = asyncio.create_task(self._query(node, address, fresh=fresh))
            asking.add_done_callback(lambda _: self._asking.pop((node, fresh), None))
        # A caller that is cancelled must not cancel the query for the others.
        return await asyncio.shield(asking)

    async def _query(self, node: str, address: str, *, fresh: bool) -> Answer:
        client = self._clients.get(node)
        if client is None or client.address != address:
            if client is not None:
                await client.close()
            client = self._clients[node] = AgentClient(address, self._access.to_node(node))
        async with self._room:
            try:
                topology, health = await asyncio.gather(client.topology(fresh=fresh), client.health())
                if topology.node != node:
                    raise errors.Permanent(f"agent {address} belongs to node {topology.node}, not to {node}")
                answer = Answer(self._clock(), messages.decode_status(topology, health))
            except errors.KgweError as exc:
                answer = Answer(self._clock(), None, str(exc))
        self._answers[node] = answer
        return answer

    async def keep(self, still: Iterable[str]) -> None:
        """Keep the connections and answers of these nodes; drop all others."""
        gone = self._clients.keys() - set(still)
        await asyncio.gather(*(self._clients.pop(node).close() for node in gone))
        for node in self._answers.keys() - set(still):
            del self._answers[node]
