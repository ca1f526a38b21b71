"""How well classes are recognised on simulated workloads: usage only, spec only, and both.

Each class of the simulated fleet uses its GPU by the fleet's default profile with random parameters. Its spec is drawn
from what such workloads look like, and any part of it may be missing. The result says what the rules do with workloads
of these shapes; there is no labelled data of real ones.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kgwe import errors
from kgwe.bench import report
from kgwe.forecast.classification.classify import CLASSES, classify
from kgwe.forecast.classification.kinds import WorkloadClass
from kgwe.forecast.classification.usage import UsageSignature, measure_signature
from kgwe.forecast.podfacts import PodFacts
from kgwe.model.simfleet import usage as simulated
from kgwe.model.usage.window import Device, DeviceKey, PodKey, make_window

if TYPE_CHECKING:
    from kgwe.local.host.progress import Progress

_STEP_S: Final = 15.0
_STEPS: Final = 120
_MEMORY_MIB: Final = 81_920.0
_MISSING: Final = 0.3
_IMAGES: Final = {
    WorkloadClass.TRAINING: (("nvidia/pytorch:25.01", ("torchrun", "pretrain.py")), ("lab/megatron:3", ("run",))),
    WorkloadClass.INFERENCE: (("vllm/vllm-openai:v0.11", ("--model", "m")), ("team/api:7", ("python", "serve.py"))),
    WorkloadClass.FINE_TUNING: (("team/llm:9", ("python", "finetune.py")), ("axolotl:main", ("accelerate", "launch"))),
    WorkloadClass.DATA_PREPROCESSING: (("rapids/base:25", ("python", "etl.py")), ("team/data:2", ("tokenize", "all"))),
    WorkloadClass.REINFORCEMENT: (("rayproject/ray:2.40", ("rllib", "train")), ("team/robots:4", ("python", "ppo.py"))),
    WorkloadClass.VISUALIZATION: (("jupyter/base:7", ("jupyter", "lab")), ("team/view:1", ("paraview",))),
}
_OWNERS: Final = {
    WorkloadClass.TRAINING: ("PyTorchJob", "Job", "JobSet"),
    WorkloadClass.INFERENCE: ("Deployment", "InferenceService"),
    WorkloadClass.FINE_TUNING: ("Job", "PyTorchJob"),
    WorkloadClass.DATA_PREPROCESSING: ("Job", "CronJob"),
    WorkloadClass.REINFORCEMENT: ("Job", "RayJob"),
    WorkloadClass.VISUALIZATION: ("StatefulSet", "Notebook", "Deployment"),
}
_PORTS: Final = {WorkloadClass.INFERENCE: (8000,), WorkloadClass.VISUALIZATION: (8888,)}


def run(seeds: int, progress: Progress) -> report.Report:
    """Classify `seeds` workloads of each class."""
    if seeds < 1:
        raise errors.Permanent("--seeds must be at least 1")
    machine = report.examine_machine()
    tables = {name: _empty_table() for name in ("usage", "spec", "both")}
    with progress.step(f"{len(CLASSES)} classes x {seeds} seeds") as step:
        for kind in CLASSES:
            step.update(kind)
            for seed in range(seeds):
                use, facts = draw_usage(kind, seed), draw_facts(kind, seed)
                tables["usage"][kind][classify(None, use).kind] += 1
                tables["spec"][kind][classify(facts).kind] += 1
                tables["both"][kind][classify(facts, use).kind] += 1
    params = {"seeds": seeds, "steps": _STEPS, "step_s": _STEP_S, "missing_share": _MISSING}
    metrics: dict[str, Any] = {}
    for name, table in tables.items():
        metrics[name] = _summarize(table)
        metrics.update({f"{name}_{kind}": dict(row) for kind, row in table.items()})
    return report.Report("classify", params, metrics, machine)


def draw_usage(kind: WorkloadClass, seed: int) -> UsageSignature:
    """Return the signature of half an hour of a simulated workload with random parameters."""
    rng = np.random.default_rng([seed, CLASSES.index(kind)])
    profile = simulated.parse_profile(simulated.DEFAULTS[kind])
    near = rng.uniform(0.85, 1.15, 4)
    profile = dataclasses.replace(
        profile,
        util=min(profile.util * near[0], 1.0),
        mem=min(profile.mem * near[1], 1.0),
        base=profile.base * near[2],
        tensor=profile.tensor * near[3],
        period=profile.period * rng.uniform(0.6, 1.6),
        duty=min(max(profile.duty + rng.uniform(-0.1, 0.1), 0.05), 0.95),
    )
    window = make_window(0.0, _STEP_S, _STEPS, (Device(DeviceKey("node", "gpu", "", PodKey("bench", kind))),))
    for step in range(_STEPS):
        moments = np.arange(step * _STEP_S, (step + 1) * _STEP_S, 5.0) + 60.0
        uses = [simulated.usage_at(profile, age, age, seed) for age in moments.tolist()]
        window.activity[0, step] = np.mean([use.util for use in uses])
        window.tensor[0, step] = np.mean([use.tensor for use in uses])
        window.memory_used_mib[0, step] = _MEMORY_MIB * uses[-1].memory
    window.memory_total_mib[:] = _MEMORY_MIB
    return measure_signature(window, [0])


def draw_facts(kind: WorkloadClass, seed: int) -> PodFacts:
    """Return the spec of a simulated workload; each part is missing with a fixed probability."""
    rng = np.random.default_rng([seed, CLASSES.index(kind), 1])
    has_image, has_owner, has_port = rng.random(3) >= _MISSING
    image, command = _IMAGES[kind][int(rng.integers(len(_IMAGES[kind])))]
    owner = _OWNERS[kind][int(rng.integers(len(_OWNERS[kind])))]
    return PodFacts(
        image=image if has_image else "team/app:1",
        command=command if has_image else ("python", "main.py"),
        owner_kind=owner if has_owner else "",
        ports=_PORTS.get(kind, ()) if has_port else (),
        replicas=int(rng.integers(1, 5)) if kind is WorkloadClass.TRAINING else 1,
        has_probe=bool(has_port) and kind is WorkloadClass.INFERENCE,
    )


def _empty_table() -> dict[WorkloadClass, dict[str, int]]:
    return {kind: {str(other): 0 for other in (*CLASSES, WorkloadClass.UNKNOWN)} for kind in CLASSES}


def _summarize(table: dict[WorkloadClass, dict[str, int]]) -> dict[str, float]:
    """Return the shares that are right, wrong and unknown, and how many answers are right."""
    total = sum(sum(row.values()) for row in table.values())
    right = sum(row[kind] for kind, row in table.items())
    unknown = sum(row[WorkloadClass.UNKNOWN] for row in table.values())
    answered = total - unknown
    return {
        "right_share": round(right / total, 4),
        "wrong_share": round((answered - right) / total, 4),
        "unknown_share": round(unknown / total, 4),
        "right_of_answers": round(right / answered, 4) if answered else 0.0,
    }
