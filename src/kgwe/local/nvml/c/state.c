/* Mapping the hardware, the lock over it, handles, and faults on purpose. */
#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct state *the_state;
static pid_t attached_by; /* initialisation does not survive a fork */
static unsigned attached_times;
static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;

/* --- the file ------------------------------------------------------------------------------------------------------- */

/* KGWE_NVML_STATE, or the file `nvml.state` beside this library. */
static int state_path(char *out, size_t size) {
    const char *named = getenv("KGWE_NVML_STATE");
    if (named && *named) return snprintf(out, size, "%s", named) < (int)size;
    Dl_info self;
    if (!dladdr((void *)state_path, &self) || !self.dli_fname) return 0;
    const char *slash = strrchr(self.dli_fname, '/');
    int folder = slash ? (int)(slash - self.dli_fname) + 1 : 0;
    return snprintf(out, size, "%.*snvml.state", folder, self.dli_fname) < (int)size;
}

static struct state *map_state(void) {
    char path[4096];
    struct stat found;
    if (!state_path(path, sizeof path)) return NULL;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    struct state *state = MAP_FAILED;
    if (!fstat(file, &found) && (size_t)found.st_size >= sizeof *state)
        state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (state == MAP_FAILED) return NULL;
    if (state->magic == STATE_MAGIC && state->version == STATE_VERSION && state->size == sizeof *state) return state;
    munmap(state, sizeof *state);
    return NULL;
}

struct state *mapped(void) { return the_state; }

/* --- the lock ------------------------------------------------------------------------------------------------------- */

void lock_state(struct state *state) {
    /* A process that died with the lock left a consistent state: see state.h. */
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD) pthread_mutex_consistent(&state->lock);
}

void unlock_state(struct state *state) { pthread_mutex_unlock(&state->lock); }

void finish(struct call *call) {
    if (call->dies && call->state) raise(SIGKILL);
    if (call->state) unlock_state(call->state);
}

/* --- attaching ------------------------------------------------------------------------------------------------------ */

static int is_alive(uint32_t pid) { return pid && (!kill((pid_t)pid, 0) || errno == EPERM); }

static void register_client(struct state *state, uint32_t pid) {
    lock_state(state);
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (!is_alive(state->clients[i]) || state->clients[i] == pid) {
            state->clients[i] = pid;
            break;
        }
    unlock_state(state);
}

int is_attached_elsewhere(const struct state *state) {
    for (int i = 0; i < MAX_CLIENTS; i++)
        if (is_alive(state->clients[i]) && state->clients[i] != (uint32_t)getpid()) return 1;
    return 0;
}

nvmlReturn_t attach(void) {
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&attaching);
    if (attached_by != getpid()) attached_times = 0;
    if (!the_state) the_state = map_state();
    if (!the_state)
        result = NVML_ERROR_DRIVER_NOT_LOADED;
    else {
        register_client(the_state, (uint32_t)getpid());
        attached_by = getpid();
        attached_times++;
    }
    pthread_mutex_unlock(&attaching);
    return result;
}

