"""GPUBudget: how much a namespace, team or project may spend on GPUs in a period, and what happens then."""

from enum import StrEnum
from typing import Annotated, ClassVar

from kgwe.kube.api.schema import (
    AGE,
    ApiStruct,
    Column,
    Conditions,
    CustomObject,
    Definition,
    Rule,
    Timestamp,
    about,
    match_pattern,
)


class Period(StrEnum):
    DAILY = "Daily"
    WEEKLY = "Weekly"
    MONTHLY = "Monthly"


class Scope(StrEnum):
    NAMESPACE = "Namespace"
    TEAM = "Team"
    PROJECT = "Project"


class EnforcementPolicy(StrEnum):
    ALERT = "Alert"
    THROTTLE = "Throttle"
    BLOCK = "Block"


class GPUBudgetSpec(ApiStruct, frozen=True):
    """The limit, what counts against it, and what happens as it is used up."""

    rules: ClassVar = (
        Rule(
            "self.scope != 'Team' || has(self.teamId)",
            "scope Team needs to know which team: set teamId",
            field=".scope",
        ),
        Rule(
            "self.scope != 'Project' || has(self.projectId)",
            "scope Project needs to know which project: set projectId",
            field=".scope",
        ),
        Rule(
            "self.scope == 'Team' || !has(self.teamId)",
            "teamId only counts with scope Team: set scope to Team or remove teamId",
            field=".teamId",
        ),
        Rule(
            "self.scope == 'Project' || !has(self.projectId)",
            "projectId only counts with scope Project: set scope to Project or remove projectId",
            field=".projectId",
        ),
    )

    # A string, because money in binary fractions does not add up.
    limit: Annotated[
        str,
        about(
            'What may be spent in a period, as a decimal in quotes: "1500.00".',
            max_length=20,
            rules=(
                Rule(
                    r"self.matches(r'^[0-9]{1,12}(\.[0-9]{1,6})?$') && double(self) > 0.0",
                    'limit is an amount above zero in plain digits with a decimal point, such as "1500" or "1500.00":'
                    " leave out signs, currency and thousands separators",
                ),
            ),
        ),
    ]
    currency: Annotated[
        str,
        about(
            "ISO 4217 code of the currency of the limit.",
            max_length=3,
            rules=(match_pattern("[A-Z]{3}", "currency is a three-letter ISO 4217 code such as USD or EUR"),),
        ),
    ] = "USD"
    period: Annotated[str, about("Length of the period after which the limit starts again.", enum=Period)] = (
        Period.MONTHLY
    )
    timeZone: Annotated[
        str,
        about(
            "IANA name of the time zone in which periods begin.",
            max_length=64,
            rules=(
                match_pattern(
                    "[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*", "timeZone is an IANA name such as UTC or Europe/Berlin"
                ),
            ),
        ),
    ] = "UTC"
    scope: Annotated[
        str,
        about("Whose spend it limits: the budget's namespace, a team or a project.", enum=Scope),
    ] = Scope.NAMESPACE
    teamId: Annotated[str, about("The team, with scope Team: value of the pods' label team.", max_length=63)] = ""
    projectId: Annotated[
        str, about("The project, with scope Project: value of the pods' label project.", max_length=63)
    ] = ""
    matchLabels: Annotated[
        dict[str, str],
        about("Count only pods with these labels, such as experiment-id; all when left out.", max_keys=16),
    ] = {}
    alertsEnabled: Annotated[bool, about("Whether crossing a threshold raises an alert.")] = True
    alertThresholds: Annotated[
        tuple[float, ...],
        about(
            "Fractions of the limit at which an alert is raised, once per period each.",
            max_items=16,
            unique=True,
            rules=(
                Rule(
                    "self.all(threshold, threshold > 0.0 && threshold <= 2.0)",
                    "alertThresholds are fractions of the limit, above 0 and up to 2: write 0.8 for 80 %",
                ),
            ),
        ),
    ] = (0.5, 0.75, 0.9, 1.0)
    enforcementPolicy: Annotated[
        str,
        about(
            "What happens when the limit is reached. Alert: only an alert. Throttle: new work waits behind others'."
            " Block: new work waits until the next period. Running work is never stopped.",
            enum=EnforcementPolicy,
        ),
    ] = EnforcementPolicy.ALERT
    gracePeriodMinutes: Annotated[
        int,
        about("How long the limit may stay exceeded before Throttle or Block acts.", ge=0, le=44_640),
    ] = 60


class BudgetAlert(ApiStruct, frozen=True):
    """One threshold crossed in this period."""

    threshold: Annotated[float, about("The fraction of the limit that was crossed.", ge=0)]
    triggeredAt: Annotated[Timestamp, about("When.")]
    acknowledged: Annotated[bool, about("Whether a user has acknowledged the alert.")] = False


class GPUBudgetStatus(ApiStruct, frozen=True):
    """What has been spent; written by the cost service."""

    currentSpend: Annotated[str, about("Spent in this period, running work included; a decimal.")] = ""
    utilizationPercent: Annotated[float | None, about("currentSpend in percent of the limit.", ge=0)] = None
    projectedSpend: Annotated[str, about("What the period will have cost at the present rate; a decimal.")] = ""
    periodStart: Annotated[Timestamp | None, about("Begin of this period.")] = None
    periodEnd: Annotated[Timestamp | None, about("End of this period.")] = None
    alerts: Annotated[tuple[BudgetAlert, ...], about("Alerts raised in this period.", max_items=64)] = ()
    exceededSince: Annotated[Timestamp | None, about("Since when the limit is exceeded.")] = None
    enforcementActive: Annotated[bool, about("Whether new work is being throttled or blocked.")] = False
    observedGeneration: Annotated[int, about("The metadata.generation this status is about.", ge=0)] = 0
    conditions: Conditions = ()


class GPUBudget(CustomObject, frozen=True):
    """How much may be spent on GPUs in a period, and what happens as it is used up."""

    definition: ClassVar = Definition(
        group="kgwe.nvidia.io",
        version="v1",
        kind="GPUBudget",
        plural="gpubudgets",
        namespaced=True,
        short_names=("gb", "gpub"),
        columns=(
            Column("Limit", ".spec.limit"),
            Column("Currency", ".spec.currency"),
            Column("Period", ".spec.period"),
            Column("Spent", ".status.currentSpend"),
            Column("Used%", ".status.utilizationPercent", "number"),
            Column("Policy", ".spec.enforcementPolicy"),
            AGE,
            Column("Scope", ".spec.scope", priority=1),
            Column("Projected", ".status.projectedSpend", priority=1),
        ),
    )

    spec: GPUBudgetSpec
    status: GPUBudgetStatus = GPUBudgetStatus()
