/* libcupti: PyTorch's profiler checks whether device activity can be recorded. There is none. */
#include "nullgpu.h"

#include <cupti.h>

#define DOES(call, action) NG_DOES(CUptiResult, CUPTI_SUCCESS, call, action)

DOES(cuptiGetVersion(uint32_t *version), *version = CUPTI_API_VERSION)
DOES(cuptiGetResultString(CUptiResult result, const char **text),
     *text = result == CUPTI_SUCCESS ? "CUPTI_SUCCESS" : "the null GPU records no device activity")

/* Without a subscriber the profiler gives up on the device and records only the host, as intended. */
EXPORT CUptiResult cuptiSubscribe(CUpti_SubscriberHandle *subscriber, CUpti_CallbackFunc callback, void *data) {
    return CUPTI_ERROR_NOT_SUPPORTED;
}
