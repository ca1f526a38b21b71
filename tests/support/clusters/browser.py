"""A browser for the tests of the console: Debian's chromium, driven by playwright, and axe-core from npm."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[3]
_AXE = "axe-core@4.14.0"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str:
    """Return the path of a browser; skip the test where there is none."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed")
    found = next(filter(None, map(shutil.which, _BROWSERS)), None)
    return found or pytest.skip("no chromium on PATH: apt-get install chromium")


def build_pages() -> None:
    """Build the pages if they are not built; skip the test where Node or npm cannot be had."""
    found = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "build_console.py")], capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip(f"the pages of the console cannot be built here: {found.stderr.strip()[-300:]}")


def find_axe() -> str | None:
    """Return the script of axe-core, installed beside the packages of the pages; None where npm has it not."""
    directory = ROOT / "console" / "node_modules" / ".axe"
    script = directory / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        command = ["npm", "install", "--no-package-lock", "--no-audit", "--prefix", str(directory), _AXE]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, check=False, timeout=120)
    return script.read_text(encoding="utf-8") if script.exists() else None


@contextlib.asynccontextmanager
async def open_browser(path: str) -> AsyncIterator[Any]:
    """Yield a browser."""
    from playwright.async_api import async_playwright  # noqa: PLC0415 - not installed everywhere

    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            await browser.close()
