/* The hardware: a file that every process which loads the library maps. `state.py` declares the same layout.
 *
 * It outlives its users. A process may be killed at any instruction, so every change has one moment at which it
 * happens, a store of one word (`used`, a mode, a counter), and what that word covers is written before it.
 */
#ifndef KGWE_NVML_STATE_H
#define KGWE_NVML_STATE_H

#include <pthread.h>

#include "abi.h"

enum {
    STATE_VERSION = 1,
    MAX_GPUS = 16,
    MAX_LINKS = 36,
    MAX_PROFILES = 18,
    MAX_STARTS = 12,
    MAX_GPU_INSTANCES = 12,
    MAX_COMPUTE_INSTANCES = 8,
    MAX_PROCESSES = 64,
    MAX_EVENTS = 256,
    MAX_FAULTS = 32,
    MAX_CLIENTS = 32,
    CPU_WORDS = 16,
    LINK_ERRORS = 5,
};

#define STATE_MAGIC 0x6b67776567707573ull /* "kgwegpus" */

enum { MEDIA_SHARED = 0, MEDIA_ONE = 1, MEDIA_ALL = 2, MEDIA_NONE = 3 };
enum { PROCESS_COMPUTE = 0, PROCESS_GRAPHICS = 1, PROCESS_MPS = 2 };

struct profile {
    uint32_t used, id, compute, units, limit, media, starts_count, starts[MAX_STARTS];
    uint64_t memory_mib;
    char name[96];
};

struct compute_instance {
    uint32_t used, id, slices, serial;
    char uuid[48];
};

struct gpu_instance {
    uint32_t used, id, profile, start, serial, spare;
    struct compute_instance compute[MAX_COMPUTE_INSTANCES];
};

struct link {
    uint32_t present, up, version, remote_type, speed_mbps, spare;
    char remote_bus[32];
    uint64_t errors[LINK_ERRORS], tx_kib, rx_kib;
};

struct process {
    uint32_t used, pid, kind, gpu_instance, compute_instance, sm_util, memory_util, spare;
    uint64_t memory;
};

struct gpu {
    uint32_t lost, minor, architecture, major_capability, minor_capability;
    int32_t numa;
    char uuid[48], name[96], serial[32], bus[32];
    uint64_t cpus[CPU_WORDS];

    uint32_t mig_capable, mig_mode, mig_pending, mode_needs_reset;
    struct gpu_instance instances[MAX_GPU_INSTANCES];

    uint32_t fabric_state, clique;
    uint8_t cluster[16];
    struct link links[MAX_LINKS];

    uint64_t memory_total, memory_reserved, memory_other;
    uint32_t memory_v1_missing, util, memory_util, power_mw, power_limit_mw;
    int32_t gpu_c, memory_c, slowdown_c;
    uint32_t sm_mhz, memory_mhz, pcie_tx_kb, pcie_rx_kb;
    uint64_t throttle, energy_mj;

    uint32_t ecc_supported, pages_supported, rows_supported, pages_pending, rows_pending, rows_failed, pcie_replays,
        spare;
    uint64_t ecc_corrected, ecc_uncorrected, pages[2], rows_corrected, rows_uncorrected;
    struct process processes[MAX_PROCESSES];
};

struct event {
    uint64_t type, data;
    uint32_t gpu, gpu_instance, compute_instance, spare;
};

/* What goes wrong on purpose: a call of `function` (any when empty) on a card (any when negative). */
struct fault {
    uint32_t used;
    int32_t gpu, code;
    uint32_t delay_ms, skip; /* calls that go well first */
    int32_t remaining;       /* how many more calls; negative: all */
    char function[64];
};

/* Special codes: the calling process is killed, before the call, or after its work is done and before it returns
 * (while it holds the lock). */
enum { DIE_BEFORE = -1, DIE_AFTER = -2 };

struct state {
    uint64_t magic;
    uint32_t version, size;
    union {
        pthread_mutex_t lock;
        uint8_t lock_room[64]; /* its size differs between machines */
    };
    uint32_t gpu_count, units, compute, serial, faulty, wakeups;
    uint32_t cuda_version, spare;
    char driver_version[80];
    uint32_t clients[MAX_CLIENTS];
    uint32_t ancestors[MAX_GPUS][MAX_GPUS];
    uint32_t peers[MAX_GPUS][MAX_GPUS];
    struct profile profiles[MAX_PROFILES];
    struct fault faults[MAX_FAULTS];
    uint64_t events_written;
    struct event events[MAX_EVENTS];
    struct gpu gpus[MAX_GPUS];
};

/* --- one call ------------------------------------------------------------------------------------------------------- */

/* What a call is about. Holds the lock from begin_* to the end of the function that declares it. */
struct call {
    struct state *state;
    struct gpu *gpu;
    struct gpu_instance *instance;
    struct compute_instance *compute;
    int dies;
};

nvmlReturn_t begin_system(struct call *call, const char *function);
nvmlReturn_t begin_device(struct call *call, const char *function, const void *handle);
void finish(struct call *call);

#define CALL_(begin, ...)                                                 \
    struct call call __attribute__((cleanup(finish))) = {0};              \
    {                                                                     \
        nvmlReturn_t refused = begin(&call, __func__ __VA_OPT__(, ) __VA_ARGS__); \
        if (refused) return refused;                                      \
    }
#define SYSTEM_CALL() CALL_(begin_system)
/* A card, a MIG device, a GPU instance or a compute instance. */
#define HANDLE_CALL(handle) CALL_(begin_device, handle)
/* The card itself only. */
#define CARD_CALL(handle) \
    HANDLE_CALL(handle)   \
    if (call.instance) return NVML_ERROR_NOT_SUPPORTED;

#define NEED(pointer) \
    if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT;

unsigned card_index(const struct call *call);
void *card_handle(unsigned gpu);
void *gpu_instance_handle(const struct call *call, const struct gpu_instance *instance);
void *compute_instance_handle(const struct call *call, const struct gpu_instance *instance,
                              const struct compute_instance *compute, int as_device);
nvmlReturn_t copy_text(char *out, unsigned size, const char *text);
nvmlReturn_t attach(void);
nvmlReturn_t detach(void);
int is_attached_elsewhere(const struct state *state);
struct state *mapped(void);
void lock_state(struct state *state);
void unlock_state(struct state *state);
int has_processes(const struct gpu *gpu, uint32_t gpu_instance, uint32_t compute_instance);
unsigned long long memory_in_use(const struct call *call);
void sleep_ms(unsigned milliseconds);

#endif