nvmlReturn_t detach(void) {
    pthread_mutex_lock(&attaching);
    int was_attached = attached_by == getpid() && attached_times > 0;
    if (was_attached && --attached_times == 0) {
        attached_by = 0;
        lock_state(the_state);
        for (int i = 0; i < MAX_CLIENTS; i++)
            if (the_state->clients[i] == (uint32_t)getpid()) the_state->clients[i] = 0;
        unlock_state(the_state);
    }
    pthread_mutex_unlock(&attaching);
    return was_attached ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

/* --- handles: 0x5 | kind (4 bits) | card (8) | slot (4) | slot of the compute instance (4) | serial (32) --------------- */

enum { CARD = 1, GPU_INSTANCE = 2, COMPUTE_INSTANCE = 3, MIG_DEVICE = 4 };

static void *make_handle(unsigned kind, unsigned gpu, unsigned slot, unsigned compute, uint32_t serial) {
    return (void *)((uintptr_t)5 << 52 | (uintptr_t)kind << 48 | (uintptr_t)gpu << 40 | (uintptr_t)slot << 36 |
                    (uintptr_t)compute << 32 | serial);
}

void *card_handle(unsigned gpu) { return make_handle(CARD, gpu, 0, 0, 0); }

unsigned card_index(const struct call *call) { return (unsigned)(call->gpu - call->state->gpus); }

void *gpu_instance_handle(const struct call *call, const struct gpu_instance *instance) {
    unsigned slot = (unsigned)(instance - call->gpu->instances);
    return make_handle(GPU_INSTANCE, card_index(call), slot, 0, instance->serial);
}

void *compute_instance_handle(const struct call *call, const struct gpu_instance *instance,
                              const struct compute_instance *compute, int as_device) {
    unsigned slot = (unsigned)(instance - call->gpu->instances), inner = (unsigned)(compute - instance->compute);
    return make_handle(as_device ? MIG_DEVICE : COMPUTE_INSTANCE, card_index(call), slot, inner, compute->serial);
}

static nvmlReturn_t resolve(struct call *call, const void *handle) {
    uintptr_t bits = (uintptr_t)handle;
    unsigned kind = bits >> 48 & 15, gpu = bits >> 40 & 255, slot = bits >> 36 & 15, inner = bits >> 32 & 15;
    uint32_t serial = (uint32_t)bits;
    if (bits >> 52 != 5 || gpu >= call->state->gpu_count || slot >= MAX_GPU_INSTANCES || inner >= MAX_COMPUTE_INSTANCES)
        return NVML_ERROR_INVALID_ARGUMENT;
    call->gpu = &call->state->gpus[gpu];
    if (call->gpu->lost) return NVML_ERROR_GPU_IS_LOST;
    if (kind == CARD) return NVML_SUCCESS;
    struct gpu_instance *instance = &call->gpu->instances[slot];
    if (!instance->used) return NVML_ERROR_NOT_FOUND;
    call->instance = instance;
    if (kind == GPU_INSTANCE) return instance->serial == serial ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
    call->compute = &instance->compute[inner];
    return call->compute->used && call->compute->serial == serial ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* --- beginning a call ------------------------------------------------------------------------------------------------- */

void sleep_ms(unsigned milliseconds) {
    struct timespec left = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    while (nanosleep(&left, &left) && errno == EINTR) {
    }
}

/* Slow and failing calls. The delay is spent without the lock: a card that hangs does not stop the others. */
static nvmlReturn_t suffer(struct state *state, const char *function, int gpu) {
    nvmlReturn_t result = NVML_SUCCESS;
    unsigned delay = 0;
    if (!state->faulty) return result;
    lock_state(state);
    for (struct fault *fault = state->faults; fault < state->faults + MAX_FAULTS; fault++) {
        if (!fault->used || (fault->gpu >= 0 && fault->gpu != gpu)) continue;
        if (fault->function[0] && strcmp(fault->function, function)) continue;
        if (!fault->remaining || (fault->skip && fault->skip--)) continue;
        if (fault->remaining > 0) fault->remaining--;
        delay += fault->delay_ms;
        if (fault->code) result = fault->code;
    }
    unlock_state(state);
    if (delay) sleep_ms(delay);
    if (result == DIE_BEFORE) raise(SIGKILL);
    return result;
}

static nvmlReturn_t begin(struct call *call, const char *function, int gpu) {
    struct state *state = the_state;
    if (!state || attached_by != getpid()) return NVML_ERROR_UNINITIALIZED;
    nvmlReturn_t refused = suffer(state, function, gpu);
    if (refused > 0) return refused;
    lock_state(state);
    call->state = state;
    call->dies = refused == DIE_AFTER;
    return NVML_SUCCESS;
}

nvmlReturn_t begin_system(struct call *call, const char *function) { return begin(call, function, -1); }

nvmlReturn_t begin_device(struct call *call, const char *function, const void *handle) {
    nvmlReturn_t refused = begin(call, function, (int)((uintptr_t)handle >> 40 & 255));
    return refused ? refused : resolve(call, handle);
}

/* --- common ----------------------------------------------------------------------------------------------------------- */

nvmlReturn_t copy_text(char *out, unsigned size, const char *text) {
    if (!out) return NVML_ERROR_INVALID_ARGUMENT;
    size_t length = strlen(text) + 1;
    if (length > size) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, length);
    return NVML_SUCCESS;
}

/* NO_INSTANCE: whatever the instance. */
int has_processes(const struct gpu *gpu, uint32_t gpu_instance, uint32_t compute_instance) {
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process *process = &gpu->processes[i];
        if (!process->used) continue;
        if (gpu_instance != NO_INSTANCE && process->gpu_instance != gpu_instance) continue;
        if (compute_instance != NO_INSTANCE && process->compute_instance != compute_instance) continue;
        return 1;
    }
    return 0;
}

unsigned long long memory_in_use(const struct call *call) {
    unsigned long long total = call->instance ? 0 : call->gpu->memory_other;
    for (int i = 0; i < MAX_PROCESSES; i++) {
        const struct process *process = &call->gpu->processes[i];
        if (process->used && (!call->instance || process->gpu_instance == call->instance->id)) total += process->memory;
    }
    return total;
}
