/* The library itself, and finding cards. */
#include "state.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    nvmlReturn_t result = attach();
    if (result) return result;
    /* A call like any other, so that it can be slow or fail too. */
    {
        struct call call __attribute__((cleanup(finish))) = {0};
        result = begin_system(&call, __func__);
    }
    if (result) detach();
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT nvmlReturn_t nvmlShutdown(void) { return detach(); }

EXPORT const char *nvmlErrorString(nvmlReturn_t code) {
    switch (code) {
        case NVML_SUCCESS: return "Success";
        case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
        case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
        case NVML_ERROR_NOT_FOUND: return "Not Found";
        case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
        case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case NVML_ERROR_TIMEOUT: return "Timeout";
        case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
        case NVML_ERROR_IN_USE: return "In use by another client";
        case NVML_ERROR_INSUFFICIENT_RESOURCES: return "Insufficient Resources";
        case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
        default: return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    SYSTEM_CALL()
    return copy_text(version, length, call.state->driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    char text[96];
    SYSTEM_CALL()
    snprintf(text, sizeof text, "%u.%s", call.state->cuda_version / 1000, call.state->driver_version);
    return copy_text(version, length, text);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    NEED(version)
    SYSTEM_CALL()
    *version = (int)call.state->cuda_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

/* --- cards ------------------------------------------------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    NEED(count)
    SYSTEM_CALL()
    *count = call.state->gpu_count;
    return NVML_SUCCESS;
}

static nvmlReturn_t hand_out(struct call *call, unsigned gpu, nvmlDevice_t *device) {
    if (call->state->gpus[gpu].lost) return NVML_ERROR_GPU_IS_LOST;
    *device = card_handle(gpu);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    NEED(device)
    SYSTEM_CALL()
    return index < call.state->gpu_count ? hand_out(&call, index, device) : NVML_ERROR_INVALID_ARGUMENT;
}

static nvmlReturn_t find_mig_device(struct call *call, const char *uuid, nvmlDevice_t *device) {
    for (int i = 0; i < MAX_GPU_INSTANCES; i++)
        for (int j = 0; j < MAX_COMPUTE_INSTANCES; j++) {
            struct gpu_instance *instance = &call->gpu->instances[i];
            struct compute_instance *compute = &instance->compute[j];
            if (!instance->used || !compute->used || strcmp(compute->uuid, uuid)) continue;
            *device = compute_instance_handle(call, instance, compute, 1);
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    NEED(uuid && device)
    SYSTEM_CALL()
    for (unsigned gpu = 0; gpu < call.state->gpu_count; gpu++) {
        call.gpu = &call.state->gpus[gpu];
        if (!strcmp(call.gpu->uuid, uuid)) return hand_out(&call, gpu, device);
        if (!call.gpu->lost && !find_mig_device(&call, uuid, device)) return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device) {
    NEED(bus && device)
    SYSTEM_CALL()
    for (unsigned gpu = 0; gpu < call.state->gpu_count; gpu++)
        if (!strcasecmp(call.state->gpus[gpu].bus, bus)) return hand_out(&call, gpu, device);
    return NVML_ERROR_NOT_FOUND;
}
