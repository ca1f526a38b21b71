"""Costs as a user may see them: what belongs to other namespaces is neither shown nor counted."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from kgwe.costing.books import Books, Dimension, Sums
from kgwe.httpapi import problems
from kgwe.httpapi.authorization import Readable, Right, find_readable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.costing.segments import Account
    from kgwe.httpapi.authentication import User
    from kgwe.httpapi.authorization import Authorizer
    from kgwe.httpapi.windows import Window

#: a user with this right in a namespace may read its costs
READ_COST: Final = Right("get", "kgwe.nvidia.io", "gpuworkloads")
_OF_ACCOUNTS: Final = {
    Dimension.NAMESPACE: "namespace",
    Dimension.TEAM: "team",
    Dimension.PROJECT: "project",
    Dimension.COST_CENTER: "cost_center",
    Dimension.EXPERIMENT: "experiment",
    Dimension.USER: "user",
}
_OF_NAMESPACES: Final = frozenset({Dimension.WORKLOAD, Dimension.POD})
_THREADS: Final = 2
T = TypeVar("T")


class Attribution(Protocol):
    """The books of a window, and lines of pods."""

    @property
    def books(self) -> Books: ...
    @property
    def lines(self) -> dict[str, Sums]: ...


class Ledger(Protocol):
    """Questions to the cost ledger. They take milliseconds, and are asked in a thread."""

    def sum_accounts(self, start_s: int, end_s: int) -> Mapping[Account, Sums]: ...
    def read(self, start_s: int, end_s: int, by: Dimension) -> Attribution: ...


class LedgerAccess(NamedTuple):
    """The ledger, and how its amounts are to be read."""

    ledger: Ledger
    method: str
    currency: str


class VisibleCosts(NamedTuple):
    """Costs by name, and the fleet's books for users who may read everything."""

    lines: dict[str, Sums]
    books: Books | None


class CostReader:
    """Reads costs for users."""

    def __init__(self, access: Callable[[], LedgerAccess], authorizer: Authorizer) -> None:
        """`access`: returns the ledger, called in a thread; Transient while there is none."""
        self._access = access
        self._authorizer = authorizer
        # Its own threads: the process counts costs in the others, and clients must not delay that.
        self._threads = ThreadPoolExecutor(_THREADS, "cost-api")

    async def open(self) -> LedgerAccess:
        """Return the ledger; Transient while there is none."""
        return await self._call(self._access)

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    async def read(
        self, user: User, window: Window, by: Dimension, *, namespace: str = "", team: str = ""
    ) -> VisibleCosts:
        """Return what the user may read, by a dimension."""
        ledger = (await self.open()).ledger
        accounts = await self._call(ledger.sum_accounts, *window)
        readable = await self._find_readable(user, accounts, namespace)

        def is_wanted(account: Account) -> bool:
            return (
                readable.covers(account.namespace)
                and namespace in {"", account.namespace}
                and team in {"", account.team}
            )

        if by in _OF_ACCOUNTS:
            name = _OF_ACCOUNTS[by]
            lines: dict[str, Sums] = {}
            for account, sums in accounts.items():
                if is_wanted(account):
                    lines.setdefault(getattr(account, name), Sums()).merge(sums)
        else:
            if team:
                raise problems.bad_request(f"team does not go with by={by.value}")
            lines = await self._read_raw(ledger, window, by, readable, namespace)
        books = None
        if readable.everything and not namespace and not team:
            books = (await self._call(ledger.read, *window, Dimension.NAMESPACE)).books
        return VisibleCosts(lines, books)

    async def _find_readable(self, user: User, accounts: Mapping[Account, Sums], namespace: str) -> Readable:
        known = {account.namespace for account in accounts}
        wanted = known & {namespace} if namespace else known
        return await find_readable(self._authorizer, user, READ_COST, wanted)

    async def _read_raw(
        self, ledger: Ledger, window: Window, by: Dimension, readable: Readable, namespace: str
    ) -> dict[str, Sums]:
        """Return lines of a dimension that sums do not have: of workloads and pods, or of the fleet."""
        if by not in _OF_NAMESPACES:
            if not readable.everything or namespace:
                raise problems.forbidden(
                    f"by={by.value} shows costs of all namespaces: it needs get gpuworkloads in all of them, and goes"
                    " without a namespace"
                )
            return (await self._call(ledger.read, *window, by)).lines
        found = (await self._call(ledger.read, *window, by)).lines

        def is_wanted(name: str) -> bool:
            where = name.partition("/")[0]
            return readable.covers(where) and namespace in {"", where}

        return {name: sums for name, sums in found.items() if is_wanted(name)}
