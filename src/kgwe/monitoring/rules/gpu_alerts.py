"""Alerts of GPUs, agents, MIG and MPS."""

from __future__ import annotations

from typing import Final

from kgwe.model.health.xids import XIDS, XidClass
from kgwe.monitoring.promql import own, rename
from kgwe.monitoring.rules.types import Alert, Group

_FATAL: Final = sorted(number for number, xid in XIDS.items() if xid.xid_class is XidClass.FATAL)
_XID: Final = rename("DCGM_FI_DEV_XID_ERRORS", node="Hostname", gpu_uuid="UUID")
_LAST_XID: Final = f"max by (node, gpu_uuid) ({_XID})"
_GPU: Final = 'gpu_uuid="GPU-1",node="n1",model="H100"'
_SHOW: Final = "`kubectl get gpunode NODE -o yaml`: the state, reason and XIDs of each GPU"
_AGENT_LOGS: Final = "`kubectl -n kgwe-node logs -l app.kubernetes.io/component=agent`, on that node"
_SLOWED: Final = 'kgwe_gpu_throttled{reason=~"thermal.*|power_brake"}'
_UNCORRECTED: Final = 'increase(kgwe_gpu_ecc_errors_total{kind="uncorrected"}[1h])'
_DOWN: Final = 'kgwe_nvlink_links{state="down"}'
_AGE: Final = own("kgwe_exporter_sample_age_seconds", "node")

_AGE_BEFORE: Final = own("max_over_time(kgwe_exporter_sample_age_seconds[6h] offset 5m)", "node")


def _by_gpu(metric: str) -> str:
    return f"max by (node, gpu_uuid) ({own(metric, 'node')})"


