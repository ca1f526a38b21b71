"""Requests as keys of caches."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace

from kgwe.placement.fleet.constraints import Constraints
from kgwe.placement.fleet.node import Gpus, Request, SpotPolicy
from kgwe.placement.fleet.taints import Toleration

_CHECK = """
import pickle, sys
from kgwe.placement.fleet.node import Gpus, Request
read = pickle.loads(sys.stdin.buffer.read())
assert hash(read) == hash(Request(Gpus(count=1), model="H100")), "hashed as in the other process"
"""


def request() -> Request:
    allowed = Constraints((("zone", "a"),), None, (Toleration("gpu", "Exists", "", "NoSchedule"),))
    return Request(Gpus(count=2), cpu_milli=4, model="H100", constraints=allowed, spot=SpotPolicy.AVOID)


def test_equal_requests_have_equal_hashes():
    assert request() == request()
    assert hash(request()) == hash(request())


def test_a_changed_copy_is_another_key():
    other = replace(request(), cpu_milli=5)
    assert other != request()
    assert hash(other) != hash(request())
    assert {request(): 1, other: 2}[other] == 2


def test_copies_are_equal_and_hash_alike():
    for found in (pickle.loads(pickle.dumps(request())), copy.deepcopy(request())):  # noqa: S301 - made here
        assert found == request()
        assert hash(found) == hash(request())


def test_a_request_from_another_process_has_the_hash_of_this_one():
    """Texts have other hashes there."""
    sent = pickle.dumps(Request(Gpus(count=1), model="H100"))
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run([sys.executable, "-c", _CHECK], input=sent, check=True, env=env)
