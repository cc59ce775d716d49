/* libcudart.so.12 / .13: the CUDA runtime's documented calls that PyTorch links. */
#define _GNU_SOURCE /* dladdr */
#include "nullgpu.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOES(call, action) NG_DOES(cudaError_t, cudaSuccess, call, action)
/* The same for a counted entry point. */
#define COUNTED(name, action, ...)       \
    EXPORT cudaError_t name(__VA_ARGS__) { \
        NG_HIT(NG_NOOP, #name, 0);       \
        action;                          \
        return cudaSuccess;              \
    }

static __thread int current_device;
static __thread cudaError_t last_error;

static cudaError_t result(int error) {
    if (!error) return cudaSuccess;
    return last_error = error == NG_OUT_OF_MEMORY ? cudaErrorMemoryAllocation : cudaErrorInvalidValue;
}

/* ---------------------------------------------------------------------------------------- device */
DOES(cudaGetDeviceCount(int *count), *count = ng_visible_count())
DOES(cudaGetDevice(int *device), *device = current_device)

EXPORT cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= ng_visible_count()) return last_error = cudaErrorInvalidDevice;
    current_device = device;
    ng_activate_context(device);
    return cudaSuccess;
}

DOES(cudaDriverGetVersion(int *version), *version = CUDART_VERSION)
DOES(cudaRuntimeGetVersion(int *version), *version = CUDART_VERSION)
/* spec: cudaDeviceAttr has the values of CUdevice_attribute */
DOES(cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device), *value = ng_attribute((int)attribute))

/* CUDA 12's headers rename it by a macro to cudaGetDeviceProperties_v2(p, device). */
EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", ng_device()->name);
    memset(&p->uuid, 0x11, sizeof p->uuid); /* arbitrary */
    p->uuid.bytes[15] = (char)device;
    p->totalGlobalMem = ng_device()->total_bytes;
#define ATTRIBUTE(name, value)
#define PROPERTY(name, value, field) p->field = (__typeof__(p->field))ng_attribute(CU_DEVICE_ATTRIBUTE_##name);
#if CUDART_VERSION < 13000
#define OLD_PROPERTY PROPERTY
#else
#define OLD_PROPERTY(name, value, field)
#endif
#include "attributes.txt"
    return cudaSuccess;
}

DOES(cudaDeviceGetPCIBusId(char *id, int length, int device),
     snprintf(id, (size_t)length, "0000:%02X:00.0", 1 + device)) /* arbitrary */

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5; /* spec: CUDA runtime API, six priority levels on current GPUs */
    return cudaSuccess;
}

DOES(cudaDeviceCanAccessPeer(int *can, int device, int peer), *can = 0)

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    static char pools[64];
    *pool = (cudaMemPool_t)&pools[device & 63];
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    NG_HIT(NG_ASSUMED, "cudaMemPoolGetAttribute: 0", 0);
    *(uint64_t *)value = 0;
    return cudaSuccess;
}

/* ---------------------------------------------------------------------------------------- errors */
EXPORT cudaError_t cudaGetLastError(void) {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct error {
    cudaError_t number;
    const char *name, *text;
} errors[] = {
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"}, /* and all numbers not listed below */
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported by the null GPU"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
};

static const struct error *error_of(cudaError_t number) {
    size_t i = sizeof errors / sizeof *errors;
    while (--i && errors[i].number != number) {}
    return &errors[i];
}

EXPORT const char *cudaGetErrorName(cudaError_t error) { return error_of(error)->name; }
EXPORT const char *cudaGetErrorString(cudaError_t error) { return error_of(error)->text; }

/* ---------------------------------------------------------------------------------------- driver entry points */
static cudaError_t entry_point(const char *name, void **function, enum cudaDriverEntryPointQueryResult *status) {
    *function = ng_driver_symbol(name);
    if (status) *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

#if CUDART_VERSION < 13000
EXPORT cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                           enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(name, function, status);
}
#endif
#if CUDART_VERSION >= 12050
EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned int version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *status) {
    return entry_point(name, function, status);
}
#endif

/* ---------------------------------------------------------------------------------------- memory */
static cudaError_t allocate(void **pointer, size_t size, const void *caller) {
    ng_activate_context(current_device);
    return result(ng_malloc((uint64_t *)pointer, size, caller));
}

