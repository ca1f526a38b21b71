"""GPUBudget: how much a namespace, team, project or organization may spend on GPUs in a period, and what happens then.

Cluster operators write budgets. A budget that reaches beyond its namespace counts in `kgwe-system` only.
"""

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
    ORGANIZATION = "Organization"


class Unit(StrEnum):
    """What a limit counts."""

    CURRENCY = "Currency"
    GPU_HOURS = "GPUHours"


class EnforcementPolicy(StrEnum):
    ALERT = "Alert"
    THROTTLE = "Throttle"
    BLOCK = "Block"


class OnExceeded(StrEnum):
    """What happens to running preemptible workloads when the limit stays exceeded."""

    NONE = "None"
    SUSPEND = "Suspend"


class AlertSeverity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class ChannelType(StrEnum):
    WEBHOOK = "webhook"
    SLACK = "slack"
    ALERTMANAGER = "alertmanager"


class SecretKey(ApiStruct, frozen=True):
    """A key of a Secret in the namespace of the cost engine."""

    name: Annotated[str, about("Name of the Secret.", min_length=1, max_length=253)]
    key: Annotated[str, about("Its key.", min_length=1, max_length=253)]


class BudgetChannel(ApiStruct, frozen=True):
    """Where alerts of this budget go: a channel of the cost engine's settings, or a URL in a Secret."""

    rules: ClassVar = (
        Rule(
            "has(self.name) != (has(self.type) && has(self.urlFrom))",
            "name a channel of the cost engine's settings, or give type and urlFrom",
        ),
        Rule("has(self.type) == has(self.urlFrom)", "type and urlFrom go together"),
    )

    name: Annotated[str, about("A channel of the cost engine's settings.", max_length=63)] = ""
    type: Annotated[str, about("What the URL takes.", enum=ChannelType)] = ""
    urlFrom: Annotated[SecretKey | None, about("Where the URL is.")] = None


