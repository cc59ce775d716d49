/* libcudnn.so.9, the older calls: descriptors, batch normalisation, dropout and recurrent layers. The graph API, used by
 * convolutions and attention, is in dnn_graph.c. */
#include "nullgpu.h"

#include <cudnn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOES(call, action) NG_DOES(cudnnStatus_t, CUDNN_STATUS_SUCCESS, call, action)

struct cudnnContext {
    cudaStream_t stream;
};

EXPORT size_t cudnnGetVersion(void) { return CUDNN_VERSION; }
EXPORT size_t cudnnGetCudartVersion(void) { return CUDART_VERSION; }

DOES(cudnnGetProperty(libraryPropertyType type, int *value),
     *value = type == MAJOR_VERSION ? CUDNN_MAJOR : type == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL)

EXPORT const char *cudnnGetErrorString(cudnnStatus_t status) {
    return status == CUDNN_STATUS_SUCCESS         ? "CUDNN_STATUS_SUCCESS"
           : status == CUDNN_STATUS_NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED"
                                                  : "CUDNN_STATUS_INTERNAL_ERROR";
}

EXPORT void cudnnGetLastErrorString(char *message, size_t capacity) {
    if (capacity) *message = '\0';
}

EXPORT cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    NG_HIT(NG_NOOP, "cudnnCreate", 0); /* the process has loaded cuDNN, which enlarges its context */
    *handle = calloc(1, sizeof **handle);
    return CUDNN_STATUS_SUCCESS;
}

DOES(cudnnDestroy(cudnnHandle_t handle), free(handle))
DOES(cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream), handle->stream = stream)
DOES(cudnnGetStream(cudnnHandle_t handle, cudaStream_t *stream), *stream = handle->stream)

static size_t bytes_of(cudnnDataType_t type) {
    switch (type) {
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64: return 8;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16: return 2;
    case CUDNN_DATA_INT8:
    case CUDNN_DATA_UINT8: return 1;
    default: return 4;
    }
}

/* ---------------------------------------------------------------------------------------- tensors and filters */
struct cudnnTensorStruct {
    cudnnDataType_t type;
    int n_dims, dims[CUDNN_DIM_MAX], strides[CUDNN_DIM_MAX];
};

DOES(cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *descriptor), *descriptor = calloc(1, sizeof **descriptor))
DOES(cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor), free(descriptor))

EXPORT cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type, int n_dims,
                                                const int dims[], const int strides[]) {
    if (n_dims < 0 || n_dims > CUDNN_DIM_MAX) return CUDNN_STATUS_BAD_PARAM;
    descriptor->type = type;
    descriptor->n_dims = n_dims;
    memcpy(descriptor->dims, dims, (size_t)n_dims * sizeof *dims);
    memcpy(descriptor->strides, strides, (size_t)n_dims * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t descriptor, int wanted, cudnnDataType_t *type,
                                                int *n_dims, int dims[], int strides[]) {
    const size_t n = (size_t)(wanted < descriptor->n_dims ? wanted : descriptor->n_dims);
    *type = descriptor->type;
    *n_dims = descriptor->n_dims;
    memcpy(dims, descriptor->dims, n * sizeof *dims);
    memcpy(strides, descriptor->strides, n * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

/* ---------------------------------------------------------------------------------------- batch normalisation
 * Without a fused activation cuDNN needs no extra space for the plain (NCHW) mode. For the persistent (NHWC) mode it may
 * request some. There is no public way to get the size without a GPU, so zero is an assumption, and is recorded as one. */
static cudnnStatus_t batch_norm_space(cudnnBatchNormMode_t mode, size_t *size_bytes) {
    if (mode == CUDNN_BATCHNORM_SPATIAL_PERSISTENT)
        NG_HIT(NG_ASSUMED, NG_CHANNELS_LAST_NORM, 0);
    *size_bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

#define BATCH_NORM(space, ...) \
    EXPORT cudnnStatus_t cudnnGetBatchNormalization##space##Size(__VA_ARGS__) { return batch_norm_space(mode, size_bytes); }

BATCH_NORM(ForwardTrainingExWorkspace, cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
           const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t z, const cudnnTensorDescriptor_t y,
           const cudnnTensorDescriptor_t scale, const cudnnActivationDescriptor_t activation, size_t *size_bytes)
BATCH_NORM(BackwardExWorkspace, cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
           const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t y, const cudnnTensorDescriptor_t dy,
           const cudnnTensorDescriptor_t dz, const cudnnTensorDescriptor_t dx, const cudnnTensorDescriptor_t scale,
           const cudnnActivationDescriptor_t activation, size_t *size_bytes)
BATCH_NORM(TrainingExReserveSpace, cudnnHandle_t handle, cudnnBatchNormMode_t mode, cudnnBatchNormOps_t ops,
           const cudnnActivationDescriptor_t activation, const cudnnTensorDescriptor_t x, size_t *size_bytes)

/* ---------------------------------------------------------------------------------------- dropout state */
EXPORT cudnnStatus_t cudnnDropoutGetStatesSize(cudnnHandle_t handle, size_t *size_bytes) {
    /* One generator state per resident thread: blocks x threads x 24 B gives 3,244,032 B on an A100 (108 SMs), the number in
     * the prototype. Scaled by the SMs; an assumption until measured. */
    NG_HIT(NG_ASSUMED, "cuDNN dropout state size", 0);
    *size_bytes = (size_t)3244032 / 108 * (size_t)ng_device()->sm_count; /* arbitrary */
    return CUDNN_STATUS_SUCCESS;
}

/* ---------------------------------------------------------------------------------------- recurrent layers
 * Weight layout (PyTorch reads it back piece by piece and only needs it to be contiguous in this order): for each pseudo
 * layer the input matrices of all gates, the recurrent ones, the projection; after all matrices, the biases likewise. */
struct cudnnRNNStruct {
    cudnnRNNMode_t cell;
    cudnnRNNBiasMode_t bias;
    cudnnDirectionMode_t direction;
    cudnnDataType_t type;
    int input, hidden, projection, layers;
};
struct cudnnRNNDataStruct {
    int max_length, batch, vector;
    size_t steps; /* sum of the lengths */
};

DOES(cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t *descriptor), *descriptor = calloc(1, sizeof **descriptor))
DOES(cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t descriptor), free(descriptor))
DOES(cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t *descriptor), *descriptor = calloc(1, sizeof **descriptor))
DOES(cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t descriptor), free(descriptor))

