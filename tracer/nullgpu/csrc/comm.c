/* libnccl: communicators know their size and rank; collectives do nothing. Several ranks never really exist. */
#include "nullgpu.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>

struct ncclComm {
    int size, rank;
};

static ncclResult_t new_communicator(ncclComm_t *out, int size, int rank) {
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c) return ncclSystemError;
    c->size = size;
    c->rank = rank;
    *out = c;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    memset(id, 0, sizeof *id);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank) {
    (void)id;
    NG_HIT(NG_ASSUMED, "NCCL buffers (outside the caching allocator): 0", 0);
    return new_communicator(out, size, rank);
}

EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    (void)config;
    return ncclCommInitRank(out, size, id, rank);
}

EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *out, int n_devices, const int *devices) {
    (void)devices;
    for (int i = 0; i < n_devices; i++)
        if (new_communicator(&out[i], n_devices, i)) return ncclSystemError;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    (void)color, (void)key, (void)config;
    return new_communicator(out, parent->size, parent->rank);
}

EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *device) {
    (void)c;
    *device = 0;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommDestroy(ncclComm_t c) {
    free(c);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommAbort(ncclComm_t c) { return ncclCommDestroy(c); }

EXPORT ncclResult_t ncclCommCount(const ncclComm_t c, int *count) {
    *count = c->size;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank) {
    *rank = c->rank;
    return ncclSuccess;
}

#if NCCL_VERSION_CODE >= 22300
EXPORT ncclResult_t ncclCommInitRankScalable(
    ncclComm_t *out, int size, int rank, int n_ids, ncclUniqueId *ids, ncclConfig_t *config) {
    (void)n_ids, (void)ids, (void)config;
    NG_HIT(NG_ASSUMED, "NCCL buffers (outside the caching allocator): 0", 0);
    return new_communicator(out, size, rank);
}
#endif

#if NCCL_VERSION_CODE >= 22700
EXPORT ncclResult_t ncclCommShrink(
    ncclComm_t parent, int *exclude, int n_excluded, ncclComm_t *out, ncclConfig_t *config, int flags) {
    (void)exclude, (void)config, (void)flags;
    return new_communicator(out, parent->size - n_excluded, parent->rank);
}
#endif

EXPORT ncclResult_t ncclMemAlloc(void **out, size_t size_bytes) {
    uint64_t address;
    if (ng_malloc(&address, size_bytes, __builtin_return_address(0))) return ncclUnhandledCudaError;
    *out = (void *)(uintptr_t)address;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclMemFree(void *p) { return ng_free((uint64_t)(uintptr_t)p) ? ncclInvalidArgument : ncclSuccess; }

EXPORT ncclResult_t ncclCommRegister(const ncclComm_t c, void *buffer, size_t size_bytes, void **handle) {
    (void)c, (void)buffer, (void)size_bytes;
    *handle = ng_new_handle();
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupStart(void) {
    ng_group(1);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclGroupEnd(void) {
    ng_group(0);
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error) {
    (void)c;
    *error = ncclSuccess;
    return ncclSuccess;
}

EXPORT const char *ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "no error" : "NCCL error"; }

EXPORT const char *ncclGetLastError(ncclComm_t c) {
    (void)c;
    return "";
}
