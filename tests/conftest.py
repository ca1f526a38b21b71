"""What every test shares: Hypothesis without deadlines, and the mark of tests that need a cluster."""

from __future__ import annotations

import os

import hypothesis
import pytest

# A busy machine must not fail a property; derandomized where a failure has to be reproducible by rerunning.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("ci", deadline=None, max_examples=300, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_CLUSTER_FIXTURES = {"cluster", "private_cluster", "namespace"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever asks for a cluster is a cluster test, so that `-m "not cluster"` never starts one."""
    for item in items:
        if _CLUSTER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.cluster)
