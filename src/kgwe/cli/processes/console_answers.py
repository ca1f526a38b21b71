"""Explanations and plans for the console, made by the code of `kgwe explain` and `kgwe simulate --from-cluster`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgwe import errors, yaml_text
from kgwe.apps.whatif import explain, limited, subject
from kgwe.apps.whatif.explanation import Explanation, WhatIf
from kgwe.apps.whatif.scenario import Scenario
from kgwe.kube.client import manifests

if TYPE_CHECKING:
    from kgwe.apps.console.work_routes import SubjectQuery
    from kgwe.cluster.offline import View
    from kgwe.kube.client.manifests import Document


class WhatIfAnswers:
    """Answers on views of the cluster."""

    explanation = Explanation
    scenario = WhatIf

    def explain(self, view: View, query: SubjectQuery) -> Explanation:
        """Return why a workload or pod is where it is; a view of one namespace tells what the schedulers wrote."""
        found = subject.find(view, query.name, query.namespace, query.kind or None, query.group)
        return limited.explain_limited(view, found, ()) if view.namespace else explain.explain(view, found)

    def read(self, manifest: str) -> list[Document]:
        """Return the objects of a manifest; raise Permanent with what is wrong."""
        return read_documents(manifest)

    def plan(self, view: View, documents: list[Document], namespace: str) -> WhatIf:
        """Return where objects would go."""
        scenario = Scenario(view)
        scenario.submit(documents, namespace)
        return scenario.answer()


def read_documents(text: str) -> list[Document]:
    """Return the objects of a manifest; raise Permanent with what is wrong."""
    try:
        yaml_text.check_plain(text)
    except yaml_text.HasAlias as exc:
        raise errors.Permanent("the manifest uses YAML aliases (*name): write their content instead") from exc
    except yaml_text.TooDeep as exc:
        raise errors.Permanent(f"the manifest is {exc}") from exc
    found = manifests.parse_manifests(text, "the manifest")
    if not found:
        raise errors.Permanent("the manifest is empty: paste a GPUWorkload, Job, Deployment or pod")
    return found
