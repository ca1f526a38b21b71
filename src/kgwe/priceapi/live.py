"""Live prices: fetched once an hour. After an error the last good prices stay."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from kgwe import errors
from kgwe.costing.money import DAY_S
from kgwe.costing.prices.book import FOREVER
from kgwe.priceapi.aws import AwsPrices
from kgwe.priceapi.azure import AzurePrices
from kgwe.priceapi.gcp import GcpPrices

if TYPE_CHECKING:
    from collections.abc import Iterable

    import httpx2

    from kgwe.costing.prices.book import Price
    from kgwe.priceapi.source import PriceList

log = structlog.get_logger(__name__)

_TTL_S: Final = 3600
_RETRY_S: Final = 300
_PATIENCE_S: Final = 120.0
_CLOUDS: Final = ("aws", "azure", "gcp")


def open_lists(names: Iterable[str], client: httpx2.AsyncClient, gcp_key_file: str = "") -> list[PriceList]:
    """Return the price lists of names such as `azure/eastus`."""
    found: list[PriceList] = []
    for name in names:
        cloud, _, region = name.partition("/")
        if cloud not in _CLOUDS or not region:
            raise errors.Permanent(
                f"live prices {name!r}: write a cloud ({', '.join(_CLOUDS)}) and a region, such as aws/us-east-1"
            )
        if cloud == "aws":
            found.append(AwsPrices(region))
        elif cloud == "azure":
            found.append(AzurePrices(client, region))
        else:
            found.append(GcpPrices(client, region, Path(gcp_key_file) if gcp_key_file else None))
    return found


class LivePrices:
    """The prices of some lists, with the time from which each is valid."""

    def __init__(self, lists: Iterable[PriceList], ttl_s: int = _TTL_S) -> None:
        self._lists = list(lists)
        self._ttl_s = ttl_s
        self._due_s: dict[str, int] = {}
        self._known: dict[tuple[str, ...], list[Price]] = {}
        """Key of a price -> its history of a day, the last one valid until further notice."""
        self.problems: dict[str, str] = {}
        self.fetched_s: dict[str, int] = {}

    def list_prices(self) -> list[Price]:
        """Return all prices, with those that were valid until recently."""
        return [price for history in self._known.values() for price in history]

    async def refresh(self, now_s: int) -> bool:
        """Fetch the lists that are due. Return whether a price changed."""
        due = [each for each in self._lists if self._due_s.get(each.name, 0) <= now_s]
        results = await asyncio.gather(*(self._fetch(each) for each in due))
        changed = False
        for each, result in zip(due, results, strict=True):
            if isinstance(result, str):
                self.problems[each.name] = result
                self._due_s[each.name] = now_s + _RETRY_S
                log.warning("prices_not_fetched", source=each.name, error=result, last=self.fetched_s.get(each.name))
                continue
            self.problems.pop(each.name, None)
            self._due_s[each.name] = now_s + self._ttl_s
            self.fetched_s[each.name] = now_s
            for price in result:
                changed |= self._note(price, now_s)
        return changed

    async def _fetch(self, source: PriceList) -> tuple[Price, ...] | str:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await source.fetch()
        except TimeoutError:
            return f"no answer within {_PATIENCE_S:g} s"
        except errors.KgweError as exc:
            return str(exc)
        except Exception as exc:
            # A list of another shape than known must not stop the engine.
            log.exception("price_list_not_read", source=source.name)
            return f"cannot be read: {exc!r}"

    def _note(self, price: Price, now_s: int) -> bool:
        history = self._known.setdefault(price.key, [])
        if not history:
            history.append(price)
            return True
        last = history[-1]
        if last.micros_per_hour == price.micros_per_hour:
            return False
        history[-1] = replace(last, valid_until_s=now_s)
        history.append(replace(price, valid_from_s=now_s, valid_until_s=FOREVER))
        history[:] = [each for each in history if each.valid_until_s > now_s - DAY_S]
        return True
