"""Any input from outside is accepted, or refused with an error of KGWE: nothing else is raised.

Each target has a corpus in `corpus/TARGET`. `make fuzz` tries more inputs, with a new seed (KGWE_FUZZ_INPUTS,
KGWE_FUZZ_SEED). An input that fails is printed; add it to the corpus with the fix.
"""

from __future__ import annotations

import datetime as dt
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import yaml
from tests.support import mutation

from kgwe import errors, yaml_text
from kgwe.apps.webhook.handler import PATH, AdmissionHandler
from kgwe.apps.webhook.metrics import Metrics
from kgwe.hardware.dcgm.scrape import MetricsReader
from kgwe.httpapi import windows
from kgwe.kube.api import resources
from kgwe.kube.client import manifests
from kgwe.kube.translate import extender_wire
from kgwe.metrics.exposition import ExpositionReader
from kgwe.model.gpu import nccl_xml, smi_topo
from kgwe.optimizerapi import messages
from kgwe.proto import agent_pb2, optimizer_pb2
from kgwe.records import decisions
from kgwe.rpc import server as rpc
from kgwe.sim.traces import loaders, openb
from kgwe.store.ledger import price_files
from kgwe.telemetry.messages import Request, path_of

if TYPE_CHECKING:
    from collections.abc import Callable

CORPUS = Path(__file__).parent / "corpus"
INPUTS = int(os.environ.get("KGWE_FUZZ_INPUTS", "120"))
SEED = int(os.environ.get("KGWE_FUZZ_SEED", "1"))
NOW_S = int(dt.datetime(2026, 11, 18, tzinfo=dt.UTC).timestamp())


@functools.cache
def handler():
    return AdmissionHandler(find_decisions=lambda _: None, list_revoked=tuple, exempt=(), metrics=Metrics())


def admit(data, _file):
    reply = handler()(Request("POST", PATH, [], data, too_large=False))
    assert reply.status in {200, 400}


def read_filter(data, _file):
    args = extender_wire.Args(data)
    args.names()
    args.has_node("node")
    args.refuse_all("no")


def read_preempt(data, _file):
    extender_wire.read_preempt(data).victims()


def read_grpc(kind, data, _file):
    message = rpc.check_message(rpc._make_reader(kind)(data))
    messages.check_texts(message)
    if isinstance(message, optimizer_pb2.Workload):
        messages.decode_workload(message, 0.0)


def read_file(read, data, file):
    file.write_bytes(data)
    read(file)


def read_manifest(file):
    """As `kgwe explain` and `kgwe predict` read the manifests of users."""
    for document in manifests.load_manifests(file):
        if document.get("kind") == "GPUWorkload":
            try:
                msgspec.convert(document, resources.GPU_WORKLOAD.type, strict=False)
            except (msgspec.ValidationError, ValueError) as exc:
                raise errors.Permanent(str(exc)) from exc


def read_yaml(text):
    """Callers turn these two into their own errors."""
    try:
        list(yaml_text.parse_documents(text))
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise errors.Permanent(str(exc)) from exc


TARGETS: dict[str, Callable[[bytes, Path], object]] = {
    "extender-filter": read_filter,
    "extender-preempt": read_preempt,
    "extender-bind": lambda data, _: extender_wire.read_bind(data),
    "admission": admit,
    "grpc-workload": functools.partial(read_grpc, optimizer_pb2.Workload),
    "grpc-topology": functools.partial(read_grpc, agent_pb2.Topology),
    "http-path": lambda data, _: path_of(data),
    "http-window": lambda data, _: windows.parse_window(data.decode("latin-1"), NOW_S),
    "manifest": functools.partial(read_file, read_manifest),
    "yaml": lambda data, _: read_yaml(data.decode("utf-8", "replace")),
    "exposition": lambda data, _: ExpositionReader().read(data),
    "dcgm": lambda data, _: MetricsReader().read(data.decode("utf-8", "replace")),
    "smi-topology": lambda data, _: smi_topo.parse_smi_topology(data.decode("utf-8", "replace")),
    "nccl-topology": lambda data, _: nccl_xml.parse_nccl_xml(data.decode("utf-8", "replace")),
    "prices": functools.partial(read_file, lambda file: price_files.load_book([file], with_defaults=False)),
    "trace-openb": functools.partial(read_file, openb.read_trace),
    "trace-philly": functools.partial(read_file, loaders.read_philly),
    "records": functools.partial(read_file, lambda file: list(decisions.read_lines([file]))),
}
SUFFIX = {"prices": ".yaml", "trace-openb": ".csv", "trace-philly": ".csv", "records": ".jsonl", "manifest": ".yaml"}


@pytest.mark.parametrize("target", TARGETS)
def test_an_input_is_accepted_or_refused_with_a_clear_error(target, tmp_path):
    corpus = [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]
    file = tmp_path / f"input{SUFFIX.get(target, '')}"
    accepted, refusals = 0, set[str]()
    for number, data in enumerate(mutation.mutate(corpus, INPUTS, SEED)):
        try:
            TARGETS[target](data, file)
            accepted += 1
        except errors.KgweError as exc:
            refusals.add(str(exc))
        except Exception as exc:  # noqa: BLE001 - that is what this looks for
            pytest.fail(f"{target}, input {number} of seed {SEED}: {exc!r}\n{data[:2000]!r}")
    assert accepted > 0, "the corpus has no valid input"
    assert "" not in refusals
