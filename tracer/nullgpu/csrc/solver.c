/* libcusolver: how much room a decomposition wants. The decompositions themselves do nothing, and their status lies on the
 * device, where it reads as zero: done. NVIDIA does not publish the sizes, so each is an assumption and says so: LAPACK's
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

/* ---------------------------------------------------------------------------------------- one name a type
 * T is the type's letter; symmetric and orthogonal (real) are called Hermitian and unitary (complex) in the others. */
#define SOLVER(T, element, real, SYEV, ORG)                                                                                   \
    EXPORT cusolverStatus_t cusolverDn##T##getrf_bufferSize(cusolverDnHandle_t h, int m, int n, element *a, int lda,          \
                                                            int *size) {                                                      \
        (void)h, (void)a, (void)lda;                                                                                          \
        return elements(m, n, 1, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##geqrf_bufferSize(cusolverDnHandle_t h, int m, int n, element *a, int lda,          \
                                                            int *size) {                                                      \
        (void)h, (void)a, (void)lda;                                                                                          \
        return elements(m, n, 1, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##potrf_bufferSize(cusolverDnHandle_t h, cublasFillMode_t fill, int n, element *a,   \
                                                            int lda, int *size) {                                             \
        (void)h, (void)fill, (void)a, (void)lda;                                                                              \
        return elements(n, n, 1, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##sytrf_bufferSize(cusolverDnHandle_t h, int n, element *a, int lda, int *size) {    \
        (void)h, (void)a, (void)lda;                                                                                          \
        return elements(n, n, 1, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##ORG##gqr_bufferSize(cusolverDnHandle_t h, int m, int n, int k, const element *a,   \
                                                               int lda, const element *tau, int *size) {                      \
        (void)h, (void)k, (void)a, (void)lda, (void)tau;                                                                      \
        return elements(m, n, 1, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##ORG##mqr_bufferSize(cusolverDnHandle_t h, cublasSideMode_t side,                   \
                                                               cublasOperation_t operation, int m, int n, int k,              \
                                                               const element *a, int lda, const element *tau,                 \
                                                               const element *c, int ldc, int *size) {                        \
        (void)h, (void)side, (void)operation, (void)k, (void)a, (void)lda, (void)tau, (void)c, (void)ldc;                     \
        return elements(m, n, 1, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##gesvd_bufferSize(cusolverDnHandle_t h, int m, int n, int *size) {                  \
        (void)h;                                                                                                              \
        return elements(m, n, 2, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##gesvdj_bufferSize(                                                                 \
        cusolverDnHandle_t h, cusolverEigMode_t job, int economy, int m, int n, const element *a, int lda, const real *s,     \
        const element *u, int ldu, const element *v, int ldv, int *size, gesvdjInfo_t parameters) {                           \
        (void)h, (void)job, (void)economy, (void)a, (void)lda, (void)s, (void)u, (void)ldu, (void)v, (void)ldv;               \
        (void)parameters;                                                                                                     \
        return elements(m, n, 2, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##gesvdjBatched_bufferSize(                                                          \
        cusolverDnHandle_t h, cusolverEigMode_t job, int m, int n, const element *a, int lda, const real *s,                  \
        const element *u, int ldu, const element *v, int ldv, int *size, gesvdjInfo_t parameters, int batch) {                \
        (void)h, (void)job, (void)a, (void)lda, (void)s, (void)u, (void)ldu, (void)v, (void)ldv, (void)parameters;            \
        return elements(m, n, 2ll * batch, sizeof(element), size);                                                            \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##gesvdaStridedBatched_bufferSize(                                                   \
        cusolverDnHandle_t h, cusolverEigMode_t job, int rank, int m, int n, const element *a, int lda, long long stride_a,   \
        const real *s, long long stride_s, const element *u, int ldu, long long stride_u, const element *v, int ldv,          \
        long long stride_v, int *size, int batch) {                                                                           \
        (void)h, (void)job, (void)rank, (void)a, (void)lda, (void)stride_a, (void)s, (void)stride_s, (void)u, (void)ldu;      \
        (void)stride_u, (void)v, (void)ldv, (void)stride_v;                                                                   \
        return elements(m, n, 2ll * batch, sizeof(element), size);                                                            \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##SYEV##d_bufferSize(cusolverDnHandle_t h, cusolverEigMode_t job,                    \
                                                              cublasFillMode_t fill, int n, const element *a, int lda,        \
                                                              const real *w, int *size) {                                     \
        (void)h, (void)job, (void)fill, (void)a, (void)lda, (void)w;                                                          \
        return elements(n, n, 2, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##SYEV##j_bufferSize(cusolverDnHandle_t h, cusolverEigMode_t job,                    \
                                                              cublasFillMode_t fill, int n, const element *a, int lda,        \
                                                              const real *w, int *size, syevjInfo_t parameters) {             \
        (void)h, (void)job, (void)fill, (void)a, (void)lda, (void)w, (void)parameters;                                        \
        return elements(n, n, 2, sizeof(element), size);                                                                      \
    }                                                                                                                         \
    EXPORT cusolverStatus_t cusolverDn##T##SYEV##jBatched_bufferSize(                                                         \
        cusolverDnHandle_t h, cusolverEigMode_t job, cublasFillMode_t fill, int n, const element *a, int lda, const real *w,  \
        int *size, syevjInfo_t parameters, int batch) {                                                                       \
        (void)h, (void)job, (void)fill, (void)a, (void)lda, (void)w, (void)parameters;                                        \
        return elements(n, n, 2ll * batch, sizeof(element), size);                                                            \
    }

SOLVER(S, float, float, syev, or)
SOLVER(D, double, double, syev, or)
SOLVER(C, cuComplex, float, heev, un)
SOLVER(Z, cuDoubleComplex, double, heev, un)

/* ---------------------------------------------------------------------------------------- the 64-bit calls, for all types */
EXPORT cusolverStatus_t cusolverDnXpotrf_bufferSize(cusolverDnHandle_t h, cusolverDnParams_t parameters, cublasFillMode_t fill,
                                                    int64_t n, cudaDataType type, const void *a, int64_t lda,
                                                    cudaDataType compute, size_t *on_device, size_t *on_host) {
    (void)h, (void)parameters, (void)fill, (void)a, (void)lda, (void)compute;
    return bytes(n, n, 1, type, on_device, on_host);
}

EXPORT cusolverStatus_t cusolverDnXgeqrf_bufferSize(cusolverDnHandle_t h, cusolverDnParams_t parameters, int64_t m, int64_t n,
                                                    cudaDataType type, const void *a, int64_t lda, cudaDataType tau_type,
                                                    const void *tau, cudaDataType compute, size_t *on_device,
                                                    size_t *on_host) {
    (void)h, (void)parameters, (void)a, (void)lda, (void)tau_type, (void)tau, (void)compute;
    return bytes(m, n, 1, type, on_device, on_host);
}

EXPORT cusolverStatus_t cusolverDnXsytrs_bufferSize(cusolverDnHandle_t h, cublasFillMode_t fill, int64_t n, int64_t columns,
                                                    cudaDataType type, const void *a, int64_t lda, const int64_t *pivots,
                                                    cudaDataType b_type, void *b, int64_t ldb, size_t *on_device,
                                                    size_t *on_host) {
    (void)h, (void)fill, (void)columns, (void)a, (void)lda, (void)pivots, (void)b_type, (void)b, (void)ldb;
    return bytes(n, n, 1, type, on_device, on_host);
}

EXPORT cusolverStatus_t cusolverDnXsyevd_bufferSize(cusolverDnHandle_t h, cusolverDnParams_t parameters, cusolverEigMode_t job,
                                                    cublasFillMode_t fill, int64_t n, cudaDataType type, const void *a,
                                                    int64_t lda, cudaDataType w_type, const void *w, cudaDataType compute,
                                                    size_t *on_device, size_t *on_host) {
    (void)h, (void)parameters, (void)job, (void)fill, (void)a, (void)lda, (void)w_type, (void)w, (void)compute;
    return bytes(n, n, 2, type, on_device, on_host);
}

EXPORT cusolverStatus_t cusolverDnXsyevBatched_bufferSize(cusolverDnHandle_t h, cusolverDnParams_t parameters,
                                                          cusolverEigMode_t job, cublasFillMode_t fill, int64_t n,
                                                          cudaDataType type, const void *a, int64_t lda, cudaDataType w_type,
                                                          const void *w, cudaDataType compute, size_t *on_device,
                                                          size_t *on_host, int64_t batch) {
    (void)h, (void)parameters, (void)job, (void)fill, (void)a, (void)lda, (void)w_type, (void)w, (void)compute;
    return bytes(n, n, 2 * batch, type, on_device, on_host);
}

EXPORT cusolverStatus_t cusolverDnXgeev_bufferSize(cusolverDnHandle_t h, cusolverDnParams_t parameters, cusolverEigMode_t left,
                                                   cusolverEigMode_t right, int64_t n, cudaDataType type, const void *a,
                                                   int64_t lda, cudaDataType w_type, const void *w, cudaDataType left_type,
                                                   const void *vl, int64_t ldvl, cudaDataType right_type, const void *vr,
                                                   int64_t ldvr, cudaDataType compute, size_t *on_device, size_t *on_host) {
    (void)h, (void)parameters, (void)left, (void)right, (void)a, (void)lda, (void)w_type, (void)w, (void)left_type, (void)vl;
    (void)ldvl, (void)right_type, (void)vr, (void)ldvr, (void)compute;
    return bytes(n, n, 2, type, on_device, on_host);
}
