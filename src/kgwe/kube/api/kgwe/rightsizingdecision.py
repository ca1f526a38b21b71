"""RightsizingDecision: smaller GPU requests for the workloads of one namespace, decided by KGWE."""

from enum import StrEnum
from typing import Annotated, ClassVar

from kgwe.kube.api.schema import AGE, ApiStruct, Column, CustomObject, Definition, Rule, Timestamp, about

#: the only object of a namespace that counts
NAME = "default"
MOST_KEYS = 500
MOST_EVENTS = 50


class Mode(StrEnum):
    """What is done with the decisions of a namespace."""

    OFF = "off"
    SHADOW = "shadow"
    CANARY = "canary"
    ENFORCE = "enforce"


class Smaller(ApiStruct, frozen=True):
    """What pods of one key get instead of a whole GPU: a slice or a share."""

    rules: ClassVar = (
        Rule(
            "has(self.profile) != has(self.share)", "set either profile, for a MIG slice, or share, for a part of a GPU"
        ),
    )

    resource: Annotated[str, about("The resource that pods ask for instead of nvidia.com/gpu.", max_length=100)]
    profile: Annotated[str, about("The MIG profile of the slice.", max_length=63)] = ""
    share: Annotated[str, about("The part of one GPU, such as 0.5.", max_length=8)] = ""
    reason: Annotated[str, about("Why this is enough.", max_length=512)] = ""
    fingerprint: Annotated[str, about("The history that it was decided from.", max_length=64)] = ""
    since: Annotated[Timestamp | None, about("When it was decided.")] = None
    runSecondsP95: Annotated[
        float | None, about("95th percentile of run times with whole GPUs, for the detection of slow-downs.", ge=0)
    ] = None
    rate: Annotated[float | None, about("Units of work per second of a pod with a whole GPU.", ge=0)] = None


class Reverted(ApiStruct, frozen=True):
    """Why a key keeps its request. It is not decided on again before an administrator removes this entry."""

    reason: Annotated[str, about("OutOfMemory, RestartLoop, SlowDown, RateFell, Manual.", max_length=63)]
    message: Annotated[str, about("What happened.", max_length=512)] = ""
    at: Annotated[Timestamp | None, about("When it happened.")] = None


class Happening(ApiStruct, frozen=True):
    """One entry of the history."""

    at: Annotated[Timestamp, about("When it happened.")]
    key: Annotated[str, about("The key.", max_length=700)] = ""
    what: Annotated[str, about("Decided, Changed, Removed, Reverted or Mode.", max_length=63)] = ""
    message: Annotated[str, about("Why.", max_length=512)] = ""


class RightsizingDecisionSpec(ApiStruct, frozen=True):
    """Decisions by key: owner kind/owner name, image and whole GPUs of a pod, with spaces between."""

    mode: Annotated[str, about("What is done with the decisions.", enum=Mode)] = Mode.OFF
    canaryLetters: Annotated[
        str,
        about(
            "In mode canary: pods get the smaller request whose volume with the token of the service account has a"
            " name that ends with one of these characters.",
            max_length=27,
        ),
    ] = ""
    canaryDigits: Annotated[
        str,
        about(
            "In mode canary, for pods without such a volume: the first character of the UID of their controller.",
            max_length=16,
        ),
    ] = ""
    includeManaged: Annotated[
        bool, about("Whether multi-GPU pods, gangs and pods of Kueue and Volcano are included.")
    ] = False
    offered: Annotated[
        tuple[str, ...], about("Slices and shares that nodes offer; others are not used.", max_items=64)
    ] = ()
    decisions: Annotated[dict[str, Smaller], about("Key -> smaller request.", max_keys=MOST_KEYS)] = {}
    reverted: Annotated[dict[str, Reverted], about("Keys that keep their request.", max_keys=MOST_KEYS)] = {}
    refused: Annotated[dict[str, str], about("Keys without a decision, and why.", max_keys=MOST_KEYS)] = {}
    errors: Annotated[int, about("Reverts that count against the error budget.", ge=0)] = 0
    errorBudget: Annotated[int, about("How many reverts stop right-sizing in this namespace.", ge=0)] = 3
    problem: Annotated[str, about("Why right-sizing is stopped in this namespace.", max_length=512)] = ""
    history: Annotated[tuple[Happening, ...], about("What happened, the newest last.", max_items=MOST_EVENTS)] = ()


class RightsizingDecision(CustomObject, frozen=True):
    """Smaller GPU requests for the workloads of a namespace. Written by KGWE only.

    The admission policy kgwe-rightsizing and the webhook read the object `default` of the namespace. A namespace opts
    in with the annotation kgwe.nvidia.io/rightsizing.
    """

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="RightsizingDecision",
        plural="rightsizingdecisions",
        namespaced=True,
        columns=(
            Column("Mode", ".spec.mode"),
            Column("Errors", ".spec.errors", "integer"),
            Column("Problem", ".spec.problem", priority=1),
            AGE,
        ),
    )

    spec: RightsizingDecisionSpec = RightsizingDecisionSpec()
