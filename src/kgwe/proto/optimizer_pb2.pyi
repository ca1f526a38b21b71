from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Workload(_message.Message):
    __slots__ = ("namespace", "name", "owner_kind", "owner_name", "image", "command", "labels", "environment", "workload_type", "framework", "pods", "milli_gpus_per_pod", "mig_profile", "gpu_model", "user", "declared_duration_s", "submitted_s", "model_parameters_billions", "uid")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_KIND_FIELD_NUMBER: _ClassVar[int]
    OWNER_NAME_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_TYPE_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    MILLI_GPUS_PER_POD_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    DECLARED_DURATION_S_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_PARAMETERS_BILLIONS_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    owner_kind: str
    owner_name: str
    image: str
    command: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.ScalarMap[str, str]
    environment: _containers.ScalarMap[str, str]
    workload_type: str
    framework: str
    pods: int
    milli_gpus_per_pod: int
    mig_profile: str
    gpu_model: str
    user: str
    declared_duration_s: float
    submitted_s: float
    model_parameters_billions: float
    uid: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., owner_kind: _Optional[str] = ..., owner_name: _Optional[str] = ..., image: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., labels: _Optional[_Mapping[str, str]] = ..., environment: _Optional[_Mapping[str, str]] = ..., workload_type: _Optional[str] = ..., framework: _Optional[str] = ..., pods: _Optional[int] = ..., milli_gpus_per_pod: _Optional[int] = ..., mig_profile: _Optional[str] = ..., gpu_model: _Optional[str] = ..., user: _Optional[str] = ..., declared_duration_s: _Optional[float] = ..., submitted_s: _Optional[float] = ..., model_parameters_billions: _Optional[float] = ..., uid: _Optional[str] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("workloads",)
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    workloads: _containers.RepeatedCompositeFieldContainer[Workload]
    def __init__(self, workloads: _Optional[_Iterable[_Union[Workload, _Mapping]]] = ...) -> None: ...

class PredictReply(_message.Message):
    __slots__ = ("predictions", "model_version")
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    predictions: _containers.RepeatedCompositeFieldContainer[Prediction]
    model_version: str
    def __init__(self, predictions: _Optional[_Iterable[_Union[Prediction, _Mapping]]] = ..., model_version: _Optional[str] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ("is_known", "recommended_gpus", "recommended_memory_gb", "expected_utilization", "expected_duration_seconds", "duration_quantiles", "duration_lower_seconds", "duration_upper_seconds", "coverage", "confidence", "prefer_nvlink", "recommended_mig_profile", "estimated_cost_per_hour", "reasoning", "preallocates_memory", "fingerprint", "runs")
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDED_GPUS_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDED_MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DURATION_QUANTILES_FIELD_NUMBER: _ClassVar[int]
    DURATION_LOWER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DURATION_UPPER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    PREFER_NVLINK_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDED_MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_COST_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    PREALLOCATES_MEMORY_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    is_known: bool
    recommended_gpus: float
    recommended_memory_gb: float
    expected_utilization: float
    expected_duration_seconds: float
    duration_quantiles: _containers.RepeatedCompositeFieldContainer[Quantile]
    duration_lower_seconds: float
    duration_upper_seconds: float
    coverage: float
    confidence: float
    prefer_nvlink: bool
    recommended_mig_profile: str
    estimated_cost_per_hour: float
    reasoning: _containers.RepeatedScalarFieldContainer[str]
    preallocates_memory: bool
    fingerprint: str
    runs: int
    def __init__(self, is_known: _Optional[bool] = ..., recommended_gpus: _Optional[float] = ..., recommended_memory_gb: _Optional[float] = ..., expected_utilization: _Optional[float] = ..., expected_duration_seconds: _Optional[float] = ..., duration_quantiles: _Optional[_Iterable[_Union[Quantile, _Mapping]]] = ..., duration_lower_seconds: _Optional[float] = ..., duration_upper_seconds: _Optional[float] = ..., coverage: _Optional[float] = ..., confidence: _Optional[float] = ..., prefer_nvlink: _Optional[bool] = ..., recommended_mig_profile: _Optional[str] = ..., estimated_cost_per_hour: _Optional[float] = ..., reasoning: _Optional[_Iterable[str]] = ..., preallocates_memory: _Optional[bool] = ..., fingerprint: _Optional[str] = ..., runs: _Optional[int] = ...) -> None: ...

class Quantile(_message.Message):
    __slots__ = ("q", "seconds")
    Q_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    q: float
    seconds: float
    def __init__(self, q: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...

class DemandRequest(_message.Message):
    __slots__ = ("gpu_model",)
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    gpu_model: str
    def __init__(self, gpu_model: _Optional[str] = ...) -> None: ...

class DemandReply(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelDemand]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelDemand, _Mapping]]] = ...) -> None: ...

