/* What a card is and where it sits. */
#include "state.h"

#include <stdio.h>
#include <string.h>

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    char text[160];
    HANDLE_CALL(device)
    if (!call.compute) return copy_text(name, length, call.gpu->name);
    snprintf(text, sizeof text, "%s MIG %s", call.gpu->name, call.state->profiles[call.instance->profile].name);
    return copy_text(name, length, text);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    HANDLE_CALL(device)
    return copy_text(uuid, length, call.compute ? call.compute->uuid : call.gpu->uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length) {
    CARD_CALL(device)
    return copy_text(serial, length, call.gpu->serial);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    NEED(index)
    CARD_CALL(device)
    *index = card_index(&call);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    NEED(minor)
    CARD_CALL(device)
    *minor = call.gpu->minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture) {
    NEED(architecture)
    HANDLE_CALL(device)
    *architecture = call.gpu->architecture;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    NEED(major && minor)
    HANDLE_CALL(device)
    *major = (int)call.gpu->major_capability;
    *minor = (int)call.gpu->minor_capability;
    return NVML_SUCCESS;
}

/* --- memory ----------------------------------------------------------------------------------------------------------- */

static unsigned long long memory_total(const struct call *call) {
    if (!call->instance) return call->gpu->memory_total;
    return call->state->profiles[call->instance->profile].memory_mib << 20;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    NEED(memory)
    HANDLE_CALL(device)
    if (call.gpu->memory_v1_missing) return NVML_ERROR_NOT_SUPPORTED;
    unsigned long long reserved = call.instance ? 0 : call.gpu->memory_reserved;
    memory->total = memory_total(&call);
    memory->used = memory_in_use(&call) + reserved;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

#ifndef KGWE_OLD_DRIVER
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    NEED(memory)
    if (memory->version != VERSION_OF(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    HANDLE_CALL(device)
    memory->total = memory_total(&call);
    memory->reserved = call.instance ? 0 : call.gpu->memory_reserved;
    memory->used = memory_in_use(&call);
    memory->free = memory->total - memory->used - memory->reserved;
    return NVML_SUCCESS;
}
#endif

/* --- place ------------------------------------------------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    NEED(pci)
    CARD_CALL(device)
    memset(pci, 0, sizeof *pci);
    if (sscanf(call.gpu->bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3) return NVML_ERROR_UNKNOWN;
    snprintf(pci->busId, sizeof pci->busId, "%s", call.gpu->bus);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xFFFF, pci->bus & 0xFF,
             pci->device & 0xFF);
    return NVML_SUCCESS;
}

/* Masks are of unsigned long, whatever their number. */
static void copy_mask(unsigned long *out, unsigned words, const uint64_t *mask, unsigned known) {
    for (unsigned i = 0; i < words; i++) out[i] = i < known ? (unsigned long)mask[i] : 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *mask) {
    NEED(mask)
    CARD_CALL(device)
    copy_mask(mask, words, call.gpu->cpus, CPU_WORDS);
    for (unsigned i = 0; i < CPU_WORDS; i++)
        if (call.gpu->cpus[i]) return NVML_SUCCESS;
    return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *mask,
                                                unsigned scope) {
    (void)scope;
    NEED(mask)
    CARD_CALL(device)
    if (call.gpu->numa < 0) return NVML_ERROR_NOT_SUPPORTED;
    uint64_t node = (uint64_t)1 << call.gpu->numa % 64;
    copy_mask(mask, words, &node, 1);
    return NVML_SUCCESS;
}

/* The second card of a pair; both are on one machine, so under one lock. */
static nvmlReturn_t other_card(const struct call *call, nvmlDevice_t device, unsigned *index) {
    for (unsigned gpu = 0; gpu < call->state->gpu_count; gpu++)
        if (device == card_handle(gpu)) {
            *index = gpu;
            return call->state->gpus[gpu].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
        }
    return NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level) {
    unsigned index;
    NEED(level)
    CARD_CALL(one)
    nvmlReturn_t refused = other_card(&call, other, &index);
    if (refused) return refused;
    *level = call.state->ancestors[card_index(&call)][index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned capability,
                                           unsigned *status) {
    (void)capability;
    unsigned index;
    NEED(status)
    CARD_CALL(one)
    nvmlReturn_t refused = other_card(&call, other, &index);
    if (refused) return refused;
    *status = call.state->peers[card_index(&call)][index];
    return NVML_SUCCESS;
}

/* --- the NVLink domain beyond the machine ------------------------------------------------------------------------------ */

#ifndef KGWE_OLD_DRIVER
EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    NEED(info)
    CARD_CALL(device)
    memcpy(info->clusterUuid, call.gpu->cluster, sizeof info->clusterUuid);
    info->status = NVML_SUCCESS;
    info->cliqueId = call.gpu->clique;
    info->state = (unsigned char)call.gpu->fabric_state;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfo_v2_t *info) {
    NEED(info)
    if (info->version != VERSION_OF(nvmlGpuFabricInfo_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    CARD_CALL(device)
    memcpy(info->clusterUuid, call.gpu->cluster, sizeof info->clusterUuid);
    info->status = NVML_SUCCESS;
    info->cliqueId = call.gpu->clique;
    info->state = (unsigned char)call.gpu->fabric_state;
    info->healthMask = 0;
    return NVML_SUCCESS;
}
#endif
