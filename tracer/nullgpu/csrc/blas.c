/* libcublas and libcublasLt: handles and modes exist, mathematics does nothing. Both libraries are built from this file;
 * the version script of each exports its own names. */
#include "nullgpu.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <stdlib.h>
#include <string.h>

#define DOES(call, action) NG_DOES(cublasStatus_t, CUBLAS_STATUS_SUCCESS, call, action)

struct cublasContext {
    cudaStream_t stream;
    cublasPointerMode_t pointer_mode;
    cublasMath_t math_mode;
};

EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    NG_HIT(NG_NOOP, "cublasCreate_v2", 0); /* the process has loaded cuBLAS, which enlarges its context */
    *handle = calloc(1, sizeof **handle);
    return CUBLAS_STATUS_SUCCESS;
}

DOES(cublasDestroy_v2(cublasHandle_t handle), free(handle))
DOES(cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream), handle->stream = stream)
DOES(cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream), *stream = handle->stream)
DOES(cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode), handle->pointer_mode = mode)
DOES(cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t *mode), *mode = handle->pointer_mode)
DOES(cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode), handle->math_mode = mode)
DOES(cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode), *mode = handle->math_mode)
DOES(cublasGetVersion_v2(cublasHandle_t handle, int *version), *version = CUBLAS_VERSION)

EXPORT const char *cublasGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_NOT_SUPPORTED";
}

DOES(cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size_bytes), ng_workspace(size_bytes))

EXPORT size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

DOES(cublasLtCreate(cublasLtHandle_t *handle), *handle = ng_new_handle())

/* PyTorch allocates its own cuBLASLt workspace before this call, whatever the algorithm needs: zero is enough. */
EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t results[], int *found) {
    memset(results, 0, (size_t)wanted * sizeof *results);
    *found = wanted > 0;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void *alpha,
                                     const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                                     cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                                     cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                                     const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                                     cudaStream_t stream) {
    ng_workspace_at(workspace);
    ng_device_changed();
    return CUBLAS_STATUS_SUCCESS;
}

/* The batched decompositions report to the host whether their arguments were well formed (0: yes); their outcome lies on the
 * device. */
DOES(cublasSgetrsBatched(cublasHandle_t h, cublasOperation_t op, int n, int columns, const float *const a[], int lda,
                         const int *pivots, float *const b[], int ldb, int *info, int batch), *info = 0)
DOES(cublasSgeqrfBatched(cublasHandle_t h, int m, int n, float *const a[], int lda, float *const tau[], int *info, int batch),
     *info = 0)
DOES(cublasSgelsBatched(cublasHandle_t h, cublasOperation_t op, int m, int n, int columns, float *const a[], int lda,
                        float *const c[], int ldc, int *info, int *device_info, int batch), *info = 0)