EXPORT cudaError_t cudaMalloc(void **pointer, size_t size) { return allocate(pointer, size, __builtin_return_address(0)); }

EXPORT cudaError_t cudaFree(void *pointer) {
    if (ng_place_of((uint64_t)pointer) == NG_MANAGED) return result(ng_host_free(pointer));
    return result(ng_free((uint64_t)pointer));
}

/* Managed memory belongs to the host until a card takes its pages, and a full card returns them: it is reported, not charged.
 */
EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned int flags) {
    return result(ng_managed_malloc(pointer, size));
}

DOES(cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes), ng_memory_info(free_bytes, total_bytes))

EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size) { return result(ng_host_malloc(pointer, size)); }
EXPORT cudaError_t cudaFreeHost(void *pointer) { return result(ng_host_free(pointer)); }

DOES(cudaHostRegister(void *pointer, size_t size, unsigned int flags), ng_host_register(pointer, size))
DOES(cudaHostUnregister(void *pointer), ng_host_unregister(pointer))
DOES(cudaHostGetDevicePointer(void **on_device, void *on_host, unsigned int flags), *on_device = on_host)

EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    static const enum cudaMemoryType types[] = {[NG_UNREGISTERED] = cudaMemoryTypeUnregistered, [NG_HOST] = cudaMemoryTypeHost,
                                                [NG_DEVICE] = cudaMemoryTypeDevice, [NG_MANAGED] = cudaMemoryTypeManaged};
    const enum ng_place place = ng_place_of((uint64_t)pointer);
    memset(attributes, 0, sizeof *attributes);
    attributes->type = types[place];
    attributes->device = place == NG_UNREGISTERED ? -1 : current_device; /* a rank has one card, under its own number */
    if (place != NG_UNREGISTERED) attributes->devicePointer = (void *)pointer;
    if (place == NG_HOST || place == NG_MANAGED) attributes->hostPointer = (void *)pointer;
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpy(void *destination, const void *source, size_t size, enum cudaMemcpyKind kind) {
    ng_host_waits_for_stream(NULL);
    ng_copy((uint64_t)destination, (uint64_t)source, size);
    return cudaSuccess;
}

DOES(cudaMemcpyAsync(void *destination, const void *source, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream),
     ng_copy((uint64_t)destination, (uint64_t)source, size))

EXPORT cudaError_t cudaMemcpy2DAsync(void *destination, size_t destination_pitch, const void *source, size_t source_pitch,
                                     size_t width, size_t height, enum cudaMemcpyKind kind, cudaStream_t stream) {
    for (size_t row = 0; row < height; row++)
        ng_copy((uint64_t)destination + row * destination_pitch, (uint64_t)source + row * source_pitch, width);
    return cudaSuccess;
}

DOES(cudaMemset(void *pointer, int value, size_t size), ng_set((uint64_t)pointer, value, size))
/* A module's global variable lives in the module's image, outside all accounts; its host copy stands for it. */
DOES(cudaGetSymbolAddress(void **pointer, const void *symbol), *pointer = (void *)symbol)

/* ---------------------------------------------------------------------------------------- streams and events
 * The card is infinitely fast: every event has happened, every stream is idle. Or it is infinitely slow (is_slow): only work
 * that the host waited for is done (streams.c). Events of the driver's own calls have always happened. The time between two
 * events is proportional to the kernels launched and library calls made in between, all of equal length: so a benchmark ends
 * soon and chooses the first of several candidates, and repeated runs agree. */
