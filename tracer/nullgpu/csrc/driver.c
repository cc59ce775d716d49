/* libcuda.so.1: the driver's documented calls that users of PyTorch, Triton and NVRTC reach directly. The state of the
 * null GPU (ledger.c, device.c, memory.c) is linked into this library. */
#include "nullgpu.h"

#define __CUDA_API_VERSION_INTERNAL /* the header then declares every name without its version suffix macro */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOES(call, action) NG_DOES(CUresult, CUDA_SUCCESS, call, action)

/* ---------------------------------------------------------------------------------------- devices and contexts */
#define MAX_DEVICES 64 /* arbitrary */
struct CUctx_st {
    int device;
};
static struct CUctx_st primary[MAX_DEVICES];
static int primary_active[MAX_DEVICES];
static __thread CUcontext current;

static CUcontext context(void) { return current ? current : primary_active[0] ? &primary[0] : NULL; }

void ng_activate_context(int device) {
    static struct ng_counter counters[MAX_DEVICES];
    static char names[MAX_DEVICES][4];
    if (!__atomic_exchange_n(&primary_active[device], 1, __ATOMIC_ACQ_REL)) {
        snprintf(names[device], sizeof names[device], "%d", device);
        counters[device].kind = NG_CONTEXT;
        counters[device].name = names[device];
        ng_hit(&counters[device], 0);
    }
    ng_use_context();
}

DOES(cuInit(unsigned int flags), ng_device())
DOES(cuDriverGetVersion(int *version), *version = CUDA_VERSION)
DOES(cuDeviceGetCount(int *count), *count = ng_visible_count())

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    if (ordinal < 0 || ordinal >= ng_visible_count() || ordinal >= MAX_DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

DOES(cuDeviceGetName(char *name, int length, CUdevice device), snprintf(name, (size_t)length, "%s", ng_device()->name))
DOES(cuDeviceTotalMem_v2(size_t *bytes, CUdevice device), *bytes = ng_device()->total_bytes)
DOES(cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device), *value = ng_attribute((int)attribute))

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    primary[device].device = device;
    ng_activate_context(device);
    *out = &primary[device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    if (flags) *flags = 0;
    if (active) *active = primary_active[device];
    return CUDA_SUCCESS;
}

DOES(cuCtxGetCurrent(CUcontext *out), *out = context())
DOES(cuCtxSetCurrent(CUcontext wanted), current = wanted)
DOES(cuCtxGetDevice(CUdevice *device), *device = context() ? context()->device : 0)

/* ---------------------------------------------------------------------------------------- memory */
DOES(cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes), ng_memory_info(free_bytes, total_bytes))
/* spec: CUDA driver API, virtual memory management: 2 MiB on current GPUs */
DOES(cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                   CUmemAllocationGranularity_flags option), *granularity = 2 << 20)

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) {
    return (CUresult)ng_malloc((uint64_t *)pointer, size, __builtin_return_address(0));
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr pointer) { return (CUresult)ng_free(pointer); }

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags) {
    return (CUresult)ng_reserve_range((uint64_t *)pointer, size);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) { return (CUresult)ng_release_range(pointer); }

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                            unsigned long long flags) {
    return (CUresult)ng_create_physical((uint64_t *)handle, size, __builtin_return_address(0));
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return (CUresult)ng_release_physical(handle); }

EXPORT CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
    return (CUresult)ng_map(pointer, handle);
}

EXPORT CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) { return (CUresult)ng_unmap(pointer, size); }

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    const enum ng_place place = ng_place_of(pointer);
    uint64_t start = 0, size = 0;
    if (place == NG_UNREGISTERED) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)value = context(); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = place == NG_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)value = pointer; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)value = place == NG_MANAGED; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return (CUresult)ng_range_of(pointer, value, &size);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return (CUresult)ng_range_of(pointer, &start, value);
    default: NG_HIT(NG_REFUSED, "cuPointerGetAttribute (another attribute)", 0); return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* triton's launchers ask it since 3.9. */
DOES(cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status),
     *status = ng_capture_id(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE)

/* ---------------------------------------------------------------------------------------- modules and kernels */
DOES(cuModuleLoadData(CUmodule *module, const void *image), *module = ng_new_handle())
DOES(cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name), *function = ng_new_handle())
DOES(cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function),
     *value = ng_kernel_attribute((int)attribute))
DOES(cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared),
     *blocks = ng_blocks_per_sm(threads, shared))
DOES(cuOccupancyMaxActiveClusters(int *clusters, CUfunction function, const CUlaunchConfig *config),
     *clusters = ng_device()->sm_count / 2) /* arbitrary */
DOES(cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                    unsigned int block_y, unsigned int block_z, unsigned int shared, CUstream stream, void **arguments,
                    void **extra), ng_count_launch())
DOES(cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra), ng_count_launch())
/* The map is opaque; only kernels read it. */
DOES(cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
                            const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *element_strides,
                            CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                            CUtensorMapFloatOOBfill fill), memset(map, 0, sizeof *map))
DOES(cuGetErrorString(CUresult error, const char **text),
     *text = error == CUDA_SUCCESS ? "no error" : error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "null GPU driver error")
DOES(cuGetErrorName(CUresult error, const char **text),
     *text = error == CUDA_SUCCESS               ? "CUDA_SUCCESS"
             : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                                 : "CUDA_ERROR_UNKNOWN")

/* ---------------------------------------------------------------------------------------- symbol lookup
 * The generated table maps documented base names ("cuMemCreate") to the functions of this library. */
struct ng_symbol {
    const char *name;
    void *function;
};
extern const struct ng_symbol ng_driver_symbols[];
extern const size_t ng_n_driver_symbols;

void *ng_driver_symbol(const char *name) {
    for (size_t i = 0; i < ng_n_driver_symbols; i++)
        if (!strcmp(ng_driver_symbols[i].name, name)) return ng_driver_symbols[i].function;
    return NULL;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status) {
    *function = ng_driver_symbol(name);
    if (status) *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* NVIDIA's own runtime requests undocumented tables here, and then checks whether the driver is genuine. It gets no answer, so
 * it never runs on this driver: see docs/null-gpu.md, "Licence boundary". */
EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    NG_HIT(NG_REFUSED, "cuGetExportTable", 0);
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}
