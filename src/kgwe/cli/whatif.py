"""`kgwe simulate --from-cluster`: what would become of work on the live cluster, without creating any."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from kgwe import errors
from kgwe.apps.whatif import explain, words
from kgwe.apps.whatif.scenario import Scenario, WhatIf
from kgwe.cluster import offline
from kgwe.kube.api import core, timestamp
from kgwe.kube.client import manifests
from kgwe.kube.client.client import KubeClient
from kgwe.local.fleet import gpunodes, models
from kgwe.model.simfleet import inventory
from kgwe.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kgwe.cluster.offline import View
    from kgwe.kube.api.kgwe.gpunode import GPUNode
    from kgwe.model.network import domain_labels

app = App(
    name="--from-cluster",
    help="""What would become of work on the live cluster: planned as the scheduler would, and nothing created.

Nodes can be added (of a fleet model, or more like one that is there) and taken away. Added nodes of a model are leaves
of their own, below the spine that all nodes share if there is only one. Work is planned as if it came first; how many
others wait before it is told. The exit code is 1 when not all of it would start.""",
    help_format="plaintext",
    help_epilogue="""Examples:
  kgwe simulate --from-cluster --submit train.yaml
  kgwe simulate --from-cluster --submit train.yaml --add-nodes dgx-h100=4
  kgwe simulate --from-cluster --workload llm-training --level required=spine
  kgwe simulate --from-cluster --workload llm-training --add-nodes h100-0007=2      two more like h100-0007
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
    """Plan work on the live cluster, with other nodes or another level.

    Parameters
    ----------
    submit
        Manifests of GPUWorkloads, pods, Jobs, Deployments or gangs that are planned as if they had been created.
    workload
        A workload or pod that is there already: planned anew, as if it held nothing.
    add_nodes
        MODEL=COUNT (a fleet model, by name or file) or NODE=COUNT (more like a node that is there).
    remove_node
        A node that is taken away.
    level
        required=LEVEL or preferred=LEVEL, instead of what the work says; required= for none.
    namespace
        Of the work, where it does not say; that of the kubeconfig's context when left out.
    output
        How to print it.
    kubeconfig
        How to reach the API server.
    """
    logs.configure(level="error")
    if not submit and not workload:
        raise errors.Permanent("what should be planned? Give --submit FILE or --workload NAME")
    documents = [document for path in submit or () for document in manifests.load_manifests(path)]

    async def ask() -> WhatIf:
        async with KubeClient.connect(kubeconfig, field_manager="kgwe-simulate") as client:
            where = namespace or client.namespace
            scenario = Scenario(await offline.read(client))
            for name in remove_node or ():
                scenario.remove_node(name)
            for number, text in enumerate(add_nodes or ()):
                _add(scenario, text, number)
            for text in level or ():
                scenario.set_level(text)
            for name in workload or ():
                scenario.again(_owner(scenario.view, name, where))
            if documents:
                scenario.submit(documents, where)
            return scenario.answer()

    told = asyncio.run(ask())
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told)).decode() + "\n")
    else:
        sys.stdout.write(words.what_if(told))
    return 0 if told.all_start else 1


def _owner(seen: View, name: str, namespace: str) -> str:
    """Whose plan it is: a workload's, a gang's or a pod's own."""
    subject = explain.find(seen, name, namespace)
    return explain.owner_of(seen, subject)


# --- more nodes ------------------------------------------------------------------------------------------


def _add(scenario: Scenario, text: str, number: int) -> None:
    name, equals, count = text.rpartition("=")
    if not equals or not count.isdigit() or not int(count):
        raise errors.Permanent(f"--add-nodes {text!r}: give MODEL=COUNT or NODE=COUNT, such as dgx-h100=4")
    seen = scenario.view
    if name in seen.fleet.snapshot.index:
        scenario.add_nodes(_like(seen, name, int(count), number), f"{count} x {name}")
    else:
        scenario.add_nodes(_of_model(seen, name, int(count), number), f"{count} x {name} in leaves of their own")


def _like(seen: View, name: str, count: int, number: int) -> Iterator[tuple[core.Node, GPUNode | None]]:
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


def _of_model(seen: View, name: str, count: int, number: int) -> Iterator[tuple[core.Node, GPUNode | None]]:
    keys = seen.state.reader.labels()
    shared = _shared(seen)
    try:
        model = models.load(name)
    except errors.Permanent as exc:
        raise errors.Permanent(f"no GPU node {name!r}, and {exc}") from exc
    for each in inventory.expand(model, count):
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
        labels = {**built.metadata.labels, **_labelled(keys, node)}
        meta = msgspec.structs.replace(built.metadata, labels=labels)
        yield msgspec.structs.replace(built, metadata=meta), gpunodes.gpu_node(node, "")


def _shared(seen: View) -> Mapping[str, str]:
    """Level above the leaf -> the one domain of it that there is."""
    found = {}
    for level in seen.fleet.tree.levels[1:]:
        names = {name for name in level.names if name}
        if len(names) == 1:
            found[level.name] = names.pop()
    return found


def _labelled(keys: domain_labels.Labels, node: inventory.FleetNode) -> dict[str, str]:
    """Where the node hangs, in the labels that this cluster's nodes carry."""
    path = (node.place.leaf, node.place.spine, node.place.core, node.place.zone)
    own = inventory.labels(node)
    return {
        level.keys[0]: name
        for level, name in zip(keys.levels, path, strict=False)
        if name and not any(key in own for key in level.keys)
    }
