"""Every dialect is asked: what it reads of a pod to find the gang is what it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from kgwe import errors
from kgwe.kube.api import core
from kgwe.kube.api.meta import ObjectMeta, OwnerReference
from kgwe.kube.dialects import Groups, Levels, requests, values
from kgwe.kube.dialects.dialect import Dialect
from kgwe.kube.dialects.registry import DIALECTS
from kgwe.model.network import domain_labels

if TYPE_CHECKING:
    from collections.abc import Iterator


class Keys(dict[str, str]):
    """Labels or annotations that remember which keys were read."""

    def __init__(self) -> None:
        self.read: set[str] = set()

    def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
        self.read.add(key)
        return default

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return False

    def __iter__(self) -> Iterator[str]:
        return iter(())


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_dialect_declares_every_key_by_which_it_finds_a_gang(dialect: Dialect) -> None:
    labels, annotations = Keys(), Keys()
    owner = OwnerReference("batch/v1", "Job", "j", "u2", controller=True)
    pod = core.Pod(ObjectMeta(name="p", namespace="n", uid="u", ownerReferences=(owner,)))
    pod = msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels, annotations=annotations)
    )

    assert dialect.key(pod, Groups(Levels(domain_labels.PRESETS["topograph"]), {})) is None

    read = labels.read | annotations.read
    declared = dialect.keys | requests.KEYS  # topology requests are looked for whatever the dialect
    assert {key for key in read if key not in declared and values.domain_of(key) not in declared} == set()
    assert read or dialect.in_spec is not None


def test_a_dialect_that_no_pod_could_use_is_an_error() -> None:
    with pytest.raises(errors.InvariantBroken, match="declares no keys"):
        Dialect("mute", frozenset(), lambda *_: None, lambda *_: None)
