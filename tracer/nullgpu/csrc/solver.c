/* libcusolver: workspace of decompositions. The decompositions themselves do nothing, and their status lies on the device,
 * where it reads as zero: done. NVIDIA does not publish the sizes, so each is an assumption, and is recorded as one: LAPACK's
 * order of magnitude, the matrix once for factorisations and twice for eigenvalues and singular values. */
#include "nullgpu.h"

#include <cusolverDn.h>

static cusolverStatus_t assumed(size_t elements, size_t element_bytes, size_t *out) {
    NG_HIT(NG_ASSUMED, "cuSOLVER workspace", elements * element_bytes);
    ng_workspace(elements * element_bytes);
    *out = elements;
    return CUSOLVER_STATUS_SUCCESS;
}

static cusolverStatus_t elements(long long rows, long long columns, long long batch, size_t element_bytes, int *out) {
    size_t n = 0;
    const cusolverStatus_t status = assumed((size_t)(rows * columns * batch), element_bytes, &n);
    *out = (int)n;
    return status;
}

static size_t bytes_of(cudaDataType type) { return type == CUDA_C_64F ? 16 : type == CUDA_R_32F ? 4 : 8; }

static cusolverStatus_t bytes(int64_t rows, int64_t columns, int64_t batch, cudaDataType type, size_t *on_device, size_t *on_host) {
    *on_host = 0;
    return assumed((size_t)(rows * columns * batch) * bytes_of(type), 1, on_device);
}

/* T is the type's letter; symmetric and orthogonal (real) are called Hermitian and unitary (complex) in the other types. */
#define SIZE(name, rows, columns, batch, element, ...) \
    EXPORT cusolverStatus_t cusolverDn##name##_bufferSize(__VA_ARGS__) {                                                      \
        return elements(rows, columns, batch, sizeof(element), size);                                                         \
    }
#define SOLVER(T, element, real, SYEV, ORG)                                                                                   \
    SIZE(T##getrf, m, n, 1, element, cusolverDnHandle_t h, int m, int n, element *a, int lda, int *size)                      \
    SIZE(T##geqrf, m, n, 1, element, cusolverDnHandle_t h, int m, int n, element *a, int lda, int *size)                      \
    SIZE(T##potrf, n, n, 1, element, cusolverDnHandle_t h, cublasFillMode_t fill, int n, element *a, int lda, int *size)      \
    SIZE(T##sytrf, n, n, 1, element, cusolverDnHandle_t h, int n, element *a, int lda, int *size)                             \
    SIZE(T##ORG##gqr, m, n, 1, element, cusolverDnHandle_t h, int m, int n, int k, const element *a, int lda,                 \
         const element *tau, int *size)                                                                                       \
    SIZE(T##ORG##mqr, m, n, 1, element, cusolverDnHandle_t h, cublasSideMode_t side, cublasOperation_t operation, int m,      \
         int n, int k, const element *a, int lda, const element *tau, const element *c, int ldc, int *size)                   \
    SIZE(T##gesvd, m, n, 2, element, cusolverDnHandle_t h, int m, int n, int *size)                                           \
    SIZE(T##gesvdj, m, n, 2, element, cusolverDnHandle_t h, cusolverEigMode_t job, int economy, int m, int n,                 \
         const element *a, int lda, const real *s, const element *u, int ldu, const element *v, int ldv, int *size,           \
         gesvdjInfo_t parameters)                                                                                             \
    SIZE(T##gesvdjBatched, m, n, 2ll * batch, element, cusolverDnHandle_t h, cusolverEigMode_t job, int m, int n,             \
         const element *a, int lda, const real *s, const element *u, int ldu, const element *v, int ldv, int *size,           \
         gesvdjInfo_t parameters, int batch)                                                                                  \
    SIZE(T##gesvdaStridedBatched, m, n, 2ll * batch, element, cusolverDnHandle_t h, cusolverEigMode_t job, int rank, int m,   \
         int n, const element *a, int lda, long long stride_a, const real *s, long long stride_s, const element *u, int ldu,  \
         long long stride_u, const element *v, int ldv, long long stride_v, int *size, int batch)                             \
    SIZE(T##SYEV##d, n, n, 2, element, cusolverDnHandle_t h, cusolverEigMode_t job, cublasFillMode_t fill, int n,             \
         const element *a, int lda, const real *w, int *size)                                                                 \
    SIZE(T##SYEV##j, n, n, 2, element, cusolverDnHandle_t h, cusolverEigMode_t job, cublasFillMode_t fill, int n,             \
         const element *a, int lda, const real *w, int *size, syevjInfo_t parameters)                                         \
    SIZE(T##SYEV##jBatched, n, n, 2ll * batch, element, cusolverDnHandle_t h, cusolverEigMode_t job, cublasFillMode_t fill,   \
         int n, const element *a, int lda, const real *w, int *size, syevjInfo_t parameters, int batch)

SOLVER(S, float, float, syev, or)
SOLVER(D, double, double, syev, or)
SOLVER(C, cuComplex, float, heev, un)
SOLVER(Z, cuDoubleComplex, double, heev, un)

/* ---------------------------------------------------------------------------------------- the 64-bit calls, for all types */
#define BYTES(name, rows, columns, batch, ...)                            \
    EXPORT cusolverStatus_t cusolverDnX##name##_bufferSize(__VA_ARGS__) {  \
        return bytes(rows, columns, batch, type, on_device, on_host);      \
    }

BYTES(potrf, n, n, 1, cusolverDnHandle_t h, cusolverDnParams_t parameters, cublasFillMode_t fill, int64_t n, cudaDataType type,
      const void *a, int64_t lda, cudaDataType compute, size_t *on_device, size_t *on_host)
BYTES(geqrf, m, n, 1, cusolverDnHandle_t h, cusolverDnParams_t parameters, int64_t m, int64_t n, cudaDataType type,
      const void *a, int64_t lda, cudaDataType tau_type, const void *tau, cudaDataType compute, size_t *on_device,
      size_t *on_host)
BYTES(sytrs, n, n, 1, cusolverDnHandle_t h, cublasFillMode_t fill, int64_t n, int64_t columns, cudaDataType type, const void *a,
      int64_t lda, const int64_t *pivots, cudaDataType b_type, void *b, int64_t ldb, size_t *on_device, size_t *on_host)
BYTES(syevd, n, n, 2, cusolverDnHandle_t h, cusolverDnParams_t parameters, cusolverEigMode_t job, cublasFillMode_t fill,
      int64_t n, cudaDataType type, const void *a, int64_t lda, cudaDataType w_type, const void *w, cudaDataType compute,
      size_t *on_device, size_t *on_host)
BYTES(syevBatched, n, n, 2 * batch, cusolverDnHandle_t h, cusolverDnParams_t parameters, cusolverEigMode_t job,
      cublasFillMode_t fill, int64_t n, cudaDataType type, const void *a, int64_t lda, cudaDataType w_type, const void *w,
      cudaDataType compute, size_t *on_device, size_t *on_host, int64_t batch)
BYTES(geev, n, n, 2, cusolverDnHandle_t h, cusolverDnParams_t parameters, cusolverEigMode_t left, cusolverEigMode_t right,
      int64_t n, cudaDataType type, const void *a, int64_t lda, cudaDataType w_type, const void *w, cudaDataType left_type,
      const void *vl, int64_t ldvl, cudaDataType right_type, const void *vr, int64_t ldvr, cudaDataType compute,
      size_t *on_device, size_t *on_host)
