"""What every test shares: Hypothesis without deadlines, and the mark of tests that need a cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import hypothesis
import pytest

# The same examples every time: a change fails for what it changed. `make search` looks for examples nobody has seen.
# No deadlines: a busy machine must not fail a property.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=300, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell that runs the tests in the background has them ignore Ctrl-C, and so would everything they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_INTEGRATION = Path(__file__).parent / "integration"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies under integration/ is a cluster test, so that `-m "not cluster"` never starts one."""
    for item in items:
        if item.path.is_relative_to(_INTEGRATION):
            item.add_marker(pytest.mark.cluster)
