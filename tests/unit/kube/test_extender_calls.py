"""What kube-scheduler sends, and what it is told."""

from __future__ import annotations

import json

import pytest

from kgwe import errors
from kgwe.kube.translate import extender_wire


def args(names: object) -> extender_wire.Args:
    return extender_wire.Args(json.dumps({"Pod": {"metadata": {"uid": "u"}}, "NodeNames": names}).encode())


@pytest.mark.parametrize("names", [[], ["a"], ["a", "b", "c"], ["é", "b"], ['quo"te', "back\\slash", "b"]])
def test_every_node_gets_its_points(names: list[str]):
    points = [(3 * number) % (extender_wire.HIGHEST + 1) for number in range(len(names))]
    told = json.loads(args(names).reply_with_scores(points))
    assert told == [{"Host": name, "Score": score} for name, score in zip(names, points, strict=True)]


def test_names_as_they_are_written():
    plain = b'{"Pod":{"metadata":{"uid":"u"}},"NodeNames":[ "\xc3\xa9" ,\n"b"]}'
    assert json.loads(extender_wire.Args(plain).reply_with_scores([10, 0])) == [
        {"Host": "é", "Score": 10},
        {"Host": "b", "Score": 0},
    ]


@pytest.mark.parametrize("names", [[1], "a", {"a": 1}])
def test_what_is_no_list_of_names_is_said(names: object):
    with pytest.raises(errors.Permanent, match="not an extender request"):
        args(names).reply_with_scores([0])
