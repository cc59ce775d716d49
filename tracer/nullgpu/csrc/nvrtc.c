/* libnvrtc: a program compiles to nothing, at once. PyTorch asks for the image only to load it into the null driver. */
#include "nullgpu.h"

#include <cuda_runtime_api.h>
#include <nvrtc.h>
#include <string.h>

EXPORT nvrtcResult nvrtcVersion(int *major, int *minor) {
    *major = CUDART_VERSION / 1000;
    *minor = CUDART_VERSION % 1000 / 10;
    return NVRTC_SUCCESS;
}

EXPORT const char *nvrtcGetErrorString(nvrtcResult result) { return result == NVRTC_SUCCESS ? "no error" : "NVRTC error"; }

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram *program, const char *source, const char *name, int n_headers,
                                      const char *const *headers, const char *const *include_names) {
    (void)source, (void)name, (void)n_headers, (void)headers, (void)include_names;
    *program = ng_new_handle();
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int *count) {
    *count = 1;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int *architectures) {
    *architectures = ng_device()->kernel_arch;
    return NVRTC_SUCCESS;
}

static nvrtcResult empty_size(size_t *size_bytes) {
    *size_bytes = 1;
    return NVRTC_SUCCESS;
}

static nvrtcResult empty_text(char *text) {
    *text = '\0';
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t *size) { return (void)program, empty_size(size); }
EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char *text) { return (void)program, empty_text(text); }
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t *size) { return (void)program, empty_size(size); }
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char *text) { return (void)program, empty_text(text); }
EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t *size) { return (void)program, empty_size(size); }
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char *text) { return (void)program, empty_text(text); }

EXPORT nvrtcResult nvrtcGetLoweredName(nvrtcProgram program, const char *const expression, const char **lowered) {
    (void)program;
    *lowered = expression;
    return NVRTC_SUCCESS;
}
