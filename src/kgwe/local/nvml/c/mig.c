/* MIG: the mode, GPU instances and their places. The tables of profiles and places are in the state. */
#include "state.h"

#include <stdio.h>
#include <string.h>

static unsigned count_instances(const struct gpu *gpu) {
    unsigned count = 0;
    for (int i = 0; i < MAX_GPU_INSTANCES; i++) count += !!gpu->instances[i].used;
    return count;
}

/* --- the mode --------------------------------------------------------------------------------------------------------- */

/* GPUs without MIG have a mode too, which is off for good; nvmlDeviceGetMaxMigDeviceCount tells them apart. */
EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    NEED(current && pending)
    CARD_CALL(device)
    *current = call.gpu->mig_mode;
    *pending = call.gpu->mig_pending;
    return NVML_SUCCESS;
}

/* Ampere changes its mode by a reset: where something is in the way the wish stays pending. Later cards change it at
 * once or not at all. */
EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation) {
    NEED(activation && mode < 2)
    CARD_CALL(device)
    struct gpu *gpu = call.gpu;
    if (!gpu->mig_capable) return NVML_ERROR_NOT_SUPPORTED;
    *activation = NVML_SUCCESS;
    int is_busy = mode != gpu->mig_mode && (has_processes(gpu, NO_INSTANCE, NO_INSTANCE) || count_instances(gpu));
    if (is_busy && !gpu->mode_needs_reset) return NVML_ERROR_IN_USE;
    gpu->mig_pending = mode;
    if (is_busy)
        *activation = NVML_ERROR_IN_USE;
    else
        gpu->mig_mode = mode;
    return NVML_SUCCESS;
}

/* --- profiles --------------------------------------------------------------------------------------------------------- */

static struct profile *profile_at(const struct call *call, unsigned index) {
    if (index >= MAX_PROFILES || !call->gpu->mig_capable) return NULL;
    struct profile *profile = &call->state->profiles[index];
    return profile->used ? profile : NULL;
}

static struct profile *profile_by_id(const struct call *call, unsigned id) {
    for (unsigned i = 0; i < MAX_PROFILES; i++) {
        struct profile *profile = profile_at(call, i);
        if (profile && profile->id == id) return profile;
    }
    return NULL;
}

static void describe(const struct profile *profile, nvmlGpuInstanceProfileInfo_t *info) {
    memset(info, 0, sizeof *info);
    info->id = profile->id;
    info->sliceCount = profile->compute;
    info->instanceCount = profile->limit;
    info->multiprocessorCount = profile->compute * 14;
    info->copyEngineCount = profile->compute;
    info->decoderCount = profile->media == MEDIA_ONE || profile->media == MEDIA_ALL;
    info->memorySizeMB = profile->memory_mib;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned index,
                                                        nvmlGpuInstanceProfileInfo_t *info) {
    NEED(info)
    CARD_CALL(device)
    struct profile *profile = profile_at(&call, index);
    if (!profile) return NVML_ERROR_NOT_SUPPORTED;
    describe(profile, info);
    return NVML_SUCCESS;
}

#ifndef KGWE_OLD_DRIVER
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned index,
                                                         nvmlGpuInstanceProfileInfo_v2_t *info) {
    NEED(info)
    if (info->version != VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    CARD_CALL(device)
    struct profile *profile = profile_at(&call, index);
    if (!profile) return NVML_ERROR_NOT_SUPPORTED;
    nvmlGpuInstanceProfileInfo_t plain;
    describe(profile, &plain);
    memcpy(&info->id, &plain, offsetof(nvmlGpuInstanceProfileInfo_t, memorySizeMB));
    info->memorySizeMB = plain.memorySizeMB;
    snprintf(info->name, sizeof info->name, "MIG %.90s", profile->name);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                                  nvmlPlacement_t *placements, unsigned *count) {
    NEED(count)
    CARD_CALL(device)
    struct profile *profile = profile_by_id(&call, id);
    if (!profile) return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count;
    *count = profile->starts_count;
    if (!placements) return NVML_SUCCESS;
    if (room < profile->starts_count) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < profile->starts_count; i++)
        placements[i] = (nvmlPlacement_t){profile->starts[i], profile->units};
    return NVML_SUCCESS;
}
#endif

/* --- what fits -------------------------------------------------------------------------------------------------------- */

static int may_start(const struct profile *profile, unsigned start) {
    for (unsigned i = 0; i < profile->starts_count; i++)
        if (profile->starts[i] == start) return 1;
    return 0;
}

