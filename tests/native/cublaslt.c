/* Checks the oracle's cuBLASLt: descriptors keep their attributes, heuristics respect their limit, and unknown calls fail. */
#include "check.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
struct heuristic {
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

int cublasLtCreate(void **);
int cublasLtDestroy(void *);
size_t cublasLtGetVersion(void);
int cublasLtGetProperty(int, int *);
int cublasLtMatmulDescCreate(void **, int, int);
int cublasLtMatmulDescInit_internal(void *, size_t, int, int);
int cublasLtMatmulDescSetAttribute(void *, int, const void *, size_t);
int cublasLtMatmulDescGetAttribute(void *, int, void *, size_t, size_t *);
int cublasLtMatmulDescDestroy(void *);
int cublasLtMatrixLayoutCreate(void **, int, uint64_t, uint64_t, int64_t);
int cublasLtMatrixLayoutInit_internal(void *, size_t, int, uint64_t, uint64_t, int64_t);
int cublasLtMatrixLayoutSetAttribute(void *, int, const void *, size_t);
int cublasLtMatrixLayoutGetAttribute(void *, int, void *, size_t, size_t *);
int cublasLtMatrixLayoutDestroy(void *);
int cublasLtMatrixTransformDescCreate(void **, int);
int cublasLtMatrixTransformDescGetAttribute(void *, int, void *, size_t, size_t *);
int cublasLtMatrixTransformDescDestroy(void *);
int cublasLtMatmulPreferenceCreate(void **);
int cublasLtMatmulPreferenceInit_internal(void *, size_t);
int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t);
int cublasLtMatmulPreferenceDestroy(void *);
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, struct heuristic *, int *);
int cublasLtMatmul(void);
int cublasLtMatrixTransform(void);
int cublasLtGroupedMatrixLayoutCreate(void);
int vramcast_cublaslt_ask_for_limit(int);
const char *vramcast_cublaslt_refused(void);

static void descriptors_keep_what_was_set(void) {
    void *layout = NULL;
    uint64_t rows = 0, storage[8];
    int32_t batches = 32, found = 0;
    size_t written = 0;
    CHECK(cublasLtMatrixLayoutCreate(&layout, 0, 3136, 64, 3136) == SUCCESS);
    CHECK(cublasLtMatrixLayoutSetAttribute(layout, 5, &batches, sizeof batches) == SUCCESS);
    CHECK(cublasLtMatrixLayoutGetAttribute(layout, 5, &found, sizeof found, &written) == SUCCESS);
    CHECK(found == 32 && written == sizeof found);
    batches = 64;
    CHECK(cublasLtMatrixLayoutSetAttribute(layout, 5, &batches, sizeof batches) == SUCCESS);
    CHECK(cublasLtMatrixLayoutGetAttribute(layout, 5, &found, sizeof found, NULL) == SUCCESS && found == 64);
    CHECK(cublasLtMatrixLayoutGetAttribute(layout, 2, NULL, 0, &written) == SUCCESS && written == 8);
    CHECK(cublasLtMatrixLayoutGetAttribute(layout, 2, &rows, sizeof rows, NULL) == SUCCESS && rows == 3136);
    CHECK(cublasLtMatrixLayoutDestroy(layout) == SUCCESS);
    CHECK(cublasLtMatrixLayoutInit_internal(storage, sizeof storage, 0, 7, 5, 7) == SUCCESS);
    CHECK(cublasLtMatrixLayoutGetAttribute(storage, 3, &rows, sizeof rows, NULL) == SUCCESS && rows == 5);
    CHECK(!*vramcast_cublaslt_refused());
}

