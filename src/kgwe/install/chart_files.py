"""The generated files of the charts: kinds, rights, policies, the extender's entry and the schema of the values.

Rights and policies are written once, in `deploy/`: local clusters and tests apply them without Helm. The charts have
copies, without what the templates of the charts render themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from kgwe.install import values_schema
from kgwe.kube.client import manifests
from kgwe.kube.crd import definitions
from kgwe.kube.translate import scheduler_config

if TYPE_CHECKING:
    from pathlib import Path

#: file of the chart -> file of deploy/
SOURCES: Final = {
    "scheduler.yaml": "rbac.yaml",
    "mig.yaml": "mig.yaml",
    "optimizer.yaml": "optimizer.yaml",
    "cost-engine.yaml": "cost-engine.yaml",
    "autoscaler.yaml": "autoscaler.yaml",
    "webhook.yaml": "webhook.yaml",
    "console.yaml": "console.yaml",
    "advisor.yaml": "advisor.yaml",
    "agent.yaml": "agent.yaml",
    "decisions.yaml": "decisions.yaml",
    "priority.yaml": "priority.yaml",
    "admission.yaml": "admission.yaml",
    "gang-seats.yaml": "gang-seats.yaml",
    "rightsizing.yaml": "rightsizing.yaml",
    "roles.yaml": "roles.yaml",
}
# Templates of the chart render these, by values.
_OMITTED: Final = frozenset({"Namespace", "DaemonSet", "Deployment", "SeatRevocation"})
_SCHEDULER, _CONTROLLER = "kgwe-scheduler", "kgwe-controller"
_HEADER: Final = "# Made from {} by `make crds`. Do not edit.\n"
CHART: Final = "kgwe"
CRDS_CHART: Final = "kgwe-crds"


def build_files(root: Path) -> dict[str, str]:
    """Return path below charts/ -> content, for a checkout of KGWE."""
    found: dict[str, str] = {}
    for name, source in SOURCES.items():
        path = root / "deploy" / source
        if path.is_file():
            documents = [each for each in manifests.load_manifests(path) if each["kind"] not in _OMITTED]
            found[f"{CHART}/files/{name}"] = _write(f"deploy/{source}", documents)
    scheduler = manifests.load_manifests(root / "deploy" / SOURCES["scheduler.yaml"])
    found[f"{CHART}/files/controller.yaml"] = _write("deploy/rbac.yaml", _limit_to_controller(scheduler))
    extender = scheduler_config.build_config("http://127.0.0.1")["extenders"][0]
    found[f"{CHART}/files/extender.yaml"] = _write("kgwe.kube.translate.scheduler_config", [extender])
    for kind in definitions.KINDS:
        body = definitions.manifest(kind)
        for folder in (f"{CHART}/files/crds", f"{CRDS_CHART}/files"):
            found[f"{folder}/{definitions.file_name(body)}"] = definitions.to_yaml(body)
    values = (root / "charts" / CHART / "values.yaml").read_text(encoding="utf-8")
    found[f"{CHART}/values.schema.json"] = values_schema.render(values)
    return found


def is_generated(path: str) -> bool:
    """Whether a file below charts/ is made by `build_files`, or was by an earlier release."""
    return path.startswith((f"{CHART}/files/", f"{CRDS_CHART}/files/"))


def _limit_to_controller(documents: list[manifests.Document]) -> list[manifests.Document]:
    """Return the rights of `kgwe controller`: those of the scheduler without binding pods for kube-scheduler."""
    found = []
    for document in documents:
        if document["kind"] in _OMITTED:
            continue
        if document["kind"] == "ClusterRole":
            document["rules"] = [rule for rule in document["rules"] if rule["resources"] != ["pods/binding"]]
        found.append(_rename(document))
    return found


def _rename(document: manifests.Document) -> manifests.Document:
    """Give the account and its roles another name. The Lease and the key keep theirs: only one of the two acts."""
    meta = document["metadata"]
    meta["name"] = meta["name"].replace(_SCHEDULER, _CONTROLLER)
    for reference in (document.get("roleRef"), *document.get("subjects", ())):
        if reference is not None:
            reference["name"] = reference["name"].replace(_SCHEDULER, _CONTROLLER)
    return document


def _write(source: str, documents: list[Any]) -> str:
    # Without aliases, which Helm's parser would have to resolve.
    text = yaml.dump_all(documents, Dumper=_PlainDumper, sort_keys=False, width=120, allow_unicode=True)
    return _HEADER.format(source) + text


class _PlainDumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - of the base class
        return True
