"""What every test shares: Hypothesis without deadlines, and the mark of tests that need a cluster."""

from __future__ import annotations

import functools
import gc
import os
import signal
from pathlib import Path
from typing import Any

import httpcore2
import hypothesis
import pytest
import structlog
from tests.support import families

# The same examples every time: a change fails for what it changed. `make search` looks for examples nobody has seen.
# No deadlines: a busy machine must not fail a property.
hypothesis.settings.register_profile("default", deadline=None, max_examples=20, derandomize=True)
# `make test-slow` tries more, `make test-unit` answers sooner with fewer.
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=5, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=300, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# Plain tracebacks: those with all variables, which structlog prints unless told otherwise, take a second each.
_LOGS: dict[str, Any] = structlog.get_config()
_LOGS["processors"] = [
    *_LOGS["processors"][:-1],
    structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
]
structlog.configure(**_LOGS)

# The certificates of public authorities are read once, not by each HTTP client, which takes 25 ms.
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would everything they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_INTEGRATION = Path(__file__).parent / "integration"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests under integration/ are cluster tests, so `-m "not cluster"` starts no cluster."""
    if item.path.is_relative_to(_INTEGRATION):
        item.add_marker(pytest.mark.cluster)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Modules that share a cluster run one after the other, tests with the extender after those without."""
    modules = {item.path: number for number, item in enumerate(reversed(items))}

    def place(item: pytest.Item) -> tuple[str, int, bool]:
        kind = families.family(str(item.path.relative_to(config.rootpath)))
        return kind, modules[item.path], "extender_port" in getattr(item, "fixturenames", ())

    items.sort(key=place)


def pytest_collection() -> None:
    """Collection makes half a million objects and no garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays: the garbage collector need not look at it during each test."""
    gc.freeze()
    gc.enable()
    # Some commands end with this. Each full collection would then visit half a million objects of the tests.
    gc.unfreeze = lambda: None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Commands that a test calls configure the logs of the process."""
    structlog.configure(**_LOGS)


def pytest_sessionstart(session: pytest.Session) -> None:
    if hasattr(session.config, "workerinput"):
        from tests.support.scheduling import send_fewer_messages  # noqa: PLC0415 -- as below

        send_fewer_messages(session.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.support.scheduling import FamilyScheduling  # noqa: PLC0415 -- only where xdist is installed and used

    return FamilyScheduling(config, log)
