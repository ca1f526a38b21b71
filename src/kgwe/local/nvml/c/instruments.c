/* What changes from second to second. */
#include "state.h"

#include <time.h>

/* Tables of a card's own instruments: a MIG device has none of these. */
#define GAUGE(function, type, value)                                    \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, type *out) {      \
        NEED(out)                                                       \
        CARD_CALL(device)                                               \
        *out = (type)call.gpu->value;                                   \
        return NVML_SUCCESS;                                            \
    }

GAUGE(nvmlDeviceGetPowerUsage, unsigned, power_mw)
GAUGE(nvmlDeviceGetEnforcedPowerLimit, unsigned, power_limit_mw)
GAUGE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj)
GAUGE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, throttle)
GAUGE(nvmlDeviceGetPcieReplayCounter, unsigned, pcie_replays)
#ifndef KGWE_OLD_DRIVER
GAUGE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, throttle)
#endif

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    NEED(rates)
    CARD_CALL(device)
    if (call.gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    rates->gpu = call.gpu->util;
    rates->memory = call.gpu->memory_util;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius) {
    NEED(celsius && sensor == 0)
    CARD_CALL(device)
    *celsius = (unsigned)call.gpu->gpu_c;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *celsius) {
    enum { SHUTDOWN = 0, SLOWDOWN = 1 };
    NEED(celsius)
    CARD_CALL(device)
    if (threshold > SLOWDOWN || call.gpu->slowdown_c <= 0) return NVML_ERROR_NOT_SUPPORTED;
    *celsius = (unsigned)call.gpu->slowdown_c + (threshold == SHUTDOWN ? 5 : 0);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    enum { GRAPHICS = 0, SM = 1, MEMORY = 2 };
    NEED(mhz)
    CARD_CALL(device)
    if (type > MEMORY) return NVML_ERROR_NOT_SUPPORTED;
    *mhz = type == MEMORY ? call.gpu->memory_mhz : call.gpu->sm_mhz;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kb_per_s) {
    NEED(kb_per_s && counter < 2)
    CARD_CALL(device)
    *kb_per_s = counter ? call.gpu->pcie_rx_kb : call.gpu->pcie_tx_kb;
    return NVML_SUCCESS;
}

/* --- what went wrong -------------------------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                                unsigned long long *count) {
    (void)counter;
    NEED(count && type < 2)
    CARD_CALL(device)
    if (!call.gpu->ecc_supported) return NVML_ERROR_NOT_SUPPORTED;
    *count = type ? call.gpu->ecc_uncorrected : call.gpu->ecc_corrected;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count,
                                              unsigned long long *addresses) {
    NEED(count && cause < 2)
    CARD_CALL(device)
    if (!call.gpu->pages_supported) return NVML_ERROR_NOT_SUPPORTED;
    unsigned room = *count;
    *count = (unsigned)call.gpu->pages[cause];
    if (!*count) return NVML_SUCCESS;
    if (!addresses || room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) addresses[i] = ((unsigned long long)cause << 32) + (i << 12);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *pending) {
    NEED(pending)
    CARD_CALL(device)
    if (!call.gpu->pages_supported) return NVML_ERROR_NOT_SUPPORTED;
    *pending = call.gpu->pages_pending;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                              unsigned *pending, unsigned *failed) {
    NEED(corrected && uncorrected && pending && failed)
    CARD_CALL(device)
    if (!call.gpu->rows_supported) return NVML_ERROR_NOT_SUPPORTED;
    *corrected = (unsigned)call.gpu->rows_corrected;
    *uncorrected = (unsigned)call.gpu->rows_uncorrected;
    *pending = call.gpu->rows_pending;
    *failed = call.gpu->rows_failed;
    return NVML_SUCCESS;
}

/* --- processes -------------------------------------------------------------------------------------------------------- */

static int is_asked(const struct call *call, const struct process *process, unsigned kind) {
    if (!process->used || process->kind != kind) return 0;
    return !call->instance || process->gpu_instance == call->instance->id;
}

static nvmlReturn_t list_processes(const struct call *call, unsigned kind, unsigned *count, nvmlProcessInfo_t *infos) {
    unsigned found = 0, room = *count;
    for (const struct process *process = call->gpu->processes; process < call->gpu->processes + MAX_PROCESSES;
         process++) {
        if (!is_asked(call, process, kind)) continue;
        if (infos && found < room) {
            infos[found].pid = process->pid;
            infos[found].usedGpuMemory = process->memory;
            infos[found].gpuInstanceId = process->gpu_instance;
            infos[found].computeInstanceId = process->compute_instance;
        }
        found++;
    }
    *count = found;
    return found && (!infos || room < found) ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESS_LIST(function, kind)                                                              \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos) { \
        NEED(count)                                                                               \
        HANDLE_CALL(device)                                                                       \
        return list_processes(&call, kind, count, infos);                                         \
    }

PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, PROCESS_COMPUTE)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, PROCESS_GRAPHICS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, PROCESS_MPS)
#ifndef KGWE_OLD_DRIVER
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, PROCESS_COMPUTE)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, PROCESS_GRAPHICS)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, PROCESS_MPS)
#endif

static unsigned long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_nsec / 1000;
}

static unsigned count_active(const struct gpu *gpu) {
    unsigned found = 0;
    for (int i = 0; i < MAX_PROCESSES; i++) found += gpu->processes[i].used && gpu->processes[i].sm_util;
    return found;
}

/* Samples exist of processes whose kernels ran; there are none on a card that is cut. */
EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                                    unsigned *count, unsigned long long since) {
    (void)since;
    NEED(count)
    CARD_CALL(device)
    if (call.gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    unsigned room = *count, found = 0;
    *count = count_active(call.gpu);
    if (!*count) return NVML_ERROR_NOT_FOUND;
    if (!samples || room < *count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (const struct process *process = call.gpu->processes; found < *count; process++) {
        if (!process->used || !process->sm_util) continue;
        samples[found++] = (nvmlProcessUtilizationSample_t){
            .pid = process->pid, .timeStamp = now_us(), .smUtil = process->sm_util, .memUtil = process->memory_util};
    }
    return NVML_SUCCESS;
}

#ifndef KGWE_OLD_DRIVER
EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                          nvmlProcessesUtilizationInfo_v1_t *info) {
    NEED(info)
    if (info->version != VERSION_OF(nvmlProcessesUtilizationInfo_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    CARD_CALL(device)
    if (call.gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    unsigned room = info->processSamplesCount, found = 0;
    info->processSamplesCount = count_active(call.gpu);
    if (!info->processSamplesCount) return NVML_ERROR_NOT_FOUND;
    if (!info->procUtilArray || room < info->processSamplesCount) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (const struct process *process = call.gpu->processes; found < info->processSamplesCount; process++) {
        if (!process->used || !process->sm_util) continue;
        info->procUtilArray[found++] = (nvmlProcessUtilizationInfo_v1_t){
            .pid = process->pid, .timeStamp = now_us(), .smUtil = process->sm_util, .memUtil = process->memory_util};
    }
    return NVML_SUCCESS;
}
#endif
