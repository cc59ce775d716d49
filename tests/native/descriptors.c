/* Exercises cuBLAS handles and cuDNN descriptors of the null GPU under the sanitizers: created, filled, read, destroyed. */
#include "check.h"

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>

static cudnnBackendDescriptor_t tensor(cudnnHandle_t handle, int64_t id, const int64_t *dims, const int64_t *strides) {
    cudnnBackendDescriptor_t descriptor;
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const int64_t alignment = 16;
    (void)handle;
    CHECK(!cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &descriptor));
    CHECK(!cudnnBackendSetAttribute(descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    CHECK(!cudnnBackendSetAttribute(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims));
    CHECK(!cudnnBackendSetAttribute(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims)); /* replaces the value */
    CHECK(!cudnnBackendSetAttribute(descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides));
    CHECK(!cudnnBackendSetAttribute(descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id));
    CHECK(!cudnnBackendSetAttribute(descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    CHECK(!cudnnBackendFinalize(descriptor));
    return descriptor;
}

int main(void) {
    cublasHandle_t blas;
    int version = 0;
    CHECK(!cublasCreate_v2(&blas) && blas && !cublasGetVersion_v2(blas, &version) && version > 0);
    CHECK(!cublasSetStream_v2(blas, 0) && !cublasDestroy_v2(blas));

    cudnnHandle_t dnn;
    cudnnTensorDescriptor_t old;
    CHECK(cudnnGetVersion() >= 90000);
    CHECK(!cudnnCreate(&dnn) && dnn);
    for (int i = 0; i < 100; i++) {
        CHECK(!cudnnCreateTensorDescriptor(&old) && old);
        CHECK(!cudnnDestroyTensorDescriptor(old));
    }

    const int64_t dims[] = {2, 3, 8, 8}, strides[] = {192, 64, 8, 1};
    for (int i = 0; i < 100; i++) {
        cudnnBackendDescriptor_t descriptor = tensor(dnn, i, dims, strides);
        int64_t count = 0, back[4] = {0};
        CHECK(!cudnnBackendGetAttribute(descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, &count, back));
        CHECK(count == 4 && back[0] == 2 && back[3] == 8);
        CHECK(!cudnnBackendGetAttribute(descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 1, &count, back));
        CHECK(count == 4 && back[0] == 192 && back[1] == 3); /* only one was requested */
        CHECK(cudnnBackendGetAttribute(descriptor, CUDNN_ATTR_TENSOR_VECTOR_COUNT, CUDNN_TYPE_INT64, 1, &count, back)); /* not set */
        CHECK(!cudnnBackendDestroyDescriptor(descriptor));
    }
    CHECK(!cudnnDestroy(dnn));
    puts("all lines hold");
    return 0;
}
