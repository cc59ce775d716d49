/* libnvrtc: a program compiles to nothing, at once. PyTorch asks for the image only to load it into the null driver. */
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

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int n_headers,
                                      const char *const *headers, const char *const *include_names) {
    *program = ng_new_handle();
    return NVRTC_SUCCESS;
}

DOES(nvrtcGetNumSupportedArchs(int *count), *count = 1)
DOES(nvrtcGetSupportedArchs(int *architectures), *architectures = ng_device()->kernel_arch)

static nvrtcResult empty_size(size_t *size_bytes) {
    *size_bytes = 1;
    return NVRTC_SUCCESS;
}

static nvrtcResult empty_text(char *text) {
    *text = '\0';
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) { return empty_size(size); }
EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *text) { return empty_text(text); }
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) { return empty_size(size); }
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *text) { return empty_text(text); }
EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) { return empty_size(size); }
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *text) { return empty_text(text); }

DOES(nvrtcGetLoweredName(nvrtcProgram program, const char *const expression, const char **lowered), *lowered = expression)
