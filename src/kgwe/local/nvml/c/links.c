/* NVLinks. */
#include "state.h"

#include <stdio.h>
#include <string.h>

enum {
    FIELD_MEMORY_TEMP = 82,
    FIELD_LINK_SPEED_COMMON = 90,
    FIELD_LINK_COUNT = 91,
    FIELD_DATA_TX = 138,
    FIELD_DATA_RX = 139,
    FIELD_RAW_TX = 140,
    FIELD_RAW_RX = 141,
    FIELD_LINK_SPEED = 164,
    VALUE_UNSIGNED = 1,
    VALUE_UNSIGNED_LONG_LONG = 3,
    LINK_TYPE_SWITCH = 2,
};

static unsigned link_count(const struct gpu *gpu) {
    unsigned count = 0;
    for (unsigned i = 0; i < MAX_LINKS; i++)
        if (gpu->links[i].present) count = i + 1;
    return count;
}

static nvmlReturn_t find_link(const struct call *call, unsigned number, struct link **link) {
    unsigned count = link_count(call->gpu);
    if (!count) return NVML_ERROR_NOT_SUPPORTED;
    if (number >= count) return NVML_ERROR_INVALID_ARGUMENT;
    *link = &call->gpu->links[number];
    return (*link)->present ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

#define LINK_CALL(device, number)                                \
    struct link *link = NULL;                                    \
    CARD_CALL(device)                                            \
    {                                                            \
        nvmlReturn_t refused = find_link(&call, (number), &link); \
        if (refused) return refused;                             \
    }

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned number, unsigned *active) {
    NEED(active)
    LINK_CALL(device, number)
    *active = link->up;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned number, unsigned *version) {
    NEED(version)
    LINK_CALL(device, number)
    *version = link->version;
    return NVML_SUCCESS;
}

/* A link that is down does not know what is at its other end. */
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned number, nvmlPciInfo_t *pci) {
    NEED(pci)
    LINK_CALL(device, number)
    if (!link->up || !link->remote_bus[0]) return NVML_ERROR_NOT_SUPPORTED;
    memset(pci, 0, sizeof *pci);
    if (sscanf(link->remote_bus, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device) != 3) return NVML_ERROR_UNKNOWN;
    snprintf(pci->busId, sizeof pci->busId, "%s", link->remote_bus);
    return NVML_SUCCESS;
}

#ifndef KGWE_OLD_DRIVER
EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned number, unsigned *type) {
    NEED(type)
    LINK_CALL(device, number)
    if (!link->up) return NVML_ERROR_NOT_SUPPORTED;
    *type = link->remote_type;
    return NVML_SUCCESS;
}
#endif

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned number, unsigned counter,
                                                    unsigned long long *value) {
    NEED(value && counter < LINK_ERRORS)
    LINK_CALL(device, number)
    *value = link->errors[counter];
    return NVML_SUCCESS;
}

/* --- fields ----------------------------------------------------------------------------------------------------------- */

static nvmlReturn_t link_field(const struct call *call, const nvmlFieldValue_t *field, unsigned long long *value) {
    struct link *link;
    nvmlReturn_t refused = find_link(call, field->fieldId == FIELD_LINK_SPEED_COMMON ? 0 : field->scopeId, &link);
    if (refused) return refused;
    switch (field->fieldId) {
        case FIELD_DATA_TX:
        case FIELD_RAW_TX: *value = link->tx_kib; return NVML_SUCCESS;
        case FIELD_DATA_RX:
        case FIELD_RAW_RX: *value = link->rx_kib; return NVML_SUCCESS;
        default: *value = link->speed_mbps; return NVML_SUCCESS;
    }
}

static nvmlReturn_t field_value(const struct call *call, const nvmlFieldValue_t *field, unsigned long long *value) {
    switch (field->fieldId) {
        case FIELD_MEMORY_TEMP:
            *value = (unsigned long long)call->gpu->memory_c;
            return call->gpu->memory_c > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        case FIELD_LINK_COUNT: *value = link_count(call->gpu); return NVML_SUCCESS;
        case FIELD_LINK_SPEED:
#ifdef KGWE_OLD_DRIVER
            return NVML_ERROR_INVALID_ARGUMENT;
#endif
        case FIELD_DATA_TX:
        case FIELD_DATA_RX:
        case FIELD_RAW_TX:
        case FIELD_RAW_RX:
        case FIELD_LINK_SPEED_COMMON: return link_field(call, field, value);
        default: return NVML_ERROR_NOT_SUPPORTED;
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    NEED(fields && count > 0)
    CARD_CALL(device)
    for (int i = 0; i < count; i++) {
        unsigned long long value = 0;
        fields[i].nvmlReturn = field_value(&call, &fields[i], &value);
        int is_wide = fields[i].fieldId >= FIELD_DATA_TX && fields[i].fieldId <= FIELD_RAW_RX;
        fields[i].valueType = is_wide ? VALUE_UNSIGNED_LONG_LONG : VALUE_UNSIGNED;
        fields[i].value.ullVal = value; /* little endian: the narrow value is in front */
    }
    return NVML_SUCCESS;
}