class ModelDemand(_message.Message):
    __slots__ = ("gpu_model", "gpus", "recorded_hours", "forecasts")
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    RECORDED_HOURS_FIELD_NUMBER: _ClassVar[int]
    FORECASTS_FIELD_NUMBER: _ClassVar[int]
    gpu_model: str
    gpus: float
    recorded_hours: int
    forecasts: _containers.RepeatedCompositeFieldContainer[DemandForecast]
    def __init__(self, gpu_model: _Optional[str] = ..., gpus: _Optional[float] = ..., recorded_hours: _Optional[int] = ..., forecasts: _Optional[_Iterable[_Union[DemandForecast, _Mapping]]] = ...) -> None: ...

class DemandForecast(_message.Message):
    __slots__ = ("hours_ahead", "is_known", "gpus", "lower", "upper", "coverage", "reasoning")
    HOURS_AHEAD_FIELD_NUMBER: _ClassVar[int]
    IS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    LOWER_FIELD_NUMBER: _ClassVar[int]
    UPPER_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    hours_ahead: int
    is_known: bool
    gpus: float
    lower: float
    upper: float
    coverage: float
    reasoning: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, hours_ahead: _Optional[int] = ..., is_known: _Optional[bool] = ..., gpus: _Optional[float] = ..., lower: _Optional[float] = ..., upper: _Optional[float] = ..., coverage: _Optional[float] = ..., reasoning: _Optional[_Iterable[str]] = ...) -> None: ...

class PlacementRequest(_message.Message):
    __slots__ = ("workload", "nodes")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class PlacementReply(_message.Message):
    __slots__ = ("hints",)
    HINTS_FIELD_NUMBER: _ClassVar[int]
    hints: _containers.RepeatedCompositeFieldContainer[NodeHint]
    def __init__(self, hints: _Optional[_Iterable[_Union[NodeHint, _Mapping]]] = ...) -> None: ...

class NodeHint(_message.Message):
    __slots__ = ("node", "points", "reasoning")
    NODE_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    node: str
    points: float
    reasoning: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., points: _Optional[float] = ..., reasoning: _Optional[_Iterable[str]] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("node", "at_s", "devices")
    NODE_FIELD_NUMBER: _ClassVar[int]
    AT_S_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    node: str
    at_s: float
    devices: _containers.RepeatedCompositeFieldContainer[DeviceSample]
    def __init__(self, node: _Optional[str] = ..., at_s: _Optional[float] = ..., devices: _Optional[_Iterable[_Union[DeviceSample, _Mapping]]] = ...) -> None: ...

class DeviceSample(_message.Message):
    __slots__ = ("uuid", "instance", "model", "mig_profile", "namespace", "pod", "container", "activity", "tensor", "dram", "memory_used_mib", "memory_total_mib", "power_w")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DRAM_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_MIB_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    instance: str
    model: str
    mig_profile: str
    namespace: str
    pod: str
    container: str
    activity: float
    tensor: float
    dram: float
    memory_used_mib: float
    memory_total_mib: float
    power_w: float
    def __init__(self, uuid: _Optional[str] = ..., instance: _Optional[str] = ..., model: _Optional[str] = ..., mig_profile: _Optional[str] = ..., namespace: _Optional[str] = ..., pod: _Optional[str] = ..., container: _Optional[str] = ..., activity: _Optional[float] = ..., tensor: _Optional[float] = ..., dram: _Optional[float] = ..., memory_used_mib: _Optional[float] = ..., memory_total_mib: _Optional[float] = ..., power_w: _Optional[float] = ...) -> None: ...

class IngestReply(_message.Message):
    __slots__ = ("accepted", "rejected")
    class RejectedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    rejected: _containers.ScalarMap[str, int]
    def __init__(self, accepted: _Optional[int] = ..., rejected: _Optional[_Mapping[str, int]] = ...) -> None: ...

class MetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetricsReply(_message.Message):
    __slots__ = ("model_version", "model_trained_s", "fingerprints", "runs", "predictions", "predictions_unknown", "mean_absolute_error_s", "interval_coverage", "is_drifting", "samples_accepted", "samples_rejected", "source_problem", "findings", "recommendations_followed", "realized_saving_per_hour", "cluster_uid")
    class SamplesRejectedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_TRAINED_S_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_FIELD_NUMBER: _ClassVar[int]
    PREDICTIONS_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    MEAN_ABSOLUTE_ERROR_S_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_COVERAGE_FIELD_NUMBER: _ClassVar[int]
    IS_DRIFTING_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_REJECTED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDATIONS_FOLLOWED_FIELD_NUMBER: _ClassVar[int]
    REALIZED_SAVING_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_UID_FIELD_NUMBER: _ClassVar[int]
    model_version: str
    model_trained_s: float
    fingerprints: int
    runs: int
    predictions: int
    predictions_unknown: int
    mean_absolute_error_s: float
    interval_coverage: float
    is_drifting: bool
    samples_accepted: int
    samples_rejected: _containers.ScalarMap[str, int]
    source_problem: str
    findings: int
    recommendations_followed: int
    realized_saving_per_hour: float
    cluster_uid: str
    def __init__(self, model_version: _Optional[str] = ..., model_trained_s: _Optional[float] = ..., fingerprints: _Optional[int] = ..., runs: _Optional[int] = ..., predictions: _Optional[int] = ..., predictions_unknown: _Optional[int] = ..., mean_absolute_error_s: _Optional[float] = ..., interval_coverage: _Optional[float] = ..., is_drifting: _Optional[bool] = ..., samples_accepted: _Optional[int] = ..., samples_rejected: _Optional[_Mapping[str, int]] = ..., source_problem: _Optional[str] = ..., findings: _Optional[int] = ..., recommendations_followed: _Optional[int] = ..., realized_saving_per_hour: _Optional[float] = ..., cluster_uid: _Optional[str] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("workload",)
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ...) -> None: ...

class ClassifyReply(_message.Message):
    __slots__ = ("workload_type", "probabilities", "reasoning")
    class ProbabilitiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    WORKLOAD_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    workload_type: str
    probabilities: _containers.ScalarMap[str, float]
    reasoning: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, workload_type: _Optional[str] = ..., probabilities: _Optional[_Mapping[str, float]] = ..., reasoning: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ("findings", "reasoning", "prediction")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    reasoning: _containers.RepeatedScalarFieldContainer[str]
    prediction: Prediction
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., reasoning: _Optional[_Iterable[str]] = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ...) -> None: ...

class FindingsRequest(_message.Message):
    __slots__ = ("namespace", "min_waste_score", "lookback_s")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MIN_WASTE_SCORE_FIELD_NUMBER: _ClassVar[int]
    LOOKBACK_S_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    min_waste_score: float
    lookback_s: float
    def __init__(self, namespace: _Optional[str] = ..., min_waste_score: _Optional[float] = ..., lookback_s: _Optional[float] = ...) -> None: ...

class FindingsReply(_message.Message):
    __slots__ = ("findings", "judged_s", "source_problem")
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    JUDGED_S_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    findings: _containers.RepeatedCompositeFieldContainer[Finding]
    judged_s: float
    source_problem: str
    def __init__(self, findings: _Optional[_Iterable[_Union[Finding, _Mapping]]] = ..., judged_s: _Optional[float] = ..., source_problem: _Optional[str] = ...) -> None: ...

class Finding(_message.Message):
    __slots__ = ("namespace", "pod", "owner_kind", "owner_name", "state", "waste_score", "activity", "memory", "idle_s", "gpus", "cost_per_hour", "recommendation", "reasoning")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    OWNER_KIND_FIELD_NUMBER: _ClassVar[int]
    OWNER_NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WASTE_SCORE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    COST_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    RECOMMENDATION_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    pod: str
    owner_kind: str
    owner_name: str
    state: str
    waste_score: float
    activity: float
    memory: float
    idle_s: float
    gpus: float
    cost_per_hour: float
    recommendation: Recommendation
    reasoning: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., pod: _Optional[str] = ..., owner_kind: _Optional[str] = ..., owner_name: _Optional[str] = ..., state: _Optional[str] = ..., waste_score: _Optional[float] = ..., activity: _Optional[float] = ..., memory: _Optional[float] = ..., idle_s: _Optional[float] = ..., gpus: _Optional[float] = ..., cost_per_hour: _Optional[float] = ..., recommendation: _Optional[_Union[Recommendation, _Mapping]] = ..., reasoning: _Optional[_Iterable[str]] = ...) -> None: ...

class Recommendation(_message.Message):
    __slots__ = ("action", "target", "saving_per_hour", "confidence", "reasoning", "is_feasible")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SAVING_PER_HOUR_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    IS_FEASIBLE_FIELD_NUMBER: _ClassVar[int]
    action: str
    target: str
    saving_per_hour: float
    confidence: float
    reasoning: _containers.RepeatedScalarFieldContainer[str]
    is_feasible: bool
    def __init__(self, action: _Optional[str] = ..., target: _Optional[str] = ..., saving_per_hour: _Optional[float] = ..., confidence: _Optional[float] = ..., reasoning: _Optional[_Iterable[str]] = ..., is_feasible: _Optional[bool] = ...) -> None: ...