#define KERNEL_MS 0.05f /* arbitrary: real ones take 5 us to 5 ms; with 1 us Triton repeats each of its benchmarks 10^5 times */

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    *stream = ng_new_handle();
    ng_stream_made(*stream, !(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
    cudaStreamCreateWithFlags(stream, flags);
    if (*stream) *(int *)*stream = priority; /* a handle points to our memory; other streams have 0 */
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    const int is_made = stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
    *priority = is_made ? *(const int *)stream : 0;
    return cudaSuccess;
}

DOES(cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status),
     *status = ng_capture_id(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone)

static void capture_info(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                         cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *n_dependencies) {
    const unsigned long long found = ng_capture_id(stream);
    *status = found ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    if (id) *id = found;
    if (graph) *graph = found ? (cudaGraph_t)found : NULL;
    if (dependencies) *dependencies = NULL;
    if (n_dependencies) *n_dependencies = 0;
}

#if CUDART_VERSION < 13000
DOES(cudaStreamGetCaptureInfo_v2(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                 cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *n_dependencies),
     capture_info(stream, status, id, graph, dependencies, n_dependencies))
#else
EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph,
                                            const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                                            size_t *n_dependencies) {
    capture_info(stream, status, id, graph, dependencies, n_dependencies);
    if (edges) *edges = NULL;
    return cudaSuccess;
}
#endif

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    return ng_begin_capture(stream) ? cudaSuccess : (last_error = cudaErrorInvalidValue);
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    const uint64_t nodes = ng_end_capture(stream);
    *graph = ng_new_handle();
    if (*graph) *(uint64_t *)*graph = nodes; /* a handle points to our memory */
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    *executable = ng_new_handle();
    if (*executable) *(uint64_t *)*executable = ng_graph_made(graph ? *(const uint64_t *)graph : 0);
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    if (executable) ng_graph_gone(*(const uint64_t *)executable);
    return cudaSuccess;
}

EXPORT cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    if (nodes && *count) nodes[0] = ng_new_handle();
    *count = 1; /* arbitrary: PyTorch only checks whether the captured graph is empty */
    return cudaSuccess;
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    static __thread enum cudaStreamCaptureMode current = cudaStreamCaptureModeGlobal;
    const enum cudaStreamCaptureMode old = current;
    current = *mode;
    *mode = old;
    return cudaSuccess;
}

/* The memory that an event's handle points to. */
struct event {
    uint64_t at;      /* ng_device_changes at the time of recording */
    struct ng_moment moment;
    int is_work;      /* it marks the end of a collective that was not seen yet */
    struct ng_work work;
    pthread_t thread; /* thread that recorded it */
};

static void seen(struct event *e) {
    if (__atomic_exchange_n(&e->is_work, 0, __ATOMIC_ACQ_REL)) ng_work_seen(&e->work);
}

/* Whether blocks on the card depend on a query: torch's allocator of pinned host memory queries too, from libtorch_cuda. */
static int is_about_blocks(const void *caller) {
    Dl_info info;
    const char *file = dladdr(caller, &info) ? info.dli_fname : NULL;
    const char *slash = file ? strrchr(file, '/') : NULL;
    return !slash || strncmp(slash + 1, "libtorch_cuda", 13) != 0;
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) {
    struct event *e = calloc(1, sizeof *e);
    if (!e) return cudaErrorMemoryAllocation;
    *event = (cudaEvent_t)e;
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    struct event *e = (struct event *)event;
    if (!e) return cudaSuccess;
    seen(e);
    ng_moment_forget(&e->moment);
    free(e);
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    struct event *e = (struct event *)event;
    const int is_work = ng_records_work();
    NG_HIT(NG_NOOP, "cudaEventRecord", 0);
    if (!e) return cudaSuccess;
    e->at = ng_device_changes();
    seen(e);
    ng_moment_record(&e->moment, stream);
    if (is_work) {
        NG_HIT(NG_SPEED, "a collective's tensors", 0);
        e->thread = pthread_self();
        ng_work_begin(&e->work, &e->moment);
        __atomic_store_n(&e->is_work, 1, __ATOMIC_RELEASE);
    }
    return cudaSuccess;
}

#define WAIT_QUERIES 10000 /* arbitrary: more than a watchdog or an allocator asks while the host starts nothing */

/* Whether this thread waits by asking again and again: torch 2.15 ends a process group so. */
static int is_waiting(void) {
    static __thread uint64_t before;
    static __thread int n;
    const uint64_t changes = ng_device_changes();
    n = changes == before ? n + 1 : 0;
    before = changes;
    return n > WAIT_QUERIES;
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    struct event *e = (struct event *)event;
    NG_HIT(NG_NOOP, "cudaEventQuery", 0);
    if (!e) return cudaSuccess;
    const int is_watched = __atomic_load_n(&e->is_work, __ATOMIC_ACQUIRE) && !pthread_equal(e->thread, pthread_self());
    if (is_watched && !ng_work_may_be_seen() && !is_waiting()) return last_error = cudaErrorNotReady;
    if (!ng_moment_is_over(&e->moment)) {
        if (is_about_blocks(__builtin_return_address(0))) NG_HIT(NG_SPEED, "cudaEventQuery", 0);
        if (ng_device()->is_slow && !is_waiting()) return last_error = cudaErrorNotReady;
        if (ng_device()->is_slow) ng_host_waits(&e->moment);
    }
    if (is_watched) seen(e);
    return cudaSuccess;
}

