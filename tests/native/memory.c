/* Exercises the null GPU's accounts through the public CUDA API, under the sanitizers; every line must hold.
 * Linked to the stand-ins; the device is the one that test_native.py sets in NULLGPU_DEVICE: 64 MiB, 8 MiB of them used. */
#include "check.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static size_t free_bytes(void) {
    size_t available, total;
    CHECK(cudaMemGetInfo(&available, &total) == cudaSuccess);
    CHECK(total == 64 * MIB);
    return available;
}

/* Sizes are charged in whole pages of 2 MiB; addresses are aligned to them and reused. */
static void malloc_and_free(void) {
    void *a, *b, *c;
    CHECK(free_bytes() == 56 * MIB);
    CHECK(cudaMalloc(&a, 1) == cudaSuccess && free_bytes() == 54 * MIB);
    CHECK(cudaMalloc(&b, 2 * MIB) == cudaSuccess && free_bytes() == 52 * MIB);
    CHECK(cudaMalloc(&c, 2 * MIB + 1) == cudaSuccess && free_bytes() == 48 * MIB);
    CHECK((size_t)a % (2 * MIB) == 0 && (size_t)b % (2 * MIB) == 0 && (size_t)c % (2 * MIB) == 0);
    CHECK(a != b && b != c);
    CHECK(cudaFree(b) == cudaSuccess && cudaFree(b) == cudaErrorInvalidValue); /* twice */
    CHECK(cudaGetLastError() == cudaErrorInvalidValue && cudaGetLastError() == cudaSuccess);
    void *again;
    CHECK(cudaMalloc(&again, MIB) == cudaSuccess && again == b);
    CHECK(cudaFree(a) == cudaSuccess && cudaFree(again) == cudaSuccess && cudaFree(c) == cudaSuccess);
    CHECK(cudaFree(NULL) == cudaSuccess);
    CHECK(cudaFree((char *)a + 1) == cudaErrorInvalidValue);
    CHECK(cudaMalloc(&a, 0) == cudaSuccess && a == NULL);
    CHECK(free_bytes() == 56 * MIB);
}

static void capacity(void) {
    void *a, *b;
    CHECK(cudaMalloc(&a, 56 * MIB + 1) == cudaErrorMemoryAllocation && free_bytes() == 56 * MIB);
    CHECK(cudaMalloc(&a, 56 * MIB) == cudaSuccess && free_bytes() == 0);
    CHECK(cudaMalloc(&b, 1) == cudaErrorMemoryAllocation);
    CHECK(cudaMalloc(&b, (size_t)1 << 62) == cudaErrorMemoryAllocation);
    CHECK(cudaFree(a) == cudaSuccess && free_bytes() == 56 * MIB);
    cudaGetLastError();
}

/* Reserving addresses is free, physical memory is charged and uncharged. */
static void virtual_memory(void) {
    CUdeviceptr range;
    CUmemGenericAllocationHandle first, second;
    CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t granularity;
    CHECK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
    CHECK(granularity == 2 * MIB);
    CHECK(cuMemAddressReserve(&range, 1024 * MIB, 0, 0, 0) == CUDA_SUCCESS && free_bytes() == 56 * MIB);
    CHECK(cuMemCreate(&first, 20 * MIB, &properties, 0) == CUDA_SUCCESS && free_bytes() == 36 * MIB);
    CHECK(cuMemMap(range, 20 * MIB, 0, first, 0) == CUDA_SUCCESS);
    CHECK(cuMemSetAccess(range, 20 * MIB, &access, 1) == CUDA_SUCCESS);
    CHECK(cuMemCreate(&second, 38 * MIB, &properties, 0) == CUDA_ERROR_OUT_OF_MEMORY && free_bytes() == 36 * MIB);
    CHECK(cuMemUnmap(range, 20 * MIB) == CUDA_SUCCESS && cuMemRelease(first) == CUDA_SUCCESS && free_bytes() == 56 * MIB);
    CHECK(cuMemAddressFree(range, 1024 * MIB) == CUDA_SUCCESS);
    CHECK(cuMemAddressFree(range, 1024 * MIB) == CUDA_ERROR_INVALID_VALUE);
}

