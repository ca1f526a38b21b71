/* Control functions of the simulation: for hardware.py through ctypes, and the reset for nvidia-smi. */
#include "state.h"

#include <string.h>
#include <unistd.h>

EXPORT unsigned kgweStateSize(void) { return sizeof(struct state); }

/* Offsets by which the other declaration of the layout is checked. */
EXPORT unsigned kgweOffset(unsigned which) {
    static const unsigned OFFSETS[] = {
        offsetof(struct state, profiles), offsetof(struct state, faults), offsetof(struct state, events),
        offsetof(struct state, gpus),     offsetof(struct gpu, links),    offsetof(struct gpu, processes),
        sizeof(struct gpu),
    };
    return which < sizeof OFFSETS / sizeof *OFFSETS ? OFFSETS[which] : 0;
}

EXPORT void kgweMakeLock(struct state *state) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&state->lock, &kind);
    pthread_mutexattr_destroy(&kind);
}

EXPORT void kgweLock(struct state *state) { lock_state(state); }

EXPORT void kgweUnlock(struct state *state) { unlock_state(state); }

/* A reset of a card: pending modes take effect, instances are removed, volatile counters restart at 0,
 * and a lost GPU is back. It is refused while a process runs on the card or another process has NVML open, which holds every card. */
EXPORT nvmlReturn_t kgweReset(const char *uuid) {
    SYSTEM_CALL()
    for (struct gpu *gpu = call.state->gpus; gpu < call.state->gpus + call.state->gpu_count; gpu++) {
        if (strcmp(gpu->uuid, uuid)) continue;
        if (has_processes(gpu, NO_INSTANCE, NO_INSTANCE) || is_attached_elsewhere(call.state)) return NVML_ERROR_IN_USE;
        /* Instances do not survive the end of MIG mode, nor a reset. */
        for (int i = 0; i < MAX_GPU_INSTANCES; i++) gpu->instances[i].used = 0;
        gpu->mig_mode = gpu->mig_pending;
        gpu->ecc_corrected = gpu->ecc_uncorrected = gpu->energy_mj = 0;
        gpu->rows_pending = gpu->pages_pending = 0;
        for (int i = 0; i < MAX_LINKS; i++) memset(gpu->links[i].errors, 0, sizeof gpu->links[i].errors);
        gpu->lost = 0;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}
