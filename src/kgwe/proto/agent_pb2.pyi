from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingReply(_message.Message):
    __slots__ = ("node", "version", "uptime_s", "driver_ready", "driver_reason", "driver_message", "problems", "unix_ms")
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    DRIVER_READY_FIELD_NUMBER: _ClassVar[int]
    DRIVER_REASON_FIELD_NUMBER: _ClassVar[int]
    DRIVER_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    node: str
    version: str
    uptime_s: float
    driver_ready: bool
    driver_reason: str
    driver_message: str
    problems: _containers.RepeatedScalarFieldContainer[str]
    unix_ms: int
    def __init__(self, node: _Optional[str] = ..., version: _Optional[str] = ..., uptime_s: _Optional[float] = ..., driver_ready: _Optional[bool] = ..., driver_reason: _Optional[str] = ..., driver_message: _Optional[str] = ..., problems: _Optional[_Iterable[str]] = ..., unix_ms: _Optional[int] = ...) -> None: ...

class TopologyRequest(_message.Message):
    __slots__ = ("fresh",)
    FRESH_FIELD_NUMBER: _ClassVar[int]
    fresh: bool
    def __init__(self, fresh: _Optional[bool] = ...) -> None: ...

class Topology(_message.Message):
    __slots__ = ("node", "age_s", "driver_version", "cuda_version", "gpus", "nics", "fabric", "matrix")
    NODE_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    DRIVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    CUDA_VERSION_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NICS_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    MATRIX_FIELD_NUMBER: _ClassVar[int]
    node: str
    age_s: float
    driver_version: str
    cuda_version: str
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    nics: _containers.RepeatedCompositeFieldContainer[Nic]
    fabric: Fabric
    matrix: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, node: _Optional[str] = ..., age_s: _Optional[float] = ..., driver_version: _Optional[str] = ..., cuda_version: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., nics: _Optional[_Iterable[_Union[Nic, _Mapping]]] = ..., fabric: _Optional[_Union[Fabric, _Mapping]] = ..., matrix: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("cells",)
    CELLS_FIELD_NUMBER: _ClassVar[int]
    cells: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cells: _Optional[_Iterable[str]] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("uuid", "index", "model", "memory_mib", "architecture", "compute_capability", "numa_node", "cpu_affinity", "pcie", "nvlink", "mig")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_CAPABILITY_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    CPU_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    PCIE_FIELD_NUMBER: _ClassVar[int]
    NVLINK_FIELD_NUMBER: _ClassVar[int]
    MIG_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    model: str
    memory_mib: int
    architecture: str
    compute_capability: str
    numa_node: int
    cpu_affinity: str
    pcie: Pcie
    nvlink: Nvlink
    mig: Mig
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., model: _Optional[str] = ..., memory_mib: _Optional[int] = ..., architecture: _Optional[str] = ..., compute_capability: _Optional[str] = ..., numa_node: _Optional[int] = ..., cpu_affinity: _Optional[str] = ..., pcie: _Optional[_Union[Pcie, _Mapping]] = ..., nvlink: _Optional[_Union[Nvlink, _Mapping]] = ..., mig: _Optional[_Union[Mig, _Mapping]] = ...) -> None: ...

class Pcie(_message.Message):
    __slots__ = ("bus_id", "root_complex", "switches")
    BUS_ID_FIELD_NUMBER: _ClassVar[int]
    ROOT_COMPLEX_FIELD_NUMBER: _ClassVar[int]
    SWITCHES_FIELD_NUMBER: _ClassVar[int]
    bus_id: str
    root_complex: str
    switches: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, bus_id: _Optional[str] = ..., root_complex: _Optional[str] = ..., switches: _Optional[_Iterable[str]] = ...) -> None: ...

class Nvlink(_message.Message):
    __slots__ = ("version", "links", "max_links", "nv_switch", "gb_per_s", "peers")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    MAX_LINKS_FIELD_NUMBER: _ClassVar[int]
    NV_SWITCH_FIELD_NUMBER: _ClassVar[int]
    GB_PER_S_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    version: int
    links: int
    max_links: int
    nv_switch: bool
    gb_per_s: float
    peers: _containers.RepeatedCompositeFieldContainer[NvlinkPeer]
    def __init__(self, version: _Optional[int] = ..., links: _Optional[int] = ..., max_links: _Optional[int] = ..., nv_switch: _Optional[bool] = ..., gb_per_s: _Optional[float] = ..., peers: _Optional[_Iterable[_Union[NvlinkPeer, _Mapping]]] = ...) -> None: ...

class NvlinkPeer(_message.Message):
    __slots__ = ("gpu", "links", "max_links")
    GPU_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    MAX_LINKS_FIELD_NUMBER: _ClassVar[int]
    gpu: int
    links: int
    max_links: int
    def __init__(self, gpu: _Optional[int] = ..., links: _Optional[int] = ..., max_links: _Optional[int] = ...) -> None: ...

