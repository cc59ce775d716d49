/* libcufft: plans exist, transforms do nothing. */
#include "nullgpu.h"

#include <cufft.h>
#include <cufftXt.h>

EXPORT cufftResult cufftCreate(cufftHandle *plan) {
    static int last;
    *plan = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
    return CUFFT_SUCCESS;
}

/* cuFFT's manual: sizes that factor into small primes need about as much room as the data, others up to eight times as
 * much. The answer is the size of the data, in the transform's complex type, recorded as an assumption. */
EXPORT cufftResult cufftXtMakePlanMany(cufftHandle plan, int rank, long long int *n, long long int *in_embed,
                                       long long int in_stride, long long int in_distance, cudaDataType in_type,
                                       long long int *out_embed, long long int out_stride, long long int out_distance,
                                       cudaDataType out_type, long long int batch, size_t *work_bytes,
                                       cudaDataType execution_type) {
    size_t elements = (size_t)batch;
    for (int i = 0; i < rank; i++) elements *= (size_t)n[i];
    const size_t complex_bytes = execution_type == CUDA_C_64F || execution_type == CUDA_R_64F   ? 16
                                 : execution_type == CUDA_C_16F || execution_type == CUDA_R_16F ? 4
                                                                                                : 8;
    NG_HIT(NG_ASSUMED, "cuFFT work area", elements * complex_bytes);
    *work_bytes = elements * complex_bytes;
    ng_workspace(*work_bytes);
    return CUFFT_SUCCESS;
}
