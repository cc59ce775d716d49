/* libcupti: PyTorch's profiler looks whether device activity can be recorded. There is none. */
#include "nullgpu.h"

#include <cupti.h>

EXPORT CUptiResult cuptiGetVersion(uint32_t *version) {
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}

EXPORT CUptiResult cuptiGetResultString(CUptiResult result, const char **text) {
    *text = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "the null GPU records no device activity";
    return CUPTI_SUCCESS;
}

/* Without a subscriber the profiler gives up on the device and records the host only, which is what we want of it. */
EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *data) {
    return CUPTI_ERROR_NOT_SUPPORTED;
}
