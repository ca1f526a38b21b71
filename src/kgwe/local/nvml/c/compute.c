/* Compute instances, and MIG devices: what a process sees of one. */
#include "state.h"

#include <stdio.h>
#include <string.h>

/* Slices of the compute-instance profiles, by NVML's number of the profile; ids are the same numbers. */
static const unsigned SLICES[] = {1, 2, 3, 4, 7, 8, 6};
enum { COMPUTE_PROFILES = sizeof SLICES / sizeof *SLICES };

static unsigned slices_of(const struct call *call) { return call->state->profiles[call->instance->profile].compute; }

static unsigned slices_used(const struct gpu_instance *instance) {
    unsigned used = 0;
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        if (instance->compute[i].used) used += instance->compute[i].slices;
    return used;
}

static int is_offered(const struct call *call, unsigned index) {
    return index < COMPUTE_PROFILES && SLICES[index] <= slices_of(call);
}

#define INSTANCE_CALL(handle) \
    HANDLE_CALL(handle)       \
    if (!call.instance || call.compute) return NVML_ERROR_INVALID_ARGUMENT;

static void describe(const struct call *call, unsigned index, nvmlComputeInstanceProfileInfo_t *info) {
    memset(info, 0, sizeof *info);
    info->id = index;
    info->sliceCount = SLICES[index];
    info->instanceCount = slices_of(call) / SLICES[index];
    info->multiprocessorCount = SLICES[index] * 14;
    info->sharedCopyEngineCount = slices_of(call);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t handle, unsigned index,
                                                                 unsigned engines,
                                                                 nvmlComputeInstanceProfileInfo_t *info) {
    NEED(info && !engines)
    INSTANCE_CALL(handle)
    if (!is_offered(&call, index)) return NVML_ERROR_NOT_SUPPORTED;
    describe(&call, index, info);
    return NVML_SUCCESS;
}

#ifndef KGWE_OLD_DRIVER
EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t handle, unsigned index,
                                                                  unsigned engines,
                                                                  nvmlComputeInstanceProfileInfo_v2_t *info) {
    NEED(info && !engines)
    if (info->version != VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    INSTANCE_CALL(handle)
    if (!is_offered(&call, index)) return NVML_ERROR_NOT_SUPPORTED;
    nvmlComputeInstanceProfileInfo_t plain;
    describe(&call, index, &plain);
    memcpy(&info->id, &plain, sizeof plain);
    const char *whole = call.state->profiles[call.instance->profile].name;
    if (SLICES[index] == slices_of(&call))
        snprintf(info->name, sizeof info->name, "MIG %.90s", whole);
    else
        snprintf(info->name, sizeof info->name, "MIG %uc.%.80s", SLICES[index], whole);
    return NVML_SUCCESS;
}
#endif

/* A new instance gets a unique name: from the GPU, and from a serial number that is never reused. */
static uint64_t stir(uint64_t value) {
    value += 0x9e3779b97f4a7c15ull;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ value >> 27) * 0x94d049bb133111ebull;
    return value ^ value >> 31;
}