COUNTED(cudaEventSynchronize, if (event) ng_host_waits(&((struct event *)event)->moment), cudaEvent_t event)
COUNTED(cudaStreamWaitEvent, if (event) ng_stream_waits(stream, &((struct event *)event)->moment), cudaStream_t stream,
        cudaEvent_t event, unsigned int flags)
COUNTED(cudaStreamSynchronize, ng_host_waits_for_stream(stream), cudaStream_t stream)
COUNTED(cudaDeviceSynchronize, ng_host_waits_for_all(), void)

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
    NG_HIT(NG_NOOP, "cudaStreamQuery", 0);
    if (ng_stream_is_over(stream)) return cudaSuccess;
    NG_HIT(NG_SPEED, "cudaStreamQuery", 0);
    return ng_device()->is_slow ? (last_error = cudaErrorNotReady) : cudaSuccess;
}

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    const uint64_t from = start ? ((const struct event *)start)->at : 0, to = end ? ((const struct event *)end)->at : 0;
    ng_timed(from, to);
    *milliseconds = to > from ? KERNEL_MS * (float)(to - from) : 0.001f; /* arbitrary: > 0, because callers divide by it */
    return cudaSuccess;
}

DOES(cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned int flags),
     callback(stream, cudaSuccess, data))
DOES(cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data), function(data))

/* Registration calls by the compiler are part of every program with kernels; nothing is kept of them. */
EXPORT void **__cudaRegisterFatBinary(void *image) { return ng_new_handle(); }
EXPORT void __cudaRegisterFatBinaryEnd(void **handle) {}

EXPORT char __cudaInitModule(void **handle) { return 1; }

#define MAX_NESTED_LAUNCHES 8 /* arbitrary: a launch's arguments may contain a launch */
static __thread struct launch {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed[MAX_NESTED_LAUNCHES];
static __thread unsigned n_pushed;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) {
    const unsigned i = n_pushed++ % MAX_NESTED_LAUNCHES;
    pushed[i] = (struct launch){grid, block, shared, stream};
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    const unsigned i = --n_pushed % MAX_NESTED_LAUNCHES;
    *grid = pushed[i].grid;
    *block = pushed[i].block;
    *shared = pushed[i].shared;
    *(void **)stream = pushed[i].stream;
    return cudaSuccess;
}

DOES(cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream),
     ng_count_launch())

#if CUDART_VERSION >= 13000
DOES(__cudaGetKernel(cudaKernel_t *kernel, const void *function), *kernel = (cudaKernel_t)function)
#endif

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
    return cudaLaunchKernel(kernel, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes, config->stream);
}

EXPORT cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = ng_kernel_attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    attributes->numRegs = ng_kernel_attribute(CU_FUNC_ATTRIBUTE_NUM_REGS);
    attributes->ptxVersion = attributes->binaryVersion = ng_kernel_attribute(CU_FUNC_ATTRIBUTE_PTX_VERSION);
    attributes->maxDynamicSharedSizeBytes = ng_kernel_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    return cudaSuccess;
}

DOES(cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *kernel, int threads, size_t shared),
     *blocks = ng_blocks_per_sm(threads, shared))
/* Like the driver's query of the same name: the number of concurrent clusters of a kernel, which affects grids but not memory.
 */
DOES(cudaOccupancyMaxActiveClusters(int *clusters, const void *kernel, const cudaLaunchConfig_t *config),
     *clusters = ng_device()->sm_count / 2) /* arbitrary */
/* spec: CUDA C++ Programming Guide, the portable cluster size */
DOES(cudaOccupancyMaxPotentialClusterSize(int *size, const void *kernel, const cudaLaunchConfig_t *config), *size = 8)