class Mig(_message.Message):
    __slots__ = ("capable", "enabled", "instances")
    CAPABLE_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    capable: bool
    enabled: bool
    instances: _containers.RepeatedCompositeFieldContainer[MigInstance]
    def __init__(self, capable: _Optional[bool] = ..., enabled: _Optional[bool] = ..., instances: _Optional[_Iterable[_Union[MigInstance, _Mapping]]] = ...) -> None: ...

class MigInstance(_message.Message):
    __slots__ = ("uuid", "profile", "instance_id", "start", "size", "memory_mib")
    UUID_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    profile: str
    instance_id: int
    start: int
    size: int
    memory_mib: int
    def __init__(self, uuid: _Optional[str] = ..., profile: _Optional[str] = ..., instance_id: _Optional[int] = ..., start: _Optional[int] = ..., size: _Optional[int] = ..., memory_mib: _Optional[int] = ...) -> None: ...

class Nic(_message.Message):
    __slots__ = ("name", "gbit_per_s", "numa_node", "pcie", "rail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GBIT_PER_S_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    PCIE_FIELD_NUMBER: _ClassVar[int]
    RAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    gbit_per_s: int
    numa_node: int
    pcie: Pcie
    rail: int
    def __init__(self, name: _Optional[str] = ..., gbit_per_s: _Optional[int] = ..., numa_node: _Optional[int] = ..., pcie: _Optional[_Union[Pcie, _Mapping]] = ..., rail: _Optional[int] = ...) -> None: ...

class Fabric(_message.Message):
    __slots__ = ("cluster_uuid", "clique_id")
    CLUSTER_UUID_FIELD_NUMBER: _ClassVar[int]
    CLIQUE_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_uuid: str
    clique_id: int
    def __init__(self, cluster_uuid: _Optional[str] = ..., clique_id: _Optional[int] = ...) -> None: ...

class HealthRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Health(_message.Message):
    __slots__ = ("node", "gpus")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    node: str
    gpus: _containers.RepeatedCompositeFieldContainer[GpuHealth]
    def __init__(self, node: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[GpuHealth, _Mapping]]] = ...) -> None: ...

class GpuHealth(_message.Message):
    __slots__ = ("uuid", "index", "state", "reason", "message", "last_xid", "since")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_XID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    state: str
    reason: str
    message: str
    last_xid: int
    since: str
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., last_xid: _Optional[int] = ..., since: _Optional[str] = ...) -> None: ...

