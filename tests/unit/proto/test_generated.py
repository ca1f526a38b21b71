"""The code of the protocols is what the .proto files say."""

from __future__ import annotations

from kgwe.proto import generate


def test_generated_code_is_current():
    assert generate.sources()
    assert generate.stale() == [], "run `make proto`"