class AlertRule(ApiStruct, frozen=True):
    """A threshold with a severity of its own."""

    threshold: Annotated[float, about("Fraction of the limit: 0.8 for 80 %.", gt=0, le=2)]
    severity: Annotated[str, about("How soon people should look.", enum=AlertSeverity)] = AlertSeverity.WARNING


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
        Rule(
            "self.scope == 'Organization' || !(has(self.teams) || has(self.namespaces))",
            "teams and namespaces only count with scope Organization: set scope to Organization or remove them",
            field=".scope",
        ),
    )

    # A string, because money in binary fractions does not add up.
    limit: Annotated[
        str,
        about(
            'What may be spent in a period, as a decimal in quotes: "1500.00". With unit GPUHours: GPU-hours.',
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
    unit: Annotated[
        str,
        about("What limit counts: an amount of the currency, or GPU-hours.", enum=Unit),
    ] = Unit.CURRENCY
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
        about(
            "Whose spend it limits: the budget's namespace, a team, a project, or an organization of several teams."
            " All but Namespace count in kgwe-system only.",
            enum=Scope,
        ),
    ] = Scope.NAMESPACE
    teamId: Annotated[str, about("The team, with scope Team: value of the pods' label team.", max_length=63)] = ""
    projectId: Annotated[
        str, about("The project, with scope Project: value of the pods' label project.", max_length=63)
    ] = ""
    teams: Annotated[
        tuple[str, ...],
        about(
            "With scope Organization: its teams. Without teams and namespaces it is the whole cluster.",
            max_items=64,
            unique=True,
            schema={"items": {"type": "string", "maxLength": 63}},
        ),
    ] = ()
    namespaces: Annotated[
        tuple[str, ...],
        about(
            "With scope Organization: its namespaces, beside its teams.",
            max_items=64,
            unique=True,
            schema={"items": {"type": "string", "maxLength": 63}},
        ),
    ] = ()
    experimentId: Annotated[str, about("Count only pods of this experiment; all when left out.", max_length=63)] = ""
    matchLabels: Annotated[
        dict[str, str],
        about(
            "Count only pods with these labels. Labels that costs are attributed by count: team, project, cost-center,"
            " experiment-id and user.",
            max_keys=16,
        ),
    ] = {}
    enabled: Annotated[bool, about("Whether the budget counts.")] = True
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
    alerts: Annotated[
        tuple[AlertRule, ...],
        about("Thresholds with severities, instead of alertThresholds.", max_items=16),
    ] = ()
    channels: Annotated[
        tuple[BudgetChannel, ...],
        about("Where alerts go; when left out, as the routes of the cost engine say.", max_items=8),
    ] = ()
    enforcementPolicy: Annotated[
        str,
        about(
            "What happens before the limit is exceeded. Alert: only an alert. Throttle: above the soft limit new work"
            " waits behind others', and starts only while the expected spend stays within the limit. Block: new work"
            " waits if spend, encumbrances and its predicted cost (p90) exceed the limit.",
            enum=EnforcementPolicy,
        ),
    ] = EnforcementPolicy.ALERT
    softLimitPercent: Annotated[int, about("Percent of the limit above which Throttle acts.", ge=1, le=100)] = 80
    onExceeded: Annotated[
        str,
        about(
            "What happens to running workloads with preemptible: true once the limit has been exceeded for"
            " gracePeriodMinutes. Suspend: they are suspended until the next period, or until the limit is raised."
            " Nothing else that runs is stopped.",
            enum=OnExceeded,
        ),
    ] = OnExceeded.NONE
    gracePeriodMinutes: Annotated[
        int,
        about("How long the limit may stay exceeded before onExceeded acts.", ge=0, le=44_640),
    ] = 60


class BudgetAlert(ApiStruct, frozen=True):
    """One threshold crossed in this period."""

    threshold: Annotated[float, about("The fraction of the limit that was crossed.", ge=0)]
    triggeredAt: Annotated[Timestamp, about("When.")]
    acknowledged: Annotated[bool, about("Whether an operator has acknowledged the alert.")] = False


class SpendLine(ApiStruct, frozen=True):
    """A part of the spend."""

    name: Annotated[str, about("The namespace, team or project; empty: not stated.", max_length=253)] = ""
    spend: Annotated[str, about("Spent in this period; a decimal.", max_length=40)] = ""


class Breakdown(ApiStruct, frozen=True):
    """The largest parts of the spend."""

    byNamespace: Annotated[tuple[SpendLine, ...], about("The ten largest namespaces.", max_items=10)] = ()
    byTeam: Annotated[tuple[SpendLine, ...], about("The ten largest teams.", max_items=10)] = ()
    byProject: Annotated[tuple[SpendLine, ...], about("The ten largest projects.", max_items=10)] = ()


class GPUBudgetStatus(ApiStruct, frozen=True):
    """What has been spent, by the cost engine; what is encumbered, by the scheduler."""

    currentSpend: Annotated[
        str, about("Spent in this period up to spendUntil, running work included; a decimal.", max_length=40)
    ] = ""
    spendUntil: Annotated[
        Timestamp | None, about("The time up to which currentSpend counts. Later costs are encumbered.")
    ] = None
    utilizationPercent: Annotated[float | None, about("currentSpend in percent of the limit.", ge=0)] = None
    encumbered: Annotated[
        str,
        about("What admitted workloads are going to cost in this period after spendUntil; a decimal.", max_length=40),
    ] = ""
    projectedSpend: Annotated[str, about("What the period will have cost; a decimal.", max_length=40)] = ""
    projectedLow: Annotated[
        str, about("Lower end of the 80 % interval; absent if too few days are known.", max_length=40)
    ] = ""
    projectedHigh: Annotated[str, about("Upper end of the 80 % interval.", max_length=40)] = ""
    burnRate: Annotated[
        float | None, about("How fast the last hour used the budget: 1 uses it up at the end of the period.", ge=0)
    ] = None
    waitingWorkloads: Annotated[int, about("How many workloads wait because of this budget.", ge=0)] = 0
    periodStart: Annotated[Timestamp | None, about("Begin of this period.")] = None
    periodEnd: Annotated[Timestamp | None, about("End of this period.")] = None
    alerts: Annotated[tuple[BudgetAlert, ...], about("Alerts raised in this period.", max_items=64)] = ()
    exceededSince: Annotated[Timestamp | None, about("Since when the limit is exceeded.")] = None
    enforcementActive: Annotated[bool, about("Whether new work is being throttled or blocked.")] = False
    breakdown: Annotated[Breakdown | None, about("The largest parts of the spend.")] = None
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
            Column("Encumbered", ".status.encumbered", priority=1),
            Column("Projected", ".status.projectedSpend", priority=1),
        ),
    )

    spec: GPUBudgetSpec
    status: GPUBudgetStatus = GPUBudgetStatus()
