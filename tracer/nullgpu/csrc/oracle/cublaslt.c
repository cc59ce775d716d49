/* A cuBLASLt for the cuDNN oracle's process: descriptors and heuristics, no mathematics and no device.
 *
 * Some of cuDNN's engines call cuBLASLt. NVIDIA's own library needs a device as soon as a handle is made, so in cuDNN's
 * deviceless mode these engines drop out of lists that they lead on a real card. This library has the documented entry points
 * that cuDNN looks up. Descriptors keep the values set. The heuristic answers with one algorithm and no workspace. The real
 * request of cuBLASLt is unknown without a device, but is at most the limit that cuDNN states: the oracle can switch the answer
 * to that limit, to see how much a plan could need. Calls that would run on a device, and calls not understood, are refused and
 * recorded by name.
 *
 * Written from NVIDIA's public cuBLAS documentation; it needs none of NVIDIA's headers, so a cuDNN without a CUDA toolkit can
 * answer too. spec: cuBLAS 13 documentation, "Using the cuBLASLt API"
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* spec: cublasStatus_t */
typedef enum { SUCCESS = 0, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15 } status;

/* ---------------------------------------------------------------------------------------- what the oracle reads */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int asks_for_limit;          /* whether heuristics answer with the largest allowed workspace, or with none */
static int n_limited;               /* heuristics since the last reading with an allowed workspace */
static const char *refused = "";    /* the first refused call since the last reading */

/* Makes heuristics request all the workspace they are allowed (1) or none (0) from now on. Returns how many since the last
 * call were allowed any. */
EXPORT int vramcast_cublaslt_ask_for_limit(int on) {
    pthread_mutex_lock(&lock);
    const int n = n_limited;
    n_limited = 0;
    asks_for_limit = on;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Returns the name of the first refused call since the last reading; "" if there is none. */
EXPORT const char *vramcast_cublaslt_refused(void) {
    pthread_mutex_lock(&lock);
    const char *name = refused;
    refused = "";
    pthread_mutex_unlock(&lock);
    return name;
}

/* Returns a function's status, and keeps the function's name if that is not success. */
static status answer(const char *name, status what) {
    pthread_mutex_lock(&lock);
    if (what != SUCCESS && !*refused) refused = name;
    pthread_mutex_unlock(&lock);
    return what;
}
#define ANSWER(what) return answer(__func__, what)

/* ---------------------------------------------------------------------------------------- descriptors
 * All kinds are alike: a list of attributes. The caller holds a cell with a pointer to it, in our own memory (Create) or in the
 * caller's (Init, which the caller's inline functions use, without any call at the end). */
enum {
    MAX_ATTRIBUTES = 48,      /* arbitrary: cuBLAS 13 documents 39 for a multiplication, the most of any descriptor */
    MAX_ATTRIBUTE_BYTES = 8,  /* spec: pointers and 64-bit numbers are the largest attributes */
};
struct attributes {
    int count;
    struct {
        int name;
        size_t size_bytes;
        unsigned char value[MAX_ATTRIBUTE_BYTES];
    } of[MAX_ATTRIBUTES];
};
struct descriptor {
    struct attributes *attributes;
};

static status set(struct descriptor *d, int name, const void *value, size_t size_bytes) {
    struct attributes *a = d ? d->attributes : NULL;
    if (!a || !value || size_bytes == 0 || size_bytes > MAX_ATTRIBUTE_BYTES) return INVALID_VALUE;
    int i = 0;
    while (i < a->count && a->of[i].name != name) i++;
    if (i == MAX_ATTRIBUTES) return INVALID_VALUE;
    if (i == a->count) a->count++;
    a->of[i].name = name;
    a->of[i].size_bytes = size_bytes;
    memcpy(a->of[i].value, value, size_bytes);
    return SUCCESS;
}

static status get(const struct descriptor *d, int name, void *value, size_t size_bytes, size_t *written) {
    const struct attributes *a = d ? d->attributes : NULL;
    for (int i = 0; a && i < a->count; i++) {
        if (a->of[i].name != name) continue;
        if (written) *written = a->of[i].size_bytes;
        if (size_bytes == 0 && written) return SUCCESS; /* spec: queries only the size */
        if (!value || size_bytes != a->of[i].size_bytes) return INVALID_VALUE;
        memcpy(value, a->of[i].value, size_bytes);
        return SUCCESS;
    }
    return INVALID_VALUE; /* a default that was never set: better refused than guessed */
}

static status init(struct descriptor *d, size_t size_bytes) {
    if (!d || size_bytes < sizeof *d) return ALLOC_FAILED;
    memset(d, 0, size_bytes);
    d->attributes = calloc(1, sizeof *d->attributes);
    return d->attributes ? SUCCESS : ALLOC_FAILED;
}

static status create(struct descriptor **out) {
    struct descriptor *d = malloc(sizeof *d);
    const status made = d ? init(d, sizeof *d) : ALLOC_FAILED;
    if (made != SUCCESS) free(d);
    *out = made == SUCCESS ? d : NULL;
    return made;
}

static status destroy(struct descriptor *d) {
    if (d) free(d->attributes);
    free(d);
    return SUCCESS;
}

/* The entry points common to every kind of descriptor. */
#define KIND(kind)                                                                                               \
    EXPORT status cublasLt##kind##SetAttribute(struct descriptor *d, int name, const void *value, size_t size) { \
        ANSWER(set(d, name, value, size));                                                                       \
    }                                                                                                            \
    EXPORT status cublasLt##kind##Destroy(struct descriptor *d) { return destroy(d); }
