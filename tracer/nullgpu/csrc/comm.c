/* libnccl: communicators know their size and rank; collectives are counted and do nothing. No other ranks ever exist. */
#include "nullgpu.h"

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOES(call, action) NG_DOES(ncclResult_t, ncclSuccess, call, action)

#define UNSPLIT (-1) /* spec: nccl.h, colors are not negative */

enum call { MADE, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SEND, RECEIVE, ALL_TO_ALL, GATHER, SCATTER, N_CALLS };
static const char *const call_names[N_CALLS] = {
    "made", "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send", "recv", "all_to_all", "gather", "scatter",
};

/* A communicator's counters stay in the ledger after its end, so none is ever freed. */
struct ncclComm {
    int size, rank;
    struct ng_counter calls[N_CALLS];
    char names[N_CALLS][64]; /* "NUMBER/RANKS/COLOR/CALL" */
    struct ncclComm *next;
};
static struct ncclComm *communicators;
static int n_communicators;

/* Only the parent's ranks together know which of them join a part. The ledger gives the color, and its reader may know from
 * PyTorch how many ranks have it. */
static ncclResult_t new_communicator(ncclComm_t *out, int size, int rank, int color) {
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c) return ncclSystemError;
    const int number = __atomic_fetch_add(&n_communicators, 1, __ATOMIC_RELAXED);
    c->size = size;
    c->rank = rank;
    for (int i = 0; i < N_CALLS; i++) {
        snprintf(c->names[i], sizeof c->names[i], "%d/%d/%d/%s", number, size, color, call_names[i]);
        c->calls[i].kind = NG_COMMUNICATOR;
        c->calls[i].name = c->names[i];
    }
    c->next = __atomic_load_n(&communicators, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&communicators, &c->next, c, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {}
    ng_hit(&c->calls[MADE], 0);
    *out = c;
    return ncclSuccess;
}

static ncclResult_t collective(ncclComm_t c, enum call call) {
    if (!c) return ncclInvalidArgument;
    ng_hit(&c->calls[call], 0);
    ng_collective();
    return ncclSuccess;
}

DOES(ncclGetVersion(int *version), *version = NCCL_VERSION_CODE)
DOES(ncclGetUniqueId(ncclUniqueId *id), memset(id, 0, sizeof *id))

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *out, int size, ncclUniqueId id, int rank) {
    return new_communicator(out, size, rank, UNSPLIT);
}

EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *out, int n_devices, const int *devices) {
    for (int i = 0; i < n_devices; i++)
        if (new_communicator(&out[i], n_devices, i, UNSPLIT)) return ncclSystemError;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *out, ncclConfig_t *config) {
    if (color < 0) { /* spec: nccl.h, NCCL_SPLIT_NOCOLOR: this rank is in no part */
        *out = NULL;
        return ncclSuccess;
    }
    const int size = ng_next_split();
    return new_communicator(out, size ? size : parent->size, size ? key : parent->rank, color);
}

DOES(ncclCommCuDevice(const ncclComm_t c, int *device), *device = 0)
DOES(ncclCommDestroy(ncclComm_t c), ng_works_end())

EXPORT ncclResult_t ncclCommFinalize(ncclComm_t c) {
    NG_HIT(NG_NOOP, "ncclCommFinalize", 0);
    return ncclCommDestroy(c);
}

DOES(ncclCommCount(const ncclComm_t c, int *count), *count = c->size)
DOES(ncclCommUserRank(const ncclComm_t c, int *rank), *rank = c->rank)

#if NCCL_VERSION_CODE >= 22300
EXPORT ncclResult_t ncclCommInitRankScalable(
    ncclComm_t *out, int size, int rank, int n_ids, ncclUniqueId *ids, ncclConfig_t *config) {
    return new_communicator(out, size, rank, UNSPLIT);
}
#endif

#if NCCL_VERSION_CODE >= 22700
EXPORT ncclResult_t ncclCommShrink(
    ncclComm_t parent, int *exclude, int n_excluded, ncclComm_t *out, ncclConfig_t *config, int flags) {
    return new_communicator(out, parent->size - n_excluded, parent->rank, UNSPLIT);
}
#endif

/* ---------------------------------------------------------------------------------------- collectives */
#define COLLECTIVE(name, call, ...)         \
    EXPORT ncclResult_t name(__VA_ARGS__) { \
        NG_HIT(NG_NOOP, #name, 0);          \
        return collective(comm, call);      \
    }
#define BUFFERS const void *send, void *receive
#define COUNT size_t count, ncclDataType_t type
#define OPERATION ncclRedOp_t operation
#define PEER int peer
#define ON ncclComm_t comm, cudaStream_t stream

COLLECTIVE(ncclAllReduce, ALL_REDUCE, BUFFERS, COUNT, OPERATION, ON)
COLLECTIVE(ncclAllGather, ALL_GATHER, BUFFERS, COUNT, ON)
COLLECTIVE(ncclReduceScatter, REDUCE_SCATTER, BUFFERS, COUNT, OPERATION, ON)
COLLECTIVE(ncclBroadcast, BROADCAST, BUFFERS, COUNT, PEER, ON)
COLLECTIVE(ncclBcast, BROADCAST, void *buffer, COUNT, PEER, ON)
COLLECTIVE(ncclReduce, REDUCE, BUFFERS, COUNT, OPERATION, PEER, ON)
COLLECTIVE(ncclSend, SEND, const void *send, COUNT, PEER, ON)
COLLECTIVE(ncclRecv, RECEIVE, void *receive, COUNT, PEER, ON)
#if NCCL_VERSION_CODE >= 22800
COLLECTIVE(ncclAlltoAll, ALL_TO_ALL, BUFFERS, COUNT, ON)
COLLECTIVE(ncclGather, GATHER, BUFFERS, COUNT, PEER, ON)
COLLECTIVE(ncclScatter, SCATTER, BUFFERS, COUNT, PEER, ON)
#endif

EXPORT ncclResult_t ncclMemAlloc(void **out, size_t size_bytes) {
    uint64_t address;
    if (ng_malloc(&address, size_bytes, __builtin_return_address(0))) return ncclUnhandledCudaError;
    *out = (void *)(uintptr_t)address;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclMemFree(void *p) { return ng_free((uint64_t)(uintptr_t)p) ? ncclInvalidArgument : ncclSuccess; }

DOES(ncclCommRegister(const ncclComm_t c, void *buffer, size_t size_bytes, void **handle), *handle = ng_new_handle())
DOES(ncclGroupStart(void), ng_group(1))
DOES(ncclGroupEnd(void), ng_group(0))
DOES(ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error), *error = ncclSuccess)

EXPORT const char *ncclGetErrorString(ncclResult_t result) { return result == ncclSuccess ? "no error" : "NCCL error"; }
EXPORT const char *ncclGetLastError(ncclComm_t c) { return ""; }
