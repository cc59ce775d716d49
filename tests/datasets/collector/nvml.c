/* A replacement of libnvidia-ml.so.1 for tests: one card, whose use and processes are read from a text file at each call.
 *
 *   $NVML_STATE: used-bytes of the card, then "pid bytes" of each process; absent or empty: every call fails
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;
typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} nvmlProcessInfo_t;

static FILE *state(unsigned long long *used) {
    const char *path = getenv("NVML_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file && fscanf(file, "%llu", used) == 1) {
        return file;
    }
    if (file) {
        fclose(file);
    }
    return NULL;
}

int nvmlInit_v2(void) {
    unsigned long long used;
    FILE *file = state(&used);
    if (!file) {
        return 9; /* NVML_ERROR_DRIVER_NOT_LOADED */
    }
    fclose(file);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)1;
    return index == 0 ? 0 : 2;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    *device = (void *)1;
    return strcmp(uuid, "GPU-unknown") == 0 ? 6 : 0;
}

int nvmlDeviceGetMemoryInfo(void *device, nvmlMemory_t *memory) {
    FILE *file = state(&memory->used);
    if (!device || !file) {
        return 999;
    }
    memory->total = 1ull << 37;
    memory->free = memory->total - memory->used;
    fclose(file);
    return 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, nvmlProcessInfo_t *infos) {
    unsigned long long used, pid, bytes;
    FILE *file = state(&used);
    unsigned found = 0;
    if (!device || !file) {
        return 999;
    }
    while (found < *count && fscanf(file, "%llu %llu", &pid, &bytes) == 2) {
        infos[found++] = (nvmlProcessInfo_t){(unsigned)pid, bytes, 0, 0};
    }
    *count = found;
    fclose(file);
    return 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    snprintf(text, length, "580.0.1");
    return 0;
}