DOES(cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t d, cudnnRNNAlgo_t algorithm, cudnnRNNMode_t cell, cudnnRNNBiasMode_t bias,
                              cudnnDirectionMode_t direction, cudnnRNNInputMode_t input_mode, cudnnDataType_t type,
                              cudnnDataType_t math_precision, cudnnMathType_t math, int32_t input, int32_t hidden,
                              int32_t projection, int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t flags),
     *d = ((struct cudnnRNNStruct){cell, bias, direction, type, input, hidden, projection, layers}))

EXPORT cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t d, cudnnDataType_t type, cudnnRNNDataLayout_t layout,
                                               int max_length, int batch, int vector, const int lengths[],
                                               void *padding_fill) {
    *d = (struct cudnnRNNDataStruct){max_length, batch, vector, 0};
    for (int i = 0; i < batch; i++) d->steps += (size_t)lengths[i];
    return CUDNN_STATUS_SUCCESS;
}

static int gates(const struct cudnnRNNStruct *d) { return d->cell == CUDNN_LSTM ? 4 : d->cell == CUDNN_GRU ? 3 : 1; }
static int directions(const struct cudnnRNNStruct *d) { return d->direction == CUDNN_BIDIRECTIONAL ? 2 : 1; }
static int projected(const struct cudnnRNNStruct *d) { return d->projection > 0 && d->projection != d->hidden; }
static int output_size(const struct cudnnRNNStruct *d) { return projected(d) ? d->projection : d->hidden; }

static int biases_per_gate(const struct cudnnRNNStruct *d) {
    return d->bias == CUDNN_RNN_DOUBLE_BIAS ? 2 : d->bias == CUDNN_RNN_NO_BIAS ? 0 : 1;
}

/* Rows and columns of one matrix; `linear` as in cuDNN: inputs, then recurrent, then (2 x gates) the projection. */
static void matrix_shape(const struct cudnnRNNStruct *d, int pseudo_layer, int linear, size_t *rows, size_t *columns) {
    const int layer = pseudo_layer / directions(d);
    *rows = (size_t)d->hidden;
    if (linear == 2 * gates(d)) {
        *rows = (size_t)d->projection;
        *columns = (size_t)d->hidden;
    } else if (linear >= gates(d)) {
        *columns = (size_t)output_size(d);
    } else {
        *columns = layer == 0 ? (size_t)d->input : (size_t)(output_size(d) * directions(d));
    }
}

/* Elements before matrix `linear` of `pseudo_layer`; for one pseudo layer past the last, all matrices. */
static size_t matrix_offset(const struct cudnnRNNStruct *d, int pseudo_layer, int linear) {
    const int n_linear = 2 * gates(d) + projected(d);
    size_t offset = 0, rows, columns;
    for (int p = 0; p <= pseudo_layer; p++)
        for (int i = 0; i < (p < pseudo_layer ? n_linear : linear); i++) {
            matrix_shape(d, p, i, &rows, &columns);
            offset += rows * columns;
        }
    return offset;
}

