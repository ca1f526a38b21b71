"""Names of workloads and pods as users write them."""

from __future__ import annotations

import pytest

from kgwe import errors
from kgwe.cli.subject_name import SubjectName, parse_name

KGWE, WARP = "kgwe.nvidia.io", "gpu.warp.dev"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("finetune", SubjectName("finetune")),
        ("ml-team/finetune", SubjectName("finetune", "ml-team")),
        ("pod/trainer-0", SubjectName("trainer-0", None, "pod")),
        ("Pod/ml-team/trainer-0", SubjectName("trainer-0", "ml-team", "pod")),
        ("workload/finetune", SubjectName("finetune", None, "workload")),
        ("gw/finetune", SubjectName("finetune", None, "workload", KGWE)),
        ("gpuw/ml-team/finetune", SubjectName("finetune", "ml-team", "workload", WARP)),
        ("gpuworkload.gpu.warp.dev/small", SubjectName("small", None, "workload", WARP)),
        ("gpuworkloads.kgwe.nvidia.io/small", SubjectName("small", None, "workload", KGWE)),
    ],
)
def test_a_known_kind_is_a_kind_and_another_first_part_is_a_namespace(text: str, expected: SubjectName) -> None:
    assert parse_name(text) == expected


def test_options_fill_what_the_name_leaves_open() -> None:
    assert parse_name("finetune", "ml-team", "pod") == SubjectName("finetune", "ml-team", "pod")
    assert parse_name("ml-team/finetune", "ml-team") == SubjectName("finetune", "ml-team")


@pytest.mark.parametrize("text", ["a/b/c", "pod/a/b/c", "pod/", "/a", "a/", "pod//a", ""])
def test_a_malformed_name_is_refused_with_the_forms(text: str) -> None:
    with pytest.raises(errors.Permanent, match="expected NAME, NAMESPACE/NAME"):
        parse_name(text)


def test_options_that_contradict_the_name_are_refused() -> None:
    with pytest.raises(errors.Permanent, match="names namespace ml-team, and -n says default"):
        parse_name("ml-team/finetune", "default")
    with pytest.raises(errors.Permanent, match="names a pod, and --kind says workload"):
        parse_name("pod/a", kind="workload")


@pytest.mark.parametrize("text", ["", "pod/", "gw/", "ml-team/", "pod/ml-team/"])
def test_an_empty_name_is_said_to_be_empty(text: str) -> None:
    with pytest.raises(errors.Permanent, match="name is empty: expected NAME"):
        parse_name(text)
