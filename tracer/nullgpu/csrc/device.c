/* The device model: a card's answers to queries of its properties. See nullgpu.h. */
#include "nullgpu.h"

#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ng_device device;
static pthread_once_t configured = PTHREAD_ONCE_INIT;

#define FIELD(name, is_needed) {#name, &device.name, sizeof device.name == sizeof(uint64_t), is_needed}
static const struct {
    const char *key;
    void *field;
    int is_wide, is_needed;
} fields[] = {
    FIELD(total_bytes, 0),
    FIELD(context_bytes, 0),
    FIELD(capacity_bytes, 0),
    FIELD(major, 1),
    FIELD(minor, 0),
    FIELD(sm_count, 1),
    FIELD(clock_khz, 1),
    FIELD(memory_clock_khz, 1),
    FIELD(memory_bus_bits, 1),
    FIELD(l2_bytes, 1),
    FIELD(shared_per_sm_bytes, 1),
    FIELD(shared_per_block_optin_bytes, 1),
    FIELD(threads_per_sm, 1),
    FIELD(blocks_per_sm, 1),
    FIELD(device_count, 1),
    FIELD(is_slow, 0),
    FIELD(kernel_arch, 0),
};
#define N_FIELDS (sizeof fields / sizeof *fields)

static void fatal(const char *what, const char *value) {
    fprintf(stderr, "vramcast null GPU: bad configuration: %s '%s'\n", what, value);
    abort();
}

static void set_field(const char *key, const char *value) {
    if (!strcmp(key, "name")) {
        snprintf(device.name, sizeof device.name, "%s", value);
        return;
    }
    char *end;
    const unsigned long long number = strtoull(value, &end, 10);
    if (*value == '\0' || *end != '\0') fatal("not a number", value);
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (strcmp(key, fields[i].key)) continue;
        if (fields[i].is_wide) *(uint64_t *)fields[i].field = number;
        else *(int *)fields[i].field = (int)number;
        return;
    }
    fatal("unknown key", key);
}

/* Reads "key=value;key=value"; every integer field is required. */
static void configure(const char *text) {
    char *copy = strdup(text), *state = NULL;
    memset(&device, 0, sizeof device);
    device.device_count = 1;
    for (char *pair = strtok_r(copy, ";", &state); pair; pair = strtok_r(NULL, ";", &state)) {
        char *equals = strchr(pair, '=');
        if (!equals) fatal("no '=' in", pair);
        *equals = '\0';
        set_field(pair, equals + 1);
    }
    free(copy);
    if (!device.total_bytes) fatal("no total_bytes in", text);
    for (size_t i = 0; i < N_FIELDS; i++)
        if (fields[i].is_needed && !*(int *)fields[i].field) fatal("missing", fields[i].key);
    if (!device.capacity_bytes) device.capacity_bytes = device.total_bytes;
    if (!device.kernel_arch) device.kernel_arch = device.major * 10 + device.minor;
}

static void configure_from_environment(void) {
    const char *text = getenv("NULLGPU_DEVICE");
    if (!text) fatal("environment variable is not set:", "NULLGPU_DEVICE");
    configure(text);
}

const struct ng_device *ng_device(void) {
    pthread_once(&configured, configure_from_environment);
    return &device;
}

/* spec: CUDA C++ Programming Guide, "CUDA Environment Variables": only those before the first invalid one are visible. */
int ng_visible_count(void) {
    const int all = ng_device()->device_count;
    const char *selected = getenv("CUDA_VISIBLE_DEVICES");
    if (!selected) return all;
    int count = 0;
    while (count < all && *selected && *selected != '-' && *selected != ',') {
        count++;
        selected += strcspn(selected, ",");
        selected += *selected == ',';
    }
    return count;
}

int ng_attribute(int attribute) {
    const struct ng_device *d = ng_device();
    switch (attribute) {
#define ATTRIBUTE(name, value) case CU_DEVICE_ATTRIBUTE_##name: return value;
#define PROPERTY(name, value, field) ATTRIBUTE(name, value)
#define OLD_PROPERTY PROPERTY
#include "attributes.txt"
    default: NG_HIT(NG_ASSUMED, "device attribute not modelled: 0", 0); return 0;
    }
}

#define REGISTERS_PER_THREAD 32 /* arbitrary: the kernel images are never read */

int ng_kernel_attribute(int attribute) {
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: return REGISTERS_PER_THREAD;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    /* The target of the kernel, not the card's own version: CUB looks it up among the versions that it was compiled for. */
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: return ng_device()->kernel_arch;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return 49152;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return -1;
    default: return 0; /* static shared, constant and local bytes: none */
    }
}

int ng_blocks_per_sm(int threads_per_block, size_t dynamic_shared_bytes) {
    const struct ng_device *d = ng_device();
    const int threads = threads_per_block > 0 ? threads_per_block : 1;
    int blocks = d->blocks_per_sm;
    const int by_threads = d->threads_per_sm / threads;
    const int by_registers = 65536 / (REGISTERS_PER_THREAD * threads);
    const int by_shared = d->shared_per_sm_bytes / (int)(dynamic_shared_bytes + 1024);
    if (by_threads < blocks) blocks = by_threads;
    if (by_registers < blocks) blocks = by_registers;
    if (by_shared < blocks) blocks = by_shared;
    return blocks;
}

void *ng_new_handle(void) { return calloc(1, 64); }
