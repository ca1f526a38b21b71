"""`kgwe simulate --from-cluster`: plans workloads on a copy of the live cluster, and creates nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors, terminal
from kgwe.apps.whatif import subject as subjects
from kgwe.apps.whatif import words
from kgwe.apps.whatif.scenario import Scenario
from kgwe.cli import subject_name
from kgwe.cluster import offline
from kgwe.kube.api import core, timestamp
from kgwe.kube.client import manifests
from kgwe.kube.client.client import KubeClient
from kgwe.local.fleet import gpunodes, models
from kgwe.model.simfleet import inventory
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgwe.apps.whatif.explanation import WhatIf
    from kgwe.cli.subject_name import SubjectName
    from kgwe.cluster.offline import View
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.model.network import domain_labels

app = App(
    name="--from-cluster",
    help="""Plan workloads on a copy of the live cluster as the scheduler would, and create nothing.

Nodes can be added (of a fleet model, or copies of an existing node) and removed. Added nodes of a model form new
leaves, below the spine if all nodes share one. Workloads are planned as if they were first in the queue; the answer
says how many others wait before them. Exit code 1 if not all of them would start.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe simulate --from-cluster --submit train.yaml
  kgwe simulate --from-cluster --submit train.yaml --add-nodes dgx-h100=4
  kgwe simulate --from-cluster --workload llm-training --level required=spine
  kgwe simulate --from-cluster --workload llm-training --add-nodes h100-0007=2      two copies of h100-0007
  kgwe simulate --from-cluster --remove-node h100-0003 --workload llm-training -o json""",
)

Kubeconfig = Annotated[Path | None, Parameter(env_var="KUBECONFIG")]


@app.default
def whatif(
    *,
    submit: list[Path] | None = None,
    workload: list[str] | None = None,
    add_nodes: list[str] | None = None,
    remove_node: list[str] | None = None,
    level: list[str] | None = None,
    namespace: Annotated[str | None, Parameter(name=["--namespace", "-n"])] = None,
    output: Annotated[Literal["text", "json"], Parameter(name=["--output", "-o"])] = "text",
    kubeconfig: Kubeconfig = None,
) -> int:
    """Plan workloads on a copy of the live cluster, with other nodes or another topology level.

    Parameters
    ----------
    submit
        Manifests of GPUWorkloads, pods, Jobs, Deployments or gangs, planned as if you had created them.
    workload
        Existing workload or pod (NAME, NAMESPACE/NAME or KIND/NAME), planned again as if it held no GPUs.
    add_nodes
        MODEL=COUNT (a fleet model, by name or file) or NODE=COUNT (copies of an existing node).
    remove_node
        Node to leave out.
    level
        required=LEVEL or preferred=LEVEL, instead of the workload's own level; "required=" removes it.
    namespace
        Namespace of workloads that do not name one. Default: the namespace of the kubeconfig's context.
    output
        Output format.
    kubeconfig
        Path of the kubeconfig.
    """
    logs.configure(level="error")
    if not submit and not workload:
        raise errors.Permanent("nothing to plan; pass --submit FILE or --workload NAME")
    documents = [document for path in submit or () for document in manifests.load_manifests(path)]

    async def ask() -> WhatIf:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-simulate") as client:
            where = namespace or client.namespace
            scenario = Scenario(await offline.read(client))
            for name in remove_node or ():
                scenario.remove_node(name)
            for number, text in enumerate(add_nodes or ()):
                _add_nodes(scenario, text, number)
            for text in level or ():
                scenario.set_level(text)
            for name in workload or ():
                scenario.plan_again(_find_owner(scenario.view, subject_name.parse_name(name, namespace), where))
            if documents:
                scenario.submit(documents, where)
            return scenario.answer()

    told = asyncio.run(ask())
    if output == "json":
        terminal.write(msgspec.json.format(msgspec.json.encode(told)).decode() + "\n")
    else:
        terminal.write(words.what_if(told))
    return 0 if told.all_start else 1


def _find_owner(seen: View, asked: SubjectName, namespace: str) -> str:
    """Return the owner of the plan: a workload, a gang or a single pod. `namespace` is the default."""
    subject = subjects.find(seen, asked.name, asked.namespace or namespace, asked.kind, asked.group)
    return subjects.owner_of(seen, subject)


# --- more nodes ------------------------------------------------------------------------------------------


def _add_nodes(scenario: Scenario, text: str, number: int) -> None:
    name, equals, count = text.rpartition("=")
    if not equals or not count.isdigit() or not int(count):
        raise errors.Permanent(f"--add-nodes {text!r}: expected MODEL=COUNT or NODE=COUNT, such as dgx-h100=4")
    seen = scenario.view
    if name in seen.fleet.snapshot.index:
        scenario.add_nodes(_copy_node(seen, name, int(count), number), f"{count} x {name}")
    else:
        scenario.add_nodes(_add_model_nodes(seen, name, int(count), number), f"{count} x {name} in new leaves")


def _copy_node(seen: View, name: str, count: int, number: int) -> Iterator[tuple[core.Node, GPUNode | None]]:
    node, gpu_node = seen.state.reader.objects(name)
    for each in range(count):
        called = f"{name}-more-{number}-{each}"
        meta = msgspec.structs.replace(node.metadata, name=called, uid="")
        copy = None
        if gpu_node is not None:
            copy = msgspec.structs.replace(
                gpu_node, metadata=msgspec.structs.replace(gpu_node.metadata, name=called, uid="")
            )
        yield msgspec.structs.replace(node, metadata=meta), copy


def _add_model_nodes(seen: View, name: str, count: int, number: int) -> Iterator[tuple[core.Node, GPUNode | None]]:
    keys = seen.state.reader.labels()
    shared = _find_shared_domains(seen)
    try:
        model = models.load(name)
    except errors.Permanent as exc:
        raise errors.Permanent(f"no GPU node {name!r}, and {exc}") from exc
    for each in inventory.expand_fleet(model, count):
        place = each.place
        moved = dataclasses.replace(
            place,
            leaf=f"added-{number}-{place.leaf}",
            spine=shared.get("spine") or f"added-{number}-{place.spine}",
            core=shared.get("core") or f"added-{number}-{place.core}",
            clique=f"{place.clique}{number}" if place.clique else "",
        )
        node = dataclasses.replace(each, name=f"added-{number}-{each.name}", place=moved)
        built = msgspec.convert(gpunodes.node_manifest(node, now=timestamp.seconds()), core.Node, strict=False)
        labels = {**built.metadata.labels, **_label_position(keys, node)}
        meta = msgspec.structs.replace(built.metadata, labels=labels)
        yield msgspec.structs.replace(built, metadata=meta), gpunodes.gpu_node(node, "")


def _find_shared_domains(seen: View) -> Mapping[str, str]:
    """Return the domain of each level above the leaf that has only one domain."""
    found = {}
    for level in seen.fleet.tree.levels[1:]:
        names = {name for name in level.names if name}
        if len(names) == 1:
            found[level.name] = names.pop()
    return found


def _label_position(keys: domain_labels.Labels, node: inventory.FleetNode) -> dict[str, str]:
    """Return the labels that give the node its network position, in the label keys of this cluster."""
    path = (node.place.leaf, node.place.spine, node.place.core, node.place.zone)
    own = inventory.labels(node)
    return {
        level.keys[0]: name
        for level, name in zip(keys.levels, path, strict=False)
        if name and not any(key in own for key in level.keys)
    }
