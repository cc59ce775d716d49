/* libcusparse: matrix descriptors are opaque handles, products do nothing. The buffer size of a product is not published: zero
 * is an assumption, and is recorded as one. Products with results of a data-dependent size (sparse times sparse) stay refused.
 */
#include "nullgpu.h"

#include <cusparse.h>

static cusparseStatus_t no_buffer(size_t *size_bytes) {
    NG_HIT(NG_ASSUMED, "cuSPARSE buffer: 0", 0);
    *size_bytes = 0;
    return CUSPARSE_STATUS_SUCCESS;
}

EXPORT const char *cusparseGetErrorString(cusparseStatus_t status) {
    return status == CUSPARSE_STATUS_SUCCESS         ? "no error"
           : status == CUSPARSE_STATUS_NOT_SUPPORTED ? "CUSPARSE_STATUS_NOT_SUPPORTED"
                                                     : "cuSPARSE error";
}

#define NO_BUFFER(operation, ...) \
    EXPORT cusparseStatus_t cusparse##operation##_bufferSize(__VA_ARGS__) { return no_buffer(size_bytes); }

NO_BUFFER(SpMM, cusparseHandle_t h, cusparseOperation_t op_a, cusparseOperation_t op_b, const void *alpha,
          cusparseConstSpMatDescr_t a, cusparseConstDnMatDescr_t b, const void *beta, cusparseDnMatDescr_t c, cudaDataType type,
          cusparseSpMMAlg_t algorithm, size_t *size_bytes)
NO_BUFFER(SpMV, cusparseHandle_t h, cusparseOperation_t op, const void *alpha, cusparseConstSpMatDescr_t a,
          cusparseConstDnVecDescr_t x, const void *beta, cusparseDnVecDescr_t y, cudaDataType type,
          cusparseSpMVAlg_t algorithm, size_t *size_bytes)
NO_BUFFER(SDDMM, cusparseHandle_t h, cusparseOperation_t op_a, cusparseOperation_t op_b, const void *alpha,
          cusparseConstDnMatDescr_t a, cusparseConstDnMatDescr_t b, const void *beta, cusparseSpMatDescr_t c,
          cudaDataType type, cusparseSDDMMAlg_t algorithm, size_t *size_bytes)
NO_BUFFER(SpSV, cusparseHandle_t h, cusparseOperation_t op, const void *alpha, cusparseConstSpMatDescr_t a,
          cusparseConstDnVecDescr_t x, cusparseDnVecDescr_t y, cudaDataType type, cusparseSpSVAlg_t algorithm,
          cusparseSpSVDescr_t descriptor, size_t *size_bytes)
NO_BUFFER(SpSM, cusparseHandle_t h, cusparseOperation_t op_a, cusparseOperation_t op_b, const void *alpha,
          cusparseConstSpMatDescr_t a, cusparseConstDnMatDescr_t b, cusparseDnMatDescr_t c, cudaDataType type,
          cusparseSpSMAlg_t algorithm, cusparseSpSMDescr_t descriptor, size_t *size_bytes)
