"""Rules that read the spec of a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kgwe.forecast.classification.kinds import Rule, WorkloadClass

if TYPE_CHECKING:
    from collections.abc import Callable

    from kgwe.forecast.podfacts import PodFacts

    Test = Callable[[PodFacts], bool]

TRAINING, INFERENCE, TUNING = WorkloadClass.TRAINING, WorkloadClass.INFERENCE, WorkloadClass.FINE_TUNING
DATA, LEARNING, VISUAL = WorkloadClass.DATA_PREPROCESSING, WorkloadClass.REINFORCEMENT, WorkloadClass.VISUALIZATION

TYPE_LABELS: Final = ("kgwe.nvidia.io/workload-type", "gpu-autoscaler.io/workload-type")
_DECLARED: Final = {
    "training": TRAINING,
    "inference": INFERENCE,
    "serving": INFERENCE,
    "finetuning": TUNING,
    "fine-tuning": TUNING,
    "datapreprocessing": DATA,
    "preprocessing": DATA,
    "reinforcement": LEARNING,
    "visualization": VISUAL,
    "interactive": VISUAL,
    "development": VISUAL,
}
# Words of images and commands, as a regular expression.
_WORDS: Final = {
    INFERENCE: "vllm|sglang|tritonserver|triton-inference-server|text-generation-inference|tgi|torchserve|kserve"
    "|bentoml|llama-server|ollama|serve|inference",
    TRAINING: "train|training|pretrain|pretraining|torchrun|deepspeed|megatron|horovodrun|composer",
    TUNING: "finetune|finetuning|fine-tune|fine_tune|lora|qlora|peft|axolotl|llama-factory|llamafactory"
    "|sft|dpo|unsloth",
    DATA: "preprocess|preprocessing|etl|tokenize|dali|rapids|cudf|nvtabular|dask|spark|featurize|transcode|ffmpeg",
    LEARNING: "ppo|rllib|rlhf|grpo|isaac|isaacgym|isaaclab|gymnasium|mujoco|openrlhf|verl|rollout",
    VISUAL: "jupyter|jupyterlab|notebook|code-server|rstudio|paraview|omniverse|blender|vnc|novnc|tensorboard"
    "|streamlit|gradio",
}
_SERVICE_OWNERS: Final = frozenset({"Deployment", "ReplicaSet", "InferenceService", "LeaderWorkerSet", "RayService"})
_TRAINING_OWNERS: Final = frozenset(
    {"PyTorchJob", "MPIJob", "TFJob", "JAXJob", "TrainJob", "XGBoostJob", "PaddleJob", "JobSet"}
)
_BATCH_OWNERS: Final = frozenset({"Job", "CronJob"})
_SCREEN_PORTS: Final = frozenset({5901, 6006, 6080, 7860, 8501, 8787, 8888})
_MANY: Final = 2
_DECLARED_WEIGHT: Final = 4.0
_WORD_WEIGHTS: Final = {INFERENCE: 2.5, TRAINING: 2.0, TUNING: 3.0, DATA: 2.5, LEARNING: 3.0, VISUAL: 3.0}


def _make_declared_rule(kind: WorkloadClass) -> Rule[PodFacts]:
    def holds(facts: PodFacts) -> bool:
        return any(_DECLARED.get(facts.labels.get(label, "").lower()) is kind for label in TYPE_LABELS)

    return Rule(f"declared-{kind}", f"A label declares the workload type {kind}.", {kind: _DECLARED_WEIGHT}, holds)


def _make_word_rule(kind: WorkloadClass, words: str) -> Rule[PodFacts]:
    sentence = f"Image or command contain a word that is typical of {kind}."
    return Rule(f"named-{kind}", sentence, {kind: _WORD_WEIGHTS[kind]}, lambda facts: bool(facts.find_word(words)))


def _is_owned_by(kinds: frozenset[str]) -> Test:
    return lambda facts: facts.owner_kind in kinds


def _listens(facts: PodFacts) -> bool:
    return bool(facts.ports) and not _shows_a_screen(facts) and facts.owner_kind not in _TRAINING_OWNERS


def _shows_a_screen(facts: PodFacts) -> bool:
    return bool(_SCREEN_PORTS.intersection(facts.ports)) or "notebook" in facts.port_names


SPEC_RULES: Final[tuple[Rule[PodFacts], ...]] = (
    *(_make_declared_rule(kind) for kind in (TRAINING, INFERENCE, TUNING, DATA, LEARNING, VISUAL)),
    *(_make_word_rule(kind, words) for kind, words in _WORDS.items()),
    Rule(
        "owner-service",
        "Its owner keeps replicas running, as servers do.",
        {INFERENCE: 1.5, VISUAL: 0.3},
        _is_owned_by(_SERVICE_OWNERS),
    ),
    Rule(
        "owner-training",
        "Its owner is made for distributed training.",
        {TRAINING: 1.8, TUNING: 0.9, LEARNING: 0.3},
        _is_owned_by(_TRAINING_OWNERS),
    ),
    Rule(
        "owner-batch",
        "Its owner runs to completion.",
        {TRAINING: 0.6, TUNING: 0.6, DATA: 0.6, LEARNING: 0.4},
        _is_owned_by(_BATCH_OWNERS),
    ),
    Rule("owner-notebook", "Its owner is a Notebook.", {VISUAL: 4.0}, _is_owned_by(frozenset({"Notebook"}))),
    Rule("screen-port", "It listens on a port of notebooks or remote screens.", {VISUAL: 2.0}, _shows_a_screen),
    Rule("other-port", "It listens on a port.", {INFERENCE: 1.0}, _listens),
    Rule("probe", "It has a probe, as servers do.", {INFERENCE: 0.8, VISUAL: 0.2}, lambda facts: facts.has_probe),
    Rule(
        "gang",
        "Several equal pods run to completion together.",
        {TRAINING: 1.0, TUNING: 0.3, LEARNING: 0.3},
        lambda facts: (facts.replicas or 1) >= _MANY and facts.owner_kind in _TRAINING_OWNERS | _BATCH_OWNERS,
    ),
    Rule(
        "rapids",
        "The declared framework is RAPIDS.",
        {DATA: 2.0},
        lambda facts: facts.framework.lower() in ("rapids", "dask", "spark"),
    ),
    Rule(
        "server-framework",
        "The declared framework is a server.",
        {INFERENCE: 2.0},
        lambda facts: facts.framework.lower() in ("vllm", "triton", "sglang", "tensorrt"),
    ),
)
