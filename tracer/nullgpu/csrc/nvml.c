/* libnvidia-ml.so.1: queries of monitoring tools. Names and memory are those of the null GPU; load, temperature and power are
 * arbitrary. The declarations come from NVIDIA's public NVML API reference, because none of torch's wheels has NVML's header.
 * Calls missing here answer "not supported", as cards do that lack a feature. */
#include "nullgpu.h"

#include <cuda.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DOES(call, action) NG_DOES(nvmlReturn_t, SUCCESS, call, action)

typedef int nvmlReturn_t;
typedef struct card *nvmlDevice_t;
enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 }; /* spec: nvmlReturn_t */

#define MAX_CARDS 64 /* = MAX_DEVICES of driver.c */
static struct card {
    unsigned index;
} cards[MAX_CARDS];

static nvmlReturn_t text(char *out, unsigned size, const char *what) {
    if (!out || strlen(what) >= size) return INSUFFICIENT_SIZE;
    strcpy(out, what);
    return SUCCESS;
}

/* ---------------------------------------------------------------------------------------- the system */
EXPORT nvmlReturn_t nvmlInit(void) { return SUCCESS; }

EXPORT const char *nvmlErrorString(nvmlReturn_t status) {
    switch (status) {
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    default: return "Not Supported";
    }
}

/* spec: CUDA's release notes, the oldest driver of the release */
#define DRIVER_VERSION (CUDA_VERSION >= 13000 ? "580.65.06" : "550.54.14")
EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) { return text(out, size, DRIVER_VERSION); }

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    return text(out, size, CUDA_VERSION >= 13000 ? "13.580.65.06" : "12.550.54.14");
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) { return text(name, size, "python"); }
DOES(nvmlSystemGetCudaDriverVersion_v2(int *version), *version = CUDA_VERSION)

/* ---------------------------------------------------------------------------------------- which card */
DOES(nvmlDeviceGetCount_v2(unsigned *count), *count = (unsigned)ng_device()->device_count)

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    if (index >= (unsigned)ng_device()->device_count || index >= MAX_CARDS) return INVALID_ARGUMENT;
    cards[index].index = index;
    *device = &cards[index];
    return SUCCESS;
}

static void uuid_of(unsigned index, char out[64]) { /* as in cudaGetDeviceProperties */
    snprintf(out, 64, "GPU-11111111-1111-1111-1111-1111111111%02x", index);
}

static void bus_id_of(unsigned index, char out[32]) { snprintf(out, 32, "00000000:%02X:00.0", 1 + index); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char own[64];
    for (unsigned i = 0; i < (unsigned)ng_device()->device_count; i++) {
        uuid_of(i, own);
        if (!strncmp(own, uuid, strlen(uuid))) return nvmlDeviceGetHandleByIndex_v2(i, device);
    }
    return NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    unsigned domain, bus;
    if (sscanf(bus_id, "%x:%x:", &domain, &bus) != 2 || !bus) return INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, device) ? NOT_FOUND : SUCCESS;
}

DOES(nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index), *index = device->index)

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned size) {
    return text(name, size, ng_device()->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size) {
    char own[64];
    uuid_of(device->index, own);
    return text(uuid, size, own);
}

struct pci_info {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct pci_info *info) {
    memset(info, 0, sizeof *info);
    info->bus = 1 + device->index;
    bus_id_of(device->index, info->id);
    snprintf(info->legacy_id, sizeof info->legacy_id, "0000:%02X:00.0", 1 + device->index);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    *major = ng_device()->major;
    *minor = ng_device()->minor;
    return SUCCESS;
}

DOES(nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned *bits), *bits = (unsigned)ng_device()->memory_bus_bits)

/* ---------------------------------------------------------------------------------------- memory
 * The total is the runtime's; NVML's own is larger by the firmware's share. Used is the job's current total. */
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *memory) {
    memory->total = ng_device()->total_bytes;
    memory->used = device->index ? 0 : ng_used_on_card();
    memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory) {
    struct memory plain;
    nvmlDeviceGetMemoryInfo(device, &plain);
    *memory = (struct memory_v2){memory->version, plain.total, 0, plain.free, plain.used};
    return SUCCESS;
}

struct process_v1 {
    unsigned pid;
    unsigned long long used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static nvmlReturn_t one_process(nvmlDevice_t device, unsigned *count, void *processes, size_t size) {
    const uint64_t used = device->index ? 0 : ng_used_on_card();
    const unsigned room = *count;
    *count = used > 0;
    if (!used) return SUCCESS;
    if (!room || !processes) return INSUFFICIENT_SIZE;
    struct process it = {(unsigned)getpid(), used, ~0u, ~0u}; /* spec: no multi-instance GPU: all ones */
    memcpy(processes, &it, size);
    return SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, struct process_v1 *processes) {
    return one_process(device, count, processes, sizeof *processes);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, struct process *processes) {
    return one_process(device, count, processes, sizeof *processes);
}

DOES(nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, struct process *processes), *count = 0)

/* ---------------------------------------------------------------------------------------- load */
struct utilization {
    unsigned gpu, memory;
};

DOES(nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct utilization *rates),
     *rates = ((struct utilization){100, 50})) /* arbitrary */
DOES(nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius), *celsius = 50)     /* arbitrary */
DOES(nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts), *milliwatts = 200000)         /* arbitrary */
DOES(nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts), *milliwatts = 400000) /* arbitrary */
/* arbitrary: the null GPU is infinitely fast, so it never uses more */
DOES(nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules), *millijoules = 1000000)
/* spec: nvmlClockType_t, 2 is the memory's */
DOES(nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *mhz),
     *mhz = (unsigned)(type == 2 ? ng_device()->memory_clock_khz : ng_device()->clock_khz) / 1000)
DOES(nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *state), *state = 0) /* spec: P0, the highest */
DOES(nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode), *mode = 1)
DOES(nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode), *mode = 0)
/* spec: nvmlGpuP2PStatus_t, 5 is "not supported", like cudaDeviceCanAccessPeer */
DOES(nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t peer, int capability, unsigned *status), *status = 5)

/* spec: the fields of nvmlGpuFabricInfoV_t common to all its versions; state 0 is "not supported": a card without NVLink
 * switches */
struct fabric {
    unsigned version;
    unsigned char cluster[16];
    nvmlReturn_t status;
    unsigned clique;
    unsigned char state;
};

DOES(nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, struct fabric *info),
     *info = ((struct fabric){.version = info->version, .status = NOT_SUPPORTED}))
