/* Events: a ring in the state, read by every event set at its own pace. */
#define _GNU_SOURCE
#include "state.h"

#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SUPPORTED = 0x1 | 0x2 | 0x8 }; /* single and double bit ECC errors, XIDs */

struct nvmlEventSet_st {
    uint64_t next;
    unsigned long long wanted[MAX_GPUS];
};

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    NEED(set)
    SYSTEM_CALL()
    *set = calloc(1, sizeof **set);
    if (!*set) return NVML_ERROR_UNKNOWN;
    (*set)->next = call.state->events_written;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    NEED(set)
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    NEED(types)
    CARD_CALL(device)
    *types = SUPPORTED;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    NEED(set)
    CARD_CALL(device)
    if (types & ~(unsigned long long)SUPPORTED) return NVML_ERROR_NOT_SUPPORTED;
    set->wanted[card_index(&call)] |= types;
    return NVML_SUCCESS;
}

/* The next event the set waits for. `wakeups` is the word to sleep on when there is none. */
static nvmlReturn_t take(nvmlEventSet_t set, nvmlEventData_t *data, uint32_t *wakeups) {
    SYSTEM_CALL()
    *wakeups = call.state->wakeups;
    if (call.state->events_written - set->next > MAX_EVENTS) set->next = call.state->events_written - MAX_EVENTS;
    while (set->next < call.state->events_written) {
        const struct event *event = &call.state->events[set->next++ % MAX_EVENTS];
        if (!(set->wanted[event->gpu % MAX_GPUS] & event->type)) continue;
        data->device = card_handle(event->gpu);
        data->eventType = event->type;
        data->eventData = event->data;
        data->gpuInstanceId = event->gpu_instance;
        data->computeInstanceId = event->compute_instance;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}

static long long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms) {
    NEED(set && data)
    {
        SYSTEM_CALL()
    }
    for (long long end = now_ms() + timeout_ms;;) {
        uint32_t wakeups = 0;
        nvmlReturn_t result = take(set, data, &wakeups);
        long long left = end - now_ms();
        if (result != NVML_ERROR_TIMEOUT || left <= 0) return result;
        struct timespec wait = {left / 1000, (long)(left % 1000) * 1000000};
        syscall(SYS_futex, &mapped()->wakeups, FUTEX_WAIT, wakeups, &wait, NULL, 0);
    }
}

/* For hardware.py: those who wait look again. Called with the lock held, after an event was written. */
EXPORT void kgweWake(struct state *state) {
    state->wakeups++;
    syscall(SYS_futex, &state->wakeups, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}