GROUP: Final = Group(
    "kgwe-gpu-alerts",
    alerts=(
        Alert(
            "GPUUnhealthy",
            f"{_by_gpu('kgwe_gpu_health_status')} == 0",
            "warning",
            "GPU {{ $labels.gpu_uuid }} on {{ $labels.node }} is out of service",
            "KGWE places nothing on it. Pods on it are moved if their workload allows it.",
            (_SHOW, "`docs/health.md`: what the state means"),
            ("follow the action in the status: reset the GPU, restart the node, or replace the GPU",),
            ((f"kgwe_gpu_health_status{{{_GPU}}}", "0x60"),),
            ((f"kgwe_gpu_health_status{{{_GPU}}}", "1x1440"),),
            wait="1m",
        ),
        Alert(
            "GPUXidError",
            " or ".join(f"{_LAST_XID} == {number}" for number in _FATAL),
            "warning",
            "GPU {{ $labels.gpu_uuid }} on {{ $labels.node }} reported XID {{ $value }}",
            "The driver reported an error after which the GPU cannot be trusted until it is reset.",
            (_SHOW, "`dmesg` of the node: lines with `NVRM: Xid`"),
            ("drain the node and reset the GPU; if the XID comes back, replace it",),
            (('DCGM_FI_DEV_XID_ERRORS{Hostname="n1",UUID="GPU-1"}', "79x60"),),
            (('DCGM_FI_DEV_XID_ERRORS{Hostname="n1",UUID="GPU-1"}', "0x200 31x1200"),),
            wait="0m",
        ),
        Alert(
            "GPUTemperatureHigh",
            "kgwe:gpu_temperature:celsius > 85",
            "warning",
            "GPU {{ $labels.gpu_uuid }} on {{ $labels.node }} is at {{ $value }} °C",
            "Above 85 °C a GPU lowers its clocks, and all ranks of a job wait for it.",
            ("dashboard *kgwe-dashboard*: temperature of its neighbours", "`kgwe_gpu_throttled`"),
            ("check fans, air flow and coolant", "lower the power limit"),
            ((f"kgwe_gpu_temperature_celsius{{{_GPU}}}", "91x60"),),
            ((f"kgwe_gpu_temperature_celsius{{{_GPU}}}", "78x1440"),),
        ),
        Alert(
            "GPUThermalThrottling",
            f"max by (node, gpu_uuid, reason) ({own(_SLOWED, 'node')}) == 1",
            "warning",
            "GPU {{ $labels.gpu_uuid }} on {{ $labels.node }} is slowed down: {{ $labels.reason }}",
            "The GPU runs at reduced clocks to protect itself.",
            ("temperature and power of the GPU and its neighbours",),
            ("check cooling and power supply of the node", "drain the node if jobs are slow"),
            ((f'kgwe_gpu_throttled{{{_GPU},reason="thermal_hardware"}}', "1x60"),),
            ((f'kgwe_gpu_throttled{{{_GPU},reason="power_cap"}}', "1x1440"),
             (f'kgwe_gpu_throttled{{{_GPU},reason="thermal_software"}}', "0x1440")),
        ),
        Alert(
            "GPUMemoryErrors",
            f"sum by (node, gpu_uuid) ({own(_UNCORRECTED, 'node')}) > 0",
            "warning",
            "GPU {{ $labels.gpu_uuid }} on {{ $labels.node }} had uncorrectable memory errors",
            "A program on it has ended, or its results may be wrong.",
            (_SHOW, "remapped rows: `nvidia-smi -q -d ROW_REMAPPER`"),
            ("reset the GPU", "replace it if errors come back or rows cannot be remapped"),
            ((f'kgwe_gpu_ecc_errors_total{{{_GPU},kind="uncorrected"}}', "0x5 1+1x60"),),
            ((f'kgwe_gpu_ecc_errors_total{{{_GPU},kind="uncorrected"}}', "4x1440"),
             (f'kgwe_gpu_ecc_errors_total{{{_GPU},kind="corrected"}}', "0+1x1440")),
            wait="0m",
        ),
        Alert(
            "GPUNVLinkDown",
            f"max by (node, gpu_uuid) ({own(_DOWN, 'node')}) > 0",
            "warning",
            "{{ $value }} NVLinks of GPU {{ $labels.gpu_uuid }} on {{ $labels.node }} are down",
            "Jobs on this node are slower. KGWE counts with the remaining bandwidth.",
            (_SHOW, "`kgwe_nvlink_errors_total`", "the fabric manager's log"),
            ("restart the fabric manager or the node", "replace the GPU, baseboard or cable"),
            ((f'kgwe_nvlink_links{{{_GPU},state="down"}}', "2x60"),),
            ((f'kgwe_nvlink_links{{{_GPU},state="down"}}', "0x1440"),
             (f'kgwe_nvlink_links{{{_GPU},state="up"}}', "18x1440")),
        ),
        Alert(
            "GPUDriverNotReady",
            f"max by (node) ({own('kgwe_agent_driver_ready', 'node')}) == 0",
            "critical",
            "The driver of {{ $labels.node }} does not respond",
            "The agent cannot read its GPUs. They are unknown, and KGWE places nothing new there.",
            (_AGENT_LOGS, "`nvidia-smi` on the node"),
            ("restart the node", "see the condition `DriverReady` of the GPUNode"),
            (('kgwe_agent_driver_ready{node="n1"}', "0x60"),),
            (('kgwe_agent_driver_ready{node="n1"}', "1x1440"),),
        ),
        Alert(
            "GPUAgentSilent",
            f"(max by (node) ({_AGE_BEFORE}) unless on (node)"
            f" max by (node) ({_AGE})) and on (node) max by (node) ({own('kgwe_gpu_count', 'node')})",
            "warning",
            "The agent of {{ $labels.node }} no longer serves metrics",
            "The node exists, but its agent is gone. Health, usage and MIG of the node are unknown.",
            (_AGENT_LOGS, "the targets page of Prometheus"),
            ("restart the agent's pod", "tolerate the taints of the node in the DaemonSet"),
            (('kgwe_exporter_sample_age_seconds{node="n1"}', "2x5 _x60"),
             ('kgwe_gpu_count{node="n1",model="H100"}', "8x70")),
            (('kgwe_exporter_sample_age_seconds{node="n1"}', "2x1440"),
             ('kgwe_gpu_count{node="n1",model="H100"}', "8x1440"),
             ('kgwe_exporter_sample_age_seconds{node="gone"}', "2x10 _x1430"),
             ('kgwe_gpu_count{node="gone",model="H100"}', "8x10 _x1430")),
        ),
        Alert(
            "GPUSamplesOld",
            f"max by (node) ({_AGE}) > 60",
            "warning",
            "The newest GPU sample of {{ $labels.node }} is {{ $value | humanizeDuration }} old",
            "The agent runs, but the driver gives no readings. Usage of the node is unknown, not zero.",
            (_AGENT_LOGS, "`/health` on the agent's port 9400 says why"),
            ("restart the driver or the node",),
            (('kgwe_exporter_sample_age_seconds{node="n1"}', "10+60x60"),),
            (('kgwe_exporter_sample_age_seconds{node="n1"}', "3x1440"),),
        ),
        Alert(
            "GPUAgentProblems",
            f"max by (node) ({own('kgwe_agent_problems', 'node')}) > 0",
            "warning",
            "{{ $value }} parts of the agent on {{ $labels.node }} fail",
            "A part such as the device plugin or MIG fails; the others work on.",
            (_AGENT_LOGS, "`/readyz` of the agent names the part"),
            ("the page of the part in docs/ lists its causes",),
            (('kgwe_agent_problems{node="n1"}', "1x60"),),
            (('kgwe_agent_problems{node="n1"}', "0x1440"),),
            wait="10m",
        ),
        Alert(
            "MIGRequestsWait",
            "max(kgwe_mig_waiting) > 0",
            "warning",
            "{{ $value }} requests for MIG slices wait, and no GPU can serve them",
            "No legal layout of the selected GPUs has the slice without stopping running work.",
            ("`kubectl get migstrategies -o yaml`: conditions", "`kgwe explain NAME` of a waiting workload"),
            ("set `allowDynamicReconfig: true`", "select more GPUs in the MIGStrategy"),
            (("kgwe_mig_waiting", "2x120"),),
            (("kgwe_mig_waiting", "0x1440"),),
            wait="30m",
        ),
        Alert(
            "MIGLayoutFailed",
            'max(kgwe_mig_cards{phase="Failed"}) > 0',
            "warning",
            "{{ $value }} GPUs could not be cut as their MIGStrategy says",
            "The driver refused the layout. The GPUs keep their slices.",
            ("`kubectl get gpunode NODE -o yaml`: the GPU's MIG status", _AGENT_LOGS),
            ("stop processes on the GPU and let the controller try again", "reset the GPU"),
            (('kgwe_mig_cards{phase="Failed"}', "1x60"),),
            (('kgwe_mig_cards{phase="Ready"}', "8x1440"), ('kgwe_mig_cards{phase="Failed"}', "0x1440")),
        ),
        Alert(
            "MPSDaemonDown",
            f"min by (node, uuid) ({own('kgwe_mps_daemon_up', 'node')}) == 0",
            "warning",
            "The MPS daemon of {{ $labels.uuid }} on {{ $labels.node }} does not run",
            "Pods that share this GPU by MPS cannot start, or run without limits.",
            (_AGENT_LOGS, "`docs/sharing.md`"),
            ("the agent starts it again; if it does not stay up, restart the node",),
            (('kgwe_mps_daemon_up{uuid="GPU-1",node="n1"}', "0x60"),),
            (('kgwe_mps_daemon_up{uuid="GPU-1",node="n1"}', "1x1440"),),
        ),
    ),
)  # fmt: skip