#define READABLE(kind)                                                                                                      \
    EXPORT status cublasLt##kind##GetAttribute(struct descriptor *d, int name, void *value, size_t size, size_t *written) { \
        ANSWER(get(d, name, value, size, written));                                                                         \
    }
KIND(MatmulDesc) READABLE(MatmulDesc)
KIND(MatrixLayout) READABLE(MatrixLayout)
KIND(MatrixTransformDesc) READABLE(MatrixTransformDesc)
KIND(MatmulPreference)

/* spec: cublasLtMatmulDescAttributes_t; the computation's type and the scale's are the first two */
static status describe_matmul(struct descriptor *d, int compute_type, int scale_type) {
    set(d, 0, &compute_type, sizeof compute_type);
    return set(d, 1, &scale_type, sizeof scale_type);
}

/* spec: cublasLtMatrixLayoutAttribute_t: 0 type, 2 rows, 3 columns, 4 leading dimension */
static status describe_layout(struct descriptor *d, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    set(d, 0, &type, sizeof type);
    set(d, 2, &rows, sizeof rows);
    set(d, 3, &columns, sizeof columns);
    return set(d, 4, &leading, sizeof leading);
}

/* In the caller's memory, or in our own; `described` sets the initial attributes of `d`. */
#define MADE(kind, described, ...)                                                                  \
    EXPORT status cublasLt##kind##Init_internal(struct descriptor *d, size_t size, ##__VA_ARGS__) { \
        ANSWER(init(d, size) ?: (described));                                                       \
    }                                                                                               \
    EXPORT status cublasLt##kind##Create(struct descriptor **out, ##__VA_ARGS__) {                  \
        const status made = create(out);                                                            \
        struct descriptor *const d = *out;                                                          \
        (void)d;                                                                                    \
        ANSWER(made ?: (described));                                                                \
    }
MADE(MatmulDesc, describe_matmul(d, compute_type, scale_type), int compute_type, int scale_type)
MADE(MatrixLayout, describe_layout(d, type, rows, columns, leading), int type, uint64_t rows, uint64_t columns, int64_t leading)
MADE(MatrixTransformDesc, set(d, 0, &scale_type, sizeof scale_type), int scale_type)
MADE(MatmulPreference, SUCCESS)

/* ---------------------------------------------------------------------------------------- heuristics */
enum { PREFERENCE_MAX_WORKSPACE_BYTES = 1 }; /* spec: cublasLtMatmulPreferenceAttributes_t */
struct heuristic {                           /* spec: cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};

EXPORT status cublasLtMatmulAlgoGetHeuristic(void *handle, struct descriptor *matmul, struct descriptor *a,
                                             struct descriptor *b, struct descriptor *c, struct descriptor *d,
                                             struct descriptor *preference, int wanted, struct heuristic results[],
                                             int *found) {
    uint64_t limit = 0; /* spec: the default */
    if (!handle || !matmul || !a || !b || !c || !d || wanted < 1 || !results || !found) ANSWER(INVALID_VALUE);
    if (preference) get(preference, PREFERENCE_MAX_WORKSPACE_BYTES, &limit, sizeof limit, NULL);
    memset(results, 0, sizeof *results); /* state 0: the algorithm can be used */
    results->waves = 1.0f;               /* arbitrary: it is not read as a time */
    pthread_mutex_lock(&lock);
    n_limited += limit > 0;
    if (asks_for_limit) results->workspace_bytes = limit;
    pthread_mutex_unlock(&lock);
    *found = 1;
    return SUCCESS;
}

/* ---------------------------------------------------------------------------------------- the library itself */
static char the_handle;

EXPORT status cublasLtCreate(void **handle) {
    *handle = &the_handle;
    return SUCCESS;
}

EXPORT status cublasLtDestroy(void *handle) {
    (void)handle;
    return SUCCESS;
}

/* CUDA's major version is that of the name under which cuDNN looks this library up; the other parts affect no answer.
 * measured: cuDNN 9.19's lists of 467 questions are the same for 12.0, 13.1 and 13.4, 2026-11 */
enum { MAJOR = CUDA_MAJOR, MINOR = 0, PATCH = 0 };

EXPORT size_t cublasLtGetVersion(void) { return MAJOR * 10000 + MINOR * 100 + PATCH; }

EXPORT status cublasLtGetProperty(int property, int *value) {
    const int values[] = {MAJOR, MINOR, PATCH}; /* spec: libraryPropertyType */
    if (property < 0 || property > 2 || !value) ANSWER(INVALID_VALUE);
    *value = values[property];
    return SUCCESS;
}

/* Nothing runs here: cuDNN looks these up, and in its deviceless mode has no reason to call them. */
EXPORT status cublasLtMatmul(void) { ANSWER(NOT_SUPPORTED); }

EXPORT status cublasLtMatrixTransform(void) { ANSWER(NOT_SUPPORTED); }

/* Looked up by cuDNN 9.26; the groups' sizes lie on the device, so the workspace is unknown. */
EXPORT status cublasLtGroupedMatrixLayoutCreate(void) { ANSWER(NOT_SUPPORTED); }