static void what_is_not_understood_is_refused_by_name(void) {
    void *matmul = NULL;
    char large[64] = {0};
    int32_t value = 0;
    uint64_t storage[1];
    CHECK(cublasLtMatmulDescCreate(&matmul, 68, 0) == SUCCESS);
    CHECK(cublasLtMatmulDescGetAttribute(matmul, 7, &value, sizeof value, NULL) == INVALID_VALUE); /* not set */
    CHECK(!strcmp(vramcast_cublaslt_refused(), "cublasLtMatmulDescGetAttribute"));
    CHECK(!*vramcast_cublaslt_refused()); /* each is reported once */
    CHECK(cublasLtMatmulDescSetAttribute(matmul, 7, large, sizeof large) == INVALID_VALUE);
    CHECK(cublasLtMatmulDescGetAttribute(matmul, 0, &value, 2, NULL) == INVALID_VALUE); /* the buffer is too small */
    CHECK(!strcmp(vramcast_cublaslt_refused(), "cublasLtMatmulDescSetAttribute"));
    for (int name = 0; name < 60; name++) cublasLtMatmulDescSetAttribute(matmul, name, &value, sizeof value);
    CHECK(!strcmp(vramcast_cublaslt_refused(), "cublasLtMatmulDescSetAttribute")); /* the value is too large */
    CHECK(cublasLtMatmulDescDestroy(matmul) == SUCCESS);
    CHECK(cublasLtMatmulDescInit_internal(storage, 4, 68, 0) == ALLOC_FAILED);
    CHECK(cublasLtMatmul() == NOT_SUPPORTED);
    CHECK(!strcmp(vramcast_cublaslt_refused(), "cublasLtMatmulDescInit_internal")); /* the first one */
    CHECK(cublasLtMatrixTransform() == NOT_SUPPORTED);
    CHECK(!strcmp(vramcast_cublaslt_refused(), "cublasLtMatrixTransform"));
    CHECK(cublasLtGroupedMatrixLayoutCreate() == NOT_SUPPORTED);
    CHECK(!strcmp(vramcast_cublaslt_refused(), "cublasLtGroupedMatrixLayoutCreate"));
}

static void heuristics_ask_for_nothing_or_for_their_limit(void) {
    void *handle, *matmul, *layout, *preference;
    struct heuristic result[2];
    int found = 0;
    const uint64_t limit = 128 << 20;
    CHECK(cublasLtCreate(&handle) == SUCCESS);
    CHECK(cublasLtMatmulDescCreate(&matmul, 68, 0) == SUCCESS);
    CHECK(cublasLtMatrixLayoutCreate(&layout, 0, 64, 64, 64) == SUCCESS);
    CHECK(cublasLtMatmulPreferenceCreate(&preference) == SUCCESS);
#define ASK(n) cublasLtMatmulAlgoGetHeuristic(handle, matmul, layout, layout, layout, layout, preference, n, result, &found)
    CHECK(vramcast_cublaslt_ask_for_limit(0) == 0);
    memset(result, 0xff, sizeof result);
    CHECK(ASK(2) == SUCCESS && found == 1 && result[0].state == 0 && result[0].workspace_bytes == 0);
    CHECK(result[1].state == -1); /* only found results are written */
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, 1, &limit, sizeof limit) == SUCCESS);
    CHECK(ASK(1) == SUCCESS && result[0].workspace_bytes == 0);
    CHECK(vramcast_cublaslt_ask_for_limit(1) == 1); /* one of the two was allowed a workspace */
    CHECK(ASK(1) == SUCCESS && result[0].workspace_bytes == limit);
    CHECK(vramcast_cublaslt_ask_for_limit(0) == 1);
    CHECK(!*vramcast_cublaslt_refused());
    CHECK(ASK(0) == INVALID_VALUE);
    CHECK(!strcmp(vramcast_cublaslt_refused(), "cublasLtMatmulAlgoGetHeuristic"));
    CHECK(cublasLtMatmulPreferenceDestroy(preference) == SUCCESS);
    CHECK(cublasLtMatrixLayoutDestroy(layout) == SUCCESS);
    CHECK(cublasLtMatmulDescDestroy(matmul) == SUCCESS);
    CHECK(cublasLtDestroy(handle) == SUCCESS);
}

static void the_other_descriptors_work_alike(void) {
    void *transform;
    uint64_t storage[8];
    int32_t scale = -1, major = 0, patch = -1;
    CHECK(cublasLtMatrixTransformDescCreate(&transform, 2) == SUCCESS);
    CHECK(cublasLtMatrixTransformDescGetAttribute(transform, 0, &scale, sizeof scale, NULL) == SUCCESS && scale == 2);
    CHECK(cublasLtMatrixTransformDescDestroy(transform) == SUCCESS);
    CHECK(cublasLtMatmulPreferenceInit_internal(storage, sizeof storage) == SUCCESS);
    CHECK(cublasLtMatmulPreferenceSetAttribute(storage, 9, &major, sizeof major) == SUCCESS);
    CHECK(cublasLtGetProperty(0, &major) == SUCCESS && cublasLtGetVersion() / 10000 == (size_t)major);
    CHECK(cublasLtGetProperty(2, &patch) == SUCCESS && patch == 0);
    CHECK(!*vramcast_cublaslt_refused());
    CHECK(cublasLtGetProperty(3, &patch) == INVALID_VALUE && *vramcast_cublaslt_refused());
}

int main(void) {
    descriptors_keep_what_was_set();
    what_is_not_understood_is_refused_by_name();
    heuristics_ask_for_nothing_or_for_their_limit();
    the_other_descriptors_work_alike();
    puts("all lines hold");
    return 0;
}