class TelemetryRequest(_message.Message):
    __slots__ = ("interval_s", "uuids", "aggregates")
    INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    UUIDS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    interval_s: float
    uuids: _containers.RepeatedScalarFieldContainer[str]
    aggregates: bool
    def __init__(self, interval_s: _Optional[float] = ..., uuids: _Optional[_Iterable[str]] = ..., aggregates: _Optional[bool] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("node", "unix_ms", "missed", "readings", "aggregates")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    node: str
    unix_ms: int
    missed: int
    readings: _containers.RepeatedCompositeFieldContainer[Reading]
    aggregates: _containers.RepeatedCompositeFieldContainer[Aggregate]
    def __init__(self, node: _Optional[str] = ..., unix_ms: _Optional[int] = ..., missed: _Optional[int] = ..., readings: _Optional[_Iterable[_Union[Reading, _Mapping]]] = ..., aggregates: _Optional[_Iterable[_Union[Aggregate, _Mapping]]] = ...) -> None: ...

class Aggregate(_message.Message):
    __slots__ = ("uuid", "name", "pod", "samples", "gaps", "mean", "maximum", "p95", "last")
    UUID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    P95_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    name: str
    pod: str
    samples: int
    gaps: int
    mean: float
    maximum: float
    p95: float
    last: float
    def __init__(self, uuid: _Optional[str] = ..., name: _Optional[str] = ..., pod: _Optional[str] = ..., samples: _Optional[int] = ..., gaps: _Optional[int] = ..., mean: _Optional[float] = ..., maximum: _Optional[float] = ..., p95: _Optional[float] = ..., last: _Optional[float] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("uuid", "util", "memory_util", "memory_used_mib", "memory_total_mib", "power_w", "power_limit_w", "energy_j", "gpu_c", "memory_c", "sm_mhz", "memory_mhz", "throttle", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "nvlink_tx_bytes", "nvlink_rx_bytes", "processes", "instances", "ecc_corrected", "ecc_uncorrected", "lost")
    UUID_FIELD_NUMBER: _ClassVar[int]
    UTIL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_UTIL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_MIB_FIELD_NUMBER: _ClassVar[int]
    POWER_W_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_W_FIELD_NUMBER: _ClassVar[int]
    ENERGY_J_FIELD_NUMBER: _ClassVar[int]
    GPU_C_FIELD_NUMBER: _ClassVar[int]
    MEMORY_C_FIELD_NUMBER: _ClassVar[int]
    SM_MHZ_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MHZ_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_FIELD_NUMBER: _ClassVar[int]
    PCIE_TX_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    PCIE_RX_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    NVLINK_TX_BYTES_FIELD_NUMBER: _ClassVar[int]
    NVLINK_RX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    ECC_CORRECTED_FIELD_NUMBER: _ClassVar[int]
    ECC_UNCORRECTED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    util: float
    memory_util: float
    memory_used_mib: int
    memory_total_mib: int
    power_w: float
    power_limit_w: float
    energy_j: float
    gpu_c: int
    memory_c: int
    sm_mhz: int
    memory_mhz: int
    throttle: _containers.RepeatedScalarFieldContainer[str]
    pcie_tx_bytes_per_s: int
    pcie_rx_bytes_per_s: int
    nvlink_tx_bytes: int
    nvlink_rx_bytes: int
    processes: _containers.RepeatedCompositeFieldContainer[Process]
    instances: _containers.RepeatedCompositeFieldContainer[InstanceReading]
    ecc_corrected: int
    ecc_uncorrected: int
    lost: bool
    def __init__(self, uuid: _Optional[str] = ..., util: _Optional[float] = ..., memory_util: _Optional[float] = ..., memory_used_mib: _Optional[int] = ..., memory_total_mib: _Optional[int] = ..., power_w: _Optional[float] = ..., power_limit_w: _Optional[float] = ..., energy_j: _Optional[float] = ..., gpu_c: _Optional[int] = ..., memory_c: _Optional[int] = ..., sm_mhz: _Optional[int] = ..., memory_mhz: _Optional[int] = ..., throttle: _Optional[_Iterable[str]] = ..., pcie_tx_bytes_per_s: _Optional[int] = ..., pcie_rx_bytes_per_s: _Optional[int] = ..., nvlink_tx_bytes: _Optional[int] = ..., nvlink_rx_bytes: _Optional[int] = ..., processes: _Optional[_Iterable[_Union[Process, _Mapping]]] = ..., instances: _Optional[_Iterable[_Union[InstanceReading, _Mapping]]] = ..., ecc_corrected: _Optional[int] = ..., ecc_uncorrected: _Optional[int] = ..., lost: _Optional[bool] = ...) -> None: ...

class Process(_message.Message):
    __slots__ = ("pid", "memory_mib", "util", "instance_id")
    PID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    UTIL_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    memory_mib: int
    util: float
    instance_id: int
    def __init__(self, pid: _Optional[int] = ..., memory_mib: _Optional[int] = ..., util: _Optional[float] = ..., instance_id: _Optional[int] = ...) -> None: ...

class InstanceReading(_message.Message):
    __slots__ = ("instance_id", "memory_used_mib")
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MIB_FIELD_NUMBER: _ClassVar[int]
    instance_id: int
    memory_used_mib: int
    def __init__(self, instance_id: _Optional[int] = ..., memory_used_mib: _Optional[int] = ...) -> None: ...

class MigRequest(_message.Message):
    __slots__ = ("gpu_uuid", "enabled", "layout")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    enabled: bool
    layout: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gpu_uuid: _Optional[str] = ..., enabled: _Optional[bool] = ..., layout: _Optional[_Iterable[str]] = ...) -> None: ...

class MigReply(_message.Message):
    __slots__ = ("instances",)
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    instances: _containers.RepeatedCompositeFieldContainer[MigInstance]
    def __init__(self, instances: _Optional[_Iterable[_Union[MigInstance, _Mapping]]] = ...) -> None: ...

class MpsRequest(_message.Message):
    __slots__ = ("gpu_uuid", "enabled", "active_thread_percentage", "pinned_memory_limit_mib", "max_clients", "instance_uuid")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_THREAD_PERCENTAGE_FIELD_NUMBER: _ClassVar[int]
    PINNED_MEMORY_LIMIT_MIB_FIELD_NUMBER: _ClassVar[int]
    MAX_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_UUID_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    enabled: bool
    active_thread_percentage: int
    pinned_memory_limit_mib: int
    max_clients: int
    instance_uuid: str
    def __init__(self, gpu_uuid: _Optional[str] = ..., enabled: _Optional[bool] = ..., active_thread_percentage: _Optional[int] = ..., pinned_memory_limit_mib: _Optional[int] = ..., max_clients: _Optional[int] = ..., instance_uuid: _Optional[str] = ...) -> None: ...

class MpsReply(_message.Message):
    __slots__ = ("running", "clients", "pipe_directory")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    CLIENTS_FIELD_NUMBER: _ClassVar[int]
    PIPE_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    running: bool
    clients: int
    pipe_directory: str
    def __init__(self, running: _Optional[bool] = ..., clients: _Optional[int] = ..., pipe_directory: _Optional[str] = ...) -> None: ...
