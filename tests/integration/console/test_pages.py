"""The pages of the console in a real browser: content, rights, faults, phone and dark, and accessibility."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clusters.browser import build_pages, find_axe, find_browser, open_browser
from tests.support.fakes.console_bed import make_fleet, make_pod, make_workload, open_console, put
from tests.support.patience import PATIENCE_S

from kgwe.apps.console.main import make_own_files
from kgwe.apps.console.sessions import Identity
from kgwe.apps.console.site import BUILT, Site
from kgwe.httpapi import server
from kgwe.store.ledger.price_files import load_book
from kgwe.telemetry import http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.support.fakes.console_bed import ConsoleBed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_MS = PATIENCE_S * 1000
SCRIPT = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
LONG = "very-long-name-" * 8
# Address of a page -> a text that it shows.
PAGES = {
    "/": "GPUs held",
    "/fleet": "64 nodes, 512 GPUs",
    "/fleet?node=h100-0000": "vision/a",
    "/health": "Healthy GPUs",
    "/workloads": "too-large",
    "/workloads/vision/too-large": "Why it waits",
    "/queue": "GPUs held by namespace",
    "/what-if": "Plan it",
    "/waste": "no optimizer is configured",
    "/cost": "there is no ledger",
    "/cost?tab=budgets": "No budgets",
    "/autoscaler": "No AutoscalingPolicy",
    "/decisions": "No decision records",
    "/nowhere": "There is no such page",
}
# The browser says that a request failed, which these pages explain.
EXPECTED = re.compile(r"Failed to load resource.*(503|403|404|401)|status of (503|403|404|401)")


class Console:
    """A console that a browser reaches, and what the browser complained about."""

    def __init__(self, bed: ConsoleBed, browser: Any, address: str) -> None:
        self.bed, self.browser, self.address = bed, browser, address
        self.complaints: list[str] = []

    async def open(self, user: str, path: str = "/", **context: Any) -> Any:
        """Return a page of a user who is signed in."""
        made = await self.browser.new_context(ignore_https_errors=True, **context)
        page = await made.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.note(said.type, said.text))
        code = self.bed.sessions.make_code(Identity(user, token=user))
        await page.goto(f"{self.address}/sign-in#{code}")
        await page.get_by_role("heading", name="Overview").wait_for()
        if path != "/":
            await page.goto(self.address + path)
        return page

    def note(self, kind: str, text: str) -> None:
        if kind == "error" and not EXPECTED.search(text):
            self.complaints.append(text)


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Console]:
    path = find_browser()
    build_pages()
    status = {"phase": "Pending", "message": f"0/64 nodes available {SCRIPT}"}
    objects = [
        *make_fleet(64),
        make_pod("vision", "a", 4, "h100-0000"),
        make_pod("speech", "b", 8, "h100-0001"),
        make_pod("speech", "waits", 8),
        make_workload("vision", "too-large", 4096, **status),
        make_workload("vision", LONG[:63].rstrip("-"), 8, phase="Failed", message=SCRIPT),
    ]
    site = Site(BUILT)
    assert site.is_built
    async with (
        open_console(objects, pages=site.list_routes(), prices=load_book(())) as bed,
        open_browser(path) as browser,
    ):
        bed.rights.grants["ann"] = frozenset({("pods", "vision"), ("gpuworkloads.kgwe.nvidia.io", "vision")})
        files = make_own_files(directory, ("127.0.0.1",))
        running = asyncio.create_task(bed.console.hub.run())
        try:
            async with server.serving(bed.console.api.asgi, http.Address("127.0.0.1", 0), files) as port:
                try:
                    yield Console(bed, browser, f"https://127.0.0.1:{port}")
                finally:
                    bed.console.hub.close()
        finally:
            running.cancel()


async def test_each_page_shows_what_it_is_for_and_is_accessible(tmp_path: Path) -> None:
    axe = find_axe()
    async with serving(tmp_path) as console:
        page = await console.open("admin", viewport={"width": 1280, "height": 900})
        for path, text in PAGES.items():
            await page.goto(console.address + path)
            await page.get_by_text(text).first.wait_for()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            if axe is not None:
                await page.evaluate(axe)
                found = await page.evaluate(
                    "axe.run(document, {rules: {'page-has-heading-one': {enabled: true}}})"
                    ".then(r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).slice(0, 3).join(' | ')))"
                )
                assert found == [], path
        assert await page.evaluate("window.hacked") is None
        assert console.complaints == []


async def test_a_plan_is_made_in_the_browser_and_changes_arrive_by_themselves(tmp_path: Path) -> None:
    async with serving(tmp_path) as console:
        page = await console.open("admin", "/what-if")
        await page.get_by_role("button", name="Plan it").click()
        await page.get_by_text("Would start now").wait_for()
        await page.get_by_text("per hour: the prices of its nodes").wait_for()
        await page.goto(console.address + "/workloads")
        await page.get_by_text("too-large").first.wait_for()
        put(console.bed.api, make_workload("vision", "brand-new", 8, phase="Pending"))
        await page.get_by_text("brand-new").wait_for()
        assert console.complaints == []


async def test_a_user_sees_its_own_namespace_on_a_phone_in_the_dark(tmp_path: Path) -> None:
    async with serving(tmp_path) as console:
        phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}
        page = await console.open("ann", "/workloads", **phone)
        await page.get_by_text("too-large").first.wait_for()
        assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
        for path in ("/", "/workloads/vision/too-large", "/queue", "/cost", "/what-if"):
            await page.goto(console.address + path)
            await page.locator("h1").wait_for()
            assert "speech" not in await page.content(), path
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        await page.goto(console.address + "/fleet")
        await page.get_by_text("you may not list nodes").first.wait_for()
        assert console.complaints == []


async def test_the_page_says_what_happened_and_recovers(tmp_path: Path) -> None:
    async with serving(tmp_path) as console:
        page = await console.open("admin", "/workloads")
        await page.locator(".side .live").get_by_text("Live").wait_for()
        # The backend is gone: what was loaded stays, and the page comes back by itself.
        await page.context.set_offline(True)
        await page.get_by_placeholder("Find by name, node or message").fill("waits")
        await page.get_by_text("The console does not answer").wait_for()
        await page.context.set_offline(False)
        await page.get_by_role("link", name="waits", exact=True).wait_for()
        # The session has ended: the page says how to sign in.
        console.bed.sessions._sessions.clear()
        await page.goto(console.address + "/queue")
        await page.get_by_text("your session has ended").wait_for()
        await page.get_by_label("Token").fill("expired")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_text("the token is not valid").wait_for()
        await page.get_by_label("Token").fill("admin")
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("heading", name="Queue").wait_for()
