"""Whoever reads the gangs of others has the right to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kgwe.kube.dialects import KINDS

DEPLOY = Path(__file__).parents[4] / "deploy"


@pytest.mark.parametrize("file", ["rbac.yaml", "advisor.yaml"])
def test_every_kind_may_be_listed_and_watched(file: str) -> None:
    roles: list[dict[str, Any]] = [
        each for each in yaml.safe_load_all((DEPLOY / file).read_text()) if each["kind"] == "ClusterRole"
    ]
    rules = [rule for role in roles for rule in role["rules"]]
    lacking = [
        f"{kind.plural}.{kind.group}"
        for kind in KINDS
        if not any(
            kind.group in rule["apiGroups"]
            and kind.plural in rule["resources"]
            and {"list", "watch"} <= {*rule["verbs"]}
            for rule in rules
        )
    ]
    assert not lacking
