"""The API of the console: its routes put together."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kgwe.apps.console.advice_routes import AdviceRoutes
from kgwe.apps.console.fleet_routes import FleetRoutes
from kgwe.apps.console.focus_routes import FocusRoutes
from kgwe.apps.console.identity import ConsoleAuthenticator, SignInRoutes
from kgwe.apps.console.node_rows import NodeRows, Prices
from kgwe.apps.console.scaling_routes import ScalingRoutes
from kgwe.apps.console.scope import ScopeReader
from kgwe.apps.console.stream import Hub, StreamRoutes
from kgwe.apps.console.work_cache import WorkCache
from kgwe.apps.console.work_routes import WorkRoutes
from kgwe.apps.console.work_rows import WorkRows
from kgwe.httpapi.app import Api
from kgwe.httpapi.cost_reader import CostReader
from kgwe.httpapi.cost_routes import CostRoutes
from kgwe.httpapi.limits import RateLimiter
from kgwe.httpapi.opencost import OpenCostRoutes
from kgwe.kube.api import resources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.routing import BaseRoute

    from kgwe.apps.console.cluster_watch import ClusterWatch
    from kgwe.apps.console.sessions import Sessions
    from kgwe.apps.console.work_routes import Answers
    from kgwe.costing.prices.book import PriceBook
    from kgwe.httpapi.authentication import TokenAuthenticator
    from kgwe.httpapi.authorization import Authorizer
    from kgwe.httpapi.cost_reader import LedgerAccess
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget
    from kgwe.optimizerapi.client import OptimizerClient
    from kgwe.store.ledger.ledger import Ledger

TITLE: Final = "KGWE console"
VERSION: Final = "v1"
# A page asks several questions at once, and a person opens several pages.
_PER_S: Final = 50.0
_BURST: Final = 200


@dataclass(frozen=True, slots=True)
class Sources:
    """What the console reads."""

    watch: ClusterWatch
    answers: Answers
    ledger: Callable[[], LedgerAccess]
    #: opens the whole ledger, for files
    open_ledger: Callable[[], Ledger]
    optimizer: OptimizerClient | None = None
    prices: PriceBook | None = None
    records: str = ""


@dataclass(frozen=True, slots=True)
class ConsoleApi:
    """The API, and the hub that must run beside it."""

    api: Api
    hub: Hub


def make_console_api(
    sources: Sources,
    tokens: TokenAuthenticator,
    authorizer: Authorizer,
    sessions: Sessions,
    *,
    secure: bool = True,
    others: Sequence[BaseRoute] = (),
    clock: Callable[[], float] = time.time,
) -> ConsoleApi:
    """Return the API over a cluster. `others`: the pages."""
    watch = sources.watch
    nodes = NodeRows(watch.state, Prices(sources.prices, clock))
    work = WorkCache(watch, WorkRows(watch, nodes))
    scopes = ScopeReader(authorizer, watch.list_namespaces)
    authenticator = ConsoleAuthenticator(tokens, sessions, secure=secure, clock=clock)
    hub = Hub(watch, nodes)

    def budgets() -> Mapping[str, GPUBudget]:
        return watch.stores.get(resources.GPU_BUDGET, {})

    reader = CostReader(sources.ledger, authorizer)
    routes: list[Any] = [
        *SignInRoutes(authenticator, sessions, tokens).list_routes(),
        *FleetRoutes(watch, hub, work, scopes).list_routes(),
        *WorkRoutes(watch, work, scopes, sources.answers).list_routes(),
        *AdviceRoutes(watch, scopes, sources.optimizer).list_routes(),
        *CostRoutes(reader, budgets, authorizer, clock=clock).list_routes(),
        *FocusRoutes(sources.open_ledger, authorizer).list_routes(),
        *OpenCostRoutes(reader, clock=clock).list_routes(),
        *ScalingRoutes(watch, scopes, sources.records).list_routes(),
        *StreamRoutes(hub, scopes, authenticator).list_routes(),
    ]
    api = Api(routes, authenticator, title=TITLE, version=VERSION, users=RateLimiter(_PER_S, _BURST), others=others)
    return ConsoleApi(api, hub)
