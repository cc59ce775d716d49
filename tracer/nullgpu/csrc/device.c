/* The device model: what a card answers when it is asked for its properties. See nullgpu.h. */
#include "nullgpu.h"

#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ng_device device;
static pthread_once_t configured = PTHREAD_ONCE_INIT;

static const struct {
    const char *key;
    int *field;
    int attribute; /* -1: none */
} int_fields[] = {
    {"major", &device.major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {"minor", &device.minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {"sm_count", &device.sm_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {"clock_khz", &device.clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE},
    {"memory_clock_khz", &device.memory_clock_khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE},
    {"memory_bus_bits", &device.memory_bus_bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
    {"l2_bytes", &device.l2_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    {"shared_per_sm_bytes", &device.shared_per_sm_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
    {"shared_per_block_optin_bytes", &device.shared_per_block_optin_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    {"threads_per_sm", &device.threads_per_sm, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
    {"blocks_per_sm", &device.blocks_per_sm, CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
    {"device_count", &device.device_count, -1},
    {"kernel_arch", &device.kernel_arch, -1},
};

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
    if (!strcmp(key, "total_bytes")) {
        device.total_bytes = number;
    } else if (!strcmp(key, "capacity_bytes")) {
        device.capacity_bytes = number;
    } else if (!strcmp(key, "context_bytes")) {
        device.context_bytes = number;
    } else if (!strcmp(key, "is_slow")) {
        device.is_slow = (int)number;
    } else {
        for (size_t i = 0; i < sizeof int_fields / sizeof *int_fields; i++)
            if (!strcmp(key, int_fields[i].key)) {
                *int_fields[i].field = (int)number;
                return;
            }
        fatal("unknown key", key);
    }
}

/* Reads "key=value;key=value"; every integer field must come. */
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
    if (!device.capacity_bytes) device.capacity_bytes = device.total_bytes;
    if (!device.kernel_arch) device.kernel_arch = device.major * 10 + device.minor;
    for (size_t i = 0; i < sizeof int_fields / sizeof *int_fields; i++)
        if (!*int_fields[i].field && strcmp(int_fields[i].key, "minor")) fatal("missing", int_fields[i].key);
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

int ng_attribute(int attribute) {
    const struct ng_device *d = ng_device();
    const int hopper = d->major >= 9;
    for (size_t i = 0; i < sizeof int_fields / sizeof *int_fields; i++)
        if (int_fields[i].attribute == attribute) return *int_fields[i].field;
    switch (attribute) {
    /* spec: CUDA C Programming Guide, "Technical Specifications per Compute Capability" */
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return d->major >= 8 ? 1024 : 0;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return 65536;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return hopper;
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: return hopper;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: return 32;
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT: return 512;
    /* features which all supported devices have */
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS: return 1;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;                         /* arbitrary */
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return 1;                                 /* arbitrary */
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: return d->l2_bytes / 2; /* arbitrary */
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE: return 134217728;      /* arbitrary */
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: return 1;                                /* arbitrary */
    /* features which are off, because the null GPU does not model them */
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_INTEGRATED:
    case CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD:
    case CU_DEVICE_ATTRIBUTE_TCC_DRIVER: return 0;
    default: NG_HIT(NG_ASSUMED, "device attribute not modelled: 0", 0); return 0;
    }
}

#define REGISTERS_PER_THREAD 32 /* arbitrary: the kernel images are never read */

int ng_kernel_attribute(int attribute) {
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: return REGISTERS_PER_THREAD;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    /* What the kernel was compiled to, not the card's own: CUB looks it up among the versions it was compiled for. */
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
