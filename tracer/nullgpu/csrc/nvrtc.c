/* libnvrtc: a program compiles to nothing, at once. PyTorch requests the image only to load it into the null driver. */
#include "nullgpu.h"

#include <cuda_runtime_api.h>
#include <nvrtc.h>
#include <string.h>

#define DOES(call, action) NG_DOES(nvrtcResult, NVRTC_SUCCESS, call, action)

EXPORT nvrtcResult nvrtcVersion(int *major, int *minor) {
    *major = CUDART_VERSION / 1000;
    *minor = CUDART_VERSION % 1000 / 10;
    return NVRTC_SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(nvrtcResult result) { return result == NVRTC_SUCCESS ? "no error" : "NVRTC error"; }

DOES(nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int n_headers,
                        const char *const *headers, const char *const *include_names), *program = ng_new_handle())
DOES(nvrtcGetNumSupportedArchs(int *count), *count = 1)
DOES(nvrtcGetSupportedArchs(int *architectures), *architectures = ng_device()->kernel_arch)
DOES(nvrtcGetPTXSize(nvrtcProgram program, size_t *size_bytes), *size_bytes = 1)
DOES(nvrtcGetPTX(nvrtcProgram program, char *text), *text = '\0')
DOES(nvrtcGetLoweredName(nvrtcProgram program, const char *const expression, const char **lowered), *lowered = expression)