/* If one instance has all media engines, the others have none. */
static int media_allow(unsigned one, unsigned other) {
    int one_takes = one == MEDIA_ONE || one == MEDIA_ALL, other_takes = other == MEDIA_ONE || other == MEDIA_ALL;
    if (one_takes && other_takes) return 0;
    if (one == MEDIA_ALL) return other == MEDIA_NONE;
    if (other == MEDIA_ALL) return one == MEDIA_NONE;
    return 1;
}

static int fits(const struct call *call, const struct profile *profile, unsigned start) {
    unsigned compute = profile->compute, alike = 0;
    if (!may_start(profile, start) || start + profile->units > call->state->units) return 0;
    for (const struct gpu_instance *other = call->gpu->instances; other < call->gpu->instances + MAX_GPU_INSTANCES;
         other++) {
        if (!other->used) continue;
        const struct profile *theirs = &call->state->profiles[other->profile];
        if (start < other->start + theirs->units && other->start < start + profile->units) return 0;
        if (!media_allow(profile->media, theirs->media)) return 0;
        compute += theirs->compute;
        alike += theirs == profile;
    }
    return compute <= call->state->compute && alike < profile->limit;
}

/* How many starts are free, taken one by one: an upper bound that is exact for the first. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *count) {
    NEED(count)
    CARD_CALL(device)
    struct profile *profile = profile_by_id(&call, id);
    if (!profile) return NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    for (unsigned i = 0; call.gpu->mig_mode && i < profile->starts_count; i++)
        *count += fits(&call, profile, profile->starts[i]);
    return NVML_SUCCESS;
}

/* --- GPU instances ---------------------------------------------------------------------------------------------------- */

/* Halves of halves, counted as in a heap: the whole card is 0, its halves 1 and 2, … */
static unsigned instance_id(const struct call *call, const struct profile *profile, unsigned start) {
    return call->state->units / profile->units - 1 + start / profile->units;
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id,
                                                             const nvmlPlacement_t *placement,
                                                             nvmlGpuInstance_t *created) {
    NEED(placement && created)
    CARD_CALL(device)
    struct profile *profile = profile_by_id(&call, id);
    if (!profile || placement->size != profile->units) return NVML_ERROR_INVALID_ARGUMENT;
    if (!call.gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    if (has_processes(call.gpu, NO_INSTANCE, NO_INSTANCE) && !count_instances(call.gpu)) return NVML_ERROR_IN_USE;
    if (!fits(&call, profile, placement->start)) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    for (struct gpu_instance *slot = call.gpu->instances; slot < call.gpu->instances + MAX_GPU_INSTANCES; slot++) {
        if (slot->used) continue;
        memset(slot, 0, sizeof *slot);
        slot->serial = ++call.state->serial;
        slot->id = instance_id(&call, profile, placement->start);
        slot->profile = (uint32_t)(profile - call.state->profiles);
        slot->start = placement->start;
        __atomic_store_n(&slot->used, 1, __ATOMIC_RELEASE);
        *created = gpu_instance_handle(&call, slot);
        return NVML_SUCCESS;
    }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle) {
    HANDLE_CALL(handle)
    if (!call.instance || call.compute) return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < MAX_COMPUTE_INSTANCES; i++)
        if (call.instance->compute[i].used) return NVML_ERROR_IN_USE;
    if (has_processes(call.gpu, call.instance->id, NO_INSTANCE)) return NVML_ERROR_IN_USE;
    __atomic_store_n(&call.instance->used, 0, __ATOMIC_RELEASE);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *found,
                                              unsigned *count) {
    NEED(found && count)
    CARD_CALL(device)
    struct profile *profile = profile_by_id(&call, id);
    if (!profile) return NVML_ERROR_INVALID_ARGUMENT;
    if (!call.gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    *count = 0;
    for (struct gpu_instance *slot = call.gpu->instances; slot < call.gpu->instances + MAX_GPU_INSTANCES; slot++)
        if (slot->used && &call.state->profiles[slot->profile] == profile)
            found[(*count)++] = gpu_instance_handle(&call, slot);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *found) {
    NEED(found)
    CARD_CALL(device)
    if (!call.gpu->mig_mode) return NVML_ERROR_NOT_SUPPORTED;
    for (struct gpu_instance *slot = call.gpu->instances; slot < call.gpu->instances + MAX_GPU_INSTANCES; slot++)
        if (slot->used && slot->id == id) {
            *found = gpu_instance_handle(&call, slot);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *info) {
    NEED(info)
    HANDLE_CALL(handle)
    if (!call.instance) return NVML_ERROR_INVALID_ARGUMENT;
    const struct profile *profile = &call.state->profiles[call.instance->profile];
    info->device = card_handle(card_index(&call));
    info->id = call.instance->id;
    info->profileId = profile->id;
    info->placement = (nvmlPlacement_t){call.instance->start, profile->units};
    return NVML_SUCCESS;
}