static void name_instance(const struct gpu *gpu, struct compute_instance *compute) {
    uint64_t seed = 14695981039346656037ull;
    for (const char *c = gpu->uuid; *c; c++) seed = (seed ^ (unsigned char)*c) * 1099511628211ull;
    uint64_t high = stir(seed ^ compute->serial), low = stir(high + compute->serial);
    snprintf(compute->uuid, sizeof compute->uuid, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(high >> 32),
             (unsigned)(high >> 16 & 0xFFFF), (unsigned)(high & 0xFFF), (unsigned)(low >> 48 & 0x3FFF) | 0x8000,
             (unsigned long long)(low & 0xFFFFFFFFFFFFull));
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t handle, unsigned id,
                                                         nvmlComputeInstance_t *created) {
    NEED(created)
    INSTANCE_CALL(handle)
    if (!is_offered(&call, id)) return NVML_ERROR_INVALID_ARGUMENT;
    if (slices_used(call.instance) + SLICES[id] > slices_of(&call)) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (unsigned i = 0; i < MAX_COMPUTE_INSTANCES; i++) {
        struct compute_instance *slot = &call.instance->compute[i];
        if (slot->used) continue;
        memset(slot, 0, sizeof *slot);
        slot->serial = ++call.state->serial;
        slot->id = i;
        slot->slices = SLICES[id];
        name_instance(call.gpu, slot);
        __atomic_store_n(&slot->used, 1, __ATOMIC_RELEASE);
        *created = compute_instance_handle(&call, call.instance, slot, 0);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle) {
    HANDLE_CALL(handle)
    if (!call.compute) return NVML_ERROR_INVALID_ARGUMENT;
    if (has_processes(call.gpu, call.instance->id, call.compute->id)) return NVML_ERROR_IN_USE;
    __atomic_store_n(&call.compute->used, 0, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t handle, unsigned id,
                                                       nvmlComputeInstance_t *found, unsigned *count) {
    NEED(found && count)
    INSTANCE_CALL(handle)
    if (!is_offered(&call, id)) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++) {
        struct compute_instance *slot = &call.instance->compute[i];
        if (slot->used && slot->slices == SLICES[id])
            found[(*count)++] = compute_instance_handle(&call, call.instance, slot, 0);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t handle, unsigned id,
                                                          nvmlComputeInstance_t *found) {
    NEED(found)
    INSTANCE_CALL(handle)
    if (id >= MAX_COMPUTE_INSTANCES || !call.instance->compute[id].used) return NVML_ERROR_NOT_FOUND;
    *found = compute_instance_handle(&call, call.instance, &call.instance->compute[id], 0);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *info) {
    NEED(info)
    HANDLE_CALL(handle)
    if (!call.compute) return NVML_ERROR_INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    info->device = card_handle(card_index(&call));
    info->gpuInstance = gpu_instance_handle(&call, call.instance);
    info->id = call.compute->id;
    for (unsigned i = 0; i < COMPUTE_PROFILES; i++)
        if (SLICES[i] == call.compute->slices) info->profileId = i;
    info->placement.size = call.compute->slices;
    return NVML_SUCCESS;
}

/* --- MIG devices ------------------------------------------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count) {
    NEED(count)
    CARD_CALL(device)
    *count = call.gpu->mig_capable ? call.state->compute : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *found) {
    NEED(found)
    CARD_CALL(device)
    if (!call.gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    for (struct gpu_instance *slot = call.gpu->instances; slot < call.gpu->instances + MAX_GPU_INSTANCES; slot++)
        for (int i = 0; slot->used && i < MAX_COMPUTE_INSTANCES; i++)
            if (slot->compute[i].used && !index--) {
                *found = compute_instance_handle(&call, slot, &slot->compute[i], 1);
                return NVML_SUCCESS;
            }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig) {
    NEED(is_mig)
    HANDLE_CALL(device)
    *is_mig = !!call.compute;
    return NVML_SUCCESS;
}

#define MIG_DEVICE_CALL(device) \
    HANDLE_CALL(device)         \
    if (!call.compute) return NVML_ERROR_NOT_SUPPORTED;

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id) {
    NEED(id)
    MIG_DEVICE_CALL(device)
    *id = call.instance->id;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id) {
    NEED(id)
    MIG_DEVICE_CALL(device)
    *id = call.compute->id;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *card) {
    NEED(card)
    MIG_DEVICE_CALL(device)
    *card = card_handle(card_index(&call));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    NEED(attributes)
    MIG_DEVICE_CALL(device)
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = call.compute->slices * 14;
    attributes->gpuInstanceSliceCount = slices_of(&call);
    attributes->computeInstanceSliceCount = call.compute->slices;
    attributes->memorySizeMB = call.state->profiles[call.instance->profile].memory_mib;
    return NVML_SUCCESS;
}