static void host_memory(void) {
    char *pinned, *plain = malloc(4096);
    struct cudaPointerAttributes attributes;
    CHECK(cudaHostAlloc((void **)&pinned, 4096, 0) == cudaSuccess);
    memset(pinned, 7, 4096);
    CHECK(cudaPointerGetAttributes(&attributes, pinned + 4095) == cudaSuccess && attributes.type == cudaMemoryTypeHost);
    CHECK(cudaPointerGetAttributes(&attributes, plain) == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered);
    CHECK(cudaHostRegister(plain, 4096, 0) == cudaSuccess);
    CHECK(cudaPointerGetAttributes(&attributes, plain + 1) == cudaSuccess && attributes.type == cudaMemoryTypeHost);
    CHECK(cudaHostUnregister(plain) == cudaSuccess);
    CHECK(cudaPointerGetAttributes(&attributes, plain) == cudaSuccess && attributes.type == cudaMemoryTypeUnregistered);
    CHECK(cudaFreeHost(pinned) == cudaSuccess && cudaFreeHost(pinned) == cudaErrorInvalidValue);
    cudaGetLastError();
    free(plain);
}

/* Host-to-host copies are real; a small upload is readable until the device changes it; all other reads give zero. */
static void copies(void) {
    char source[300], destination[300];
    char *device;
    struct cudaPointerAttributes attributes;
    memset(source, 5, sizeof source);
    memset(destination, 9, sizeof destination);
    CHECK(cudaMalloc((void **)&device, 300) == cudaSuccess);
    CHECK(cudaPointerGetAttributes(&attributes, device + 299) == cudaSuccess && attributes.type == cudaMemoryTypeDevice);
    CHECK(cudaMemcpy(device, source, 300, cudaMemcpyHostToDevice) == cudaSuccess);
    CHECK(cudaMemcpy(destination, device, 300, cudaMemcpyDeviceToHost) == cudaSuccess && destination[0] == 5 && destination[299] == 5);
    CHECK(cudaMemset(device, 1, 300) == cudaSuccess);
    memset(destination, 9, sizeof destination);
    CHECK(cudaMemcpy(destination, source, 100, cudaMemcpyHostToHost) == cudaSuccess && destination[99] == 5 && destination[100] == 9);
    CHECK(cudaMemcpyAsync(destination, device, 50, cudaMemcpyDeviceToHost, 0) == cudaSuccess && destination[49] == 0 && destination[50] == 5);
    CHECK(cudaMemset(device, 1, 300) == cudaSuccess && cudaMemsetAsync(device, 1, 300, 0) == cudaSuccess);
    CHECK(cudaMemcpy(device, device, 300, cudaMemcpyDeviceToDevice) == cudaSuccess);
    CHECK(cudaMemcpy2DAsync(destination, 30, device, 60, 10, 4, cudaMemcpyDeviceToHost, 0) == cudaSuccess);
    CHECK(destination[90] == 0 && destination[99] == 0 && destination[100] == 9 && destination[80] == 5);
    CHECK(cudaFree(device) == cudaSuccess);
}

/* A few hundred blocks, freed in another order, from two threads: the accounts end where they began. */
static void *many_blocks(void *seed) {
    void *blocks[300] = {0};
    unsigned state = (unsigned)(size_t)seed;
    for (int i = 0; i < 30000; i++) {
        state = state * 1664525u + 1013904223u;
        void **block = &blocks[(state >> 8) % 300];
        if (*block) {
            CHECK(cudaFree(*block) == cudaSuccess);
            *block = NULL;
        } else if (cudaMalloc(block, (state >> 16) % (3 * MIB) + 1) != cudaSuccess) {
            *block = NULL;
        }
    }
    for (int i = 0; i < 300; i++)
        if (blocks[i]) CHECK(cudaFree(blocks[i]) == cudaSuccess);
    return NULL;
}

static void streams_and_events(void) {
    cudaStream_t stream;
    cudaEvent_t start, end;
    float milliseconds = -1;
    CHECK(cudaStreamCreate(&stream) == cudaSuccess && cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaEventCreate(&start) == cudaSuccess && cudaEventCreateWithFlags(&end, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventRecord(start, stream) == cudaSuccess && cudaEventQuery(end) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess && milliseconds > 0);
    CHECK(cudaLaunchKernel(NULL, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, stream) == cudaSuccess);
    CHECK(cudaLaunchKernel(NULL, (dim3){1, 1, 1}, (dim3){1, 1, 1}, NULL, 0, stream) == cudaSuccess);
    CHECK(cudaEventRecord(end, stream) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&milliseconds, start, end) == cudaSuccess && milliseconds == 2 * 0.05f); /* 50 us each */
    CHECK(cudaEventDestroy(start) == cudaSuccess && cudaEventDestroy(end) == cudaSuccess && cudaStreamDestroy(stream) == cudaSuccess);
}

int main(void) {
    pthread_t threads[2];
    malloc_and_free();
    capacity();
    virtual_memory();
    host_memory();
    copies();
    streams_and_events();
    for (size_t i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, many_blocks, (void *)(i + 1)));
    for (size_t i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], NULL));
    CHECK(free_bytes() == 56 * MIB);
    puts("all lines hold");
    return 0;
}