static size_t weight_elements(const struct cudnnRNNStruct *d) {
    const int pseudo_layers = d->layers * directions(d);
    return matrix_offset(d, pseudo_layers, 0) +
           (size_t)pseudo_layers * (size_t)(gates(d) * biases_per_gate(d)) * (size_t)d->hidden;
}

DOES(cudnnGetRNNWeightSpaceSize(cudnnHandle_t handle, cudnnRNNDescriptor_t d, size_t *size_bytes),
     *size_bytes = weight_elements(d) * bytes_of(d->type))

/* The caller omits the descriptor (and the address) of anything it does not need. */
static void describe(cudnnTensorDescriptor_t t, cudnnDataType_t type, size_t rows, size_t columns) {
    if (!t) return;
    const int dims[3] = {1, (int)rows, (int)columns};
    const int strides[3] = {(int)(rows * columns), (int)columns, 1};
    cudnnSetTensorNdDescriptor(t, type, 3, dims, strides);
}

EXPORT cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t handle, cudnnRNNDescriptor_t d, int32_t pseudo_layer,
                                             size_t space_bytes, const void *space, int32_t linear,
                                             cudnnTensorDescriptor_t matrix, void **matrix_address,
                                             cudnnTensorDescriptor_t bias, void **bias_address) {
    const size_t element = bytes_of(d->type), hidden = (size_t)d->hidden;
    const int per_layer = gates(d) * biases_per_gate(d);
    const int is_projection = linear == 2 * gates(d);
    size_t rows, columns;
    matrix_shape(d, pseudo_layer, linear, &rows, &columns);
    describe(matrix, d->type, rows, columns);
    if (matrix_address) *matrix_address = (char *)space + matrix_offset(d, pseudo_layer, linear) * element;
    if (!bias_address) return CUDNN_STATUS_SUCCESS;
    *bias_address = NULL;
    if (!is_projection && linear < per_layer) {
        const size_t first = matrix_offset(d, d->layers * directions(d), 0);
        const size_t before = ((size_t)pseudo_layer * (size_t)per_layer + (size_t)linear) * hidden;
        describe(bias, d->type, hidden, 1);
        *bias_address = (char *)space + (first + before) * element;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* cuDNN does not publish the size of its reserve. The backward pass needs at least, per layer, direction and time step, the
 * gates' activations, the cell state and the output; the workspace holds the gates of one layer. An assumption, recorded as
 * one. */
EXPORT cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t handle, cudnnRNNDescriptor_t d, cudnnForwardMode_t mode,
                                               cudnnRNNDataDescriptor_t x, size_t *workspace_bytes,
                                               size_t *reserve_bytes) {
    const size_t per_gate = x->steps * (size_t)d->hidden * (size_t)directions(d) * bytes_of(d->type);
    NG_HIT(NG_ASSUMED, "cuDNN recurrent layer workspace and reserve sizes", 0);
    if (workspace_bytes) {
        *workspace_bytes = per_gate * (size_t)gates(d);
        ng_workspace(*workspace_bytes);
    }
    if (reserve_bytes)
        *reserve_bytes = mode == CUDNN_FWD_MODE_TRAINING ? per_gate * (size_t)(gates(d) + 2) * (size_t)d->layers : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* ---------------------------------------------------------------------------------------- CTC loss
 * Not published either. The forward and backward variables are the minimum; the descriptors do not give the number of labels,
 * so the size of the probabilities stands for each. */
static cudnnStatus_t ctc_space(const cudnnTensorDescriptor_t probabilities, size_t *size_bytes) {
    size_t n = bytes_of(probabilities->type);
    for (int i = 0; i < probabilities->n_dims; i++) n *= (size_t)probabilities->dims[i];
    NG_HIT(NG_ASSUMED, "cuDNN CTC loss workspace", 2 * n);
    *size_bytes = 2 * n;
    ng_workspace(*size_bytes);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnGetCTCLossWorkspaceSize(cudnnHandle_t handle, const cudnnTensorDescriptor_t probabilities,
                                                  const cudnnTensorDescriptor_t gradients, const int *labels,
                                                  const int *label_lengths, const int *input_lengths,
                                                  cudnnCTCLossAlgo_t algorithm, cudnnCTCLossDescriptor_t loss,
                                                  size_t *size_bytes) {
    return ctc_space(probabilities, size_bytes);
}

EXPORT cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t algorithm,
                                                     cudnnCTCLossDescriptor_t loss,
                                                     const cudnnTensorDescriptor_t probabilities,
                                                     const cudnnTensorDescriptor_t gradients, size_t *size_bytes) {
    return ctc_space(probabilities, size_bytes);
}
