"""The API of the cost engine: its routes put together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from kgwe.httpapi.app import Api
from kgwe.httpapi.cost_reader import CostReader
from kgwe.httpapi.cost_routes import CostRoutes
from kgwe.httpapi.opencost import OpenCostRoutes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kgwe.httpapi.authentication import Authenticator
    from kgwe.httpapi.authorization import Authorizer
    from kgwe.httpapi.cost_reader import LedgerAccess
    from kgwe.kube.api.kgwe.gpubudget import GPUBudget

TITLE: Final = "KGWE"
#: of the API, not of the software: it changes when clients must
VERSION: Final = "v1"


def make_cost_api(
    access: Callable[[], LedgerAccess],
    budgets: Callable[[], Mapping[str, GPUBudget]],
    authenticator: Authenticator,
    authorizer: Authorizer,
    *,
    clock: Callable[[], float] = time.time,
) -> Api:
    """Return the API over a ledger and the budgets of a cluster."""
    reader = CostReader(access, authorizer)
    routes = [
        *CostRoutes(reader, budgets, authorizer, clock=clock).list_routes(),
        *OpenCostRoutes(reader, clock=clock).list_routes(),
    ]
    return Api(routes, authenticator, title=TITLE, version=VERSION)
