"""Whatever is sent, the extender answers, blames the caller and keeps its books."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from tests.support.builders.extender import Bed, plain
from tests.support.builders.objects import added, free

# What the fields of a call are replaced with.
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 2**64, -(2**70), 1e308, "", "n1", "uid-p", "\x00", "é\U0001f600", "a" * 5000,
    [], [[]], {}, {"a": {}}, ["n1", None], ["n1"] * 500, [{"UID": "uid-p"}] * 50, {"metadata": {"uid": "uid-p"}},
    {"items": [{"metadata": {"name": "n1"}}]},
)  # fmt: skip


def calls() -> dict[str, Any]:
    pod = msgspec.to_builtins(plain())
    victims = {"n1": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}}
    return {
        "/filter": {"Pod": pod, "Nodes": None, "NodeNames": ["n1", "n2"]},
        "/prioritize": {"Pod": pod, "Nodes": None, "NodeNames": ["n1", "n2"]},
        "/preempt": {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims},
        "/bind": {"PodName": "p", "PodNamespace": "team", "PodUID": "uid-p", "Node": "n1"},
    }


def bend(value: Any, rng: random.Random) -> Any:
    """The same with one thing in it replaced, left out or added."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {each: inner for each, inner in value.items() if each != key}
        return {**value, key: bend(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], bend(value[at], rng), *value[at + 1 :]]
    return rng.choice(ODD)


def break_bytes(body: bytes, rng: random.Random) -> bytes:
    broken = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(broken) + 1)
        broken[at : at + rng.randint(0, 3)] = rng.choice(
            (b"", b"\xff", b"[" * 3000, b'"', b"\\ud800", rng.randbytes(2))
        )
    return bytes(broken)


@pytest.mark.parametrize("seed", range(4))
async def test_bent_and_broken_calls_are_answered_without_an_error_of_ours(
    seed: int, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kgwe.apps.scheduler.extender.http._SIGHT_S", 0.0)
    rng, bed = random.Random(seed), Bed()
    bed.state.on_pod(added(plain(gpus=1)))
    bed.state.on_pod(added(plain("low", gpus=2, at="n1")))
    for number in range(500):
        path, good = rng.choice(list(calls().items()))
        body = json.dumps(bend(good, rng)).encode()  # msgspec writes no integers above 64 bits
        await bed.ask(path, break_bytes(body, rng) if number % 2 else body)

    assert sum(bed.counted("error", verb) for verb in ("filter", "prioritize", "preempt")) == 0
    assert "Traceback" not in "".join(capfd.readouterr())
    assert set(bed.state.ledger.assumed) <= {"uid-p"}
    assert free(bed.state)["n1"] in (5, 6)  # of eight: the bound pod has two, the other may hold its one
