/* libcudnn.so.9, the graph (backend) API.
 *
 * Descriptors only store what is set. When PyTorch requests engines or a plan's workspace, the operation graph is written out
 * as text and sent to the cuDNN oracle (oracle.py): another process, in which the installed, real cuDNN answers in its
 * documented deviceless mode. No NVIDIA code runs here. graph.py describes the text. cuDNN copies at finalize, so a child may
 * be gone before its parent is used; the parent therefore copies a child's text when it is set.
 */
#include "nullgpu.h"

#include <cudnn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Attributes that the headers of cuDNN 9.1 (torch 2.6) do not name yet. spec: cuDNN 9 backend API */
enum { ENGINECFG_WORKSPACE_SIZE = 303, ENGINECFG_SHARED_MEMORY_USED = 304 };

/* ---------------------------------------------------------------------------------------- growing text */
struct text {
    char *s;
    size_t length, capacity;
};

static void add(struct text *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (t->length + (size_t)n + 1 > t->capacity) {
        t->capacity = 2 * (t->length + (size_t)n + 1);
        t->s = realloc(t->s, t->capacity);
        if (!t->s) abort();
    }
    va_start(arguments, format);
    vsnprintf(t->s + t->length, (size_t)n + 1, format, arguments);
    va_end(arguments);
    t->length += (size_t)n;
}

/* ---------------------------------------------------------------------------------------- the oracle
 * One connection per process, opened for the first request. Without an oracle every answer is "unknown". A fork of the job
 * opens its own: on this one it would take answers meant for the job. */
static pthread_mutex_t oracle_lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *oracle;
static int oracle_tried;
static pid_t oracle_owner;

static char *read_line(FILE *f) {
    char *line = NULL;
    size_t capacity = 0;
    const ssize_t n = getline(&line, &capacity, f);
    if (n <= 0) {
        free(line);
        return NULL;
    }
    line[strcspn(line, "\n")] = '\0';
    return line;
}

static void open_oracle(void) {
    const char *path = getenv("NULLGPU_CUDNN_SOCKET"), *record = getenv("NULLGPU_CUDNN_DEVICE");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    oracle_tried = 1;
    oracle_owner = getpid();
    if (!path || !record || strlen(path) >= sizeof address.sun_path) return;
    strcpy(address.sun_path, path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) {
        fprintf(stderr, "vramcast null GPU: no cuDNN oracle: %s\n", strerror(errno));
        if (fd >= 0) close(fd);
        return;
    }
    oracle = fdopen(fd, "r+");
    if (!oracle) return;
    fprintf(oracle, "DEVICE %s\n", record);
    fflush(oracle);
    char *answer = read_line(oracle);
    if (!answer || strcmp(answer, "OK")) {
        fprintf(stderr, "vramcast null GPU: the cuDNN oracle refused the device: %s\n", answer ? answer : "no answer");
        fclose(oracle);
        oracle = NULL;
    }
    free(answer);
}

/* Returns the first line of the answer (to be freed), or NULL; `*lines` gets `n` further lines if it is "OK n". */
static char *ask(const char *question, char ***lines, int64_t *n_lines) {
    pthread_mutex_lock(&oracle_lock);
    if (!oracle_tried || oracle_owner != getpid()) {
        oracle = NULL; /* not closed: its buffer must not be written twice */
        open_oracle();
    }
    char *answer = NULL;
    if (oracle) {
        fprintf(oracle, "%s\n", question);
        fflush(oracle);
        answer = read_line(oracle);
        if (answer && lines && !strncmp(answer, "OK ", 3)) {
            *n_lines = strtoll(answer + 3, NULL, 10);
            *lines = calloc((size_t)*n_lines + 1, sizeof **lines);
            for (int64_t i = 0; i < *n_lines; i++) (*lines)[i] = read_line(oracle);
        }
        if (!answer) {
            fclose(oracle);
            oracle = NULL;
        }
    }
    pthread_mutex_unlock(&oracle_lock);
    return answer;
}

/* ---------------------------------------------------------------------------------------- descriptors */
struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    void *values;   /* as given                                   */
    char *children; /* for descriptors: their texts in brackets   */
    struct attribute *next;
};

/* One configuration of an engine: the facts needed here. */
struct engine {
    char *graph;         /* text of the operation graph                                  */
    int mode;            /* heuristic mode of its list, or -1: made by hand               */
    int64_t index;       /* place in that mode's list                                     */
    int64_t global;      /* cuDNN's number of the engine                                  */
    char *knobs;         /* by hand: "type=value,...", or NULL                            */
    int32_t numeric[64], behavior[64]; /* notes */
    int64_t n_numeric, n_behavior;
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    struct attribute *attributes, **last;
    char *text;
    struct engine engine;    /* ENGINE, ENGINECFG, EXECUTION_PLAN                              */
    char **results;          /* ENGINEHEUR: one line per engine                                 */
    int64_t n_results;
    int64_t workspace_bytes; /* EXECUTION_PLAN                                                  */
    int64_t limit_bytes;     /* EXECUTION_PLAN: further bytes that cuBLASLt could request       */
    int64_t withheld;        /* EXECUTION_PLAN: engines left out without a device               */
    int known;               /* EXECUTION_PLAN: the workspace is cuDNN's answer                 */
};

static size_t element_bytes(cudnnBackendAttributeType_t type) {
    switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR: return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
    case CUDNN_TYPE_FRACTION: return 16;
    default: return 4;
    }
}

static struct attribute *attribute_of(const struct descriptor *d, int name) {
    for (struct attribute *a = d->attributes; a; a = a->next)
        if ((int)a->name == name) return a;
    return NULL;
}

static char *copy_of(const char *s) { return s ? strdup(s) : NULL; }

static void clear_engine(struct engine *e) {
    free(e->graph);
    free(e->knobs);
    memset(e, 0, sizeof *e);
    e->mode = -1;
}

static void copy_engine(struct engine *to, const struct engine *from) {
    if (to == from) return;
    clear_engine(to);
    *to = *from;
    to->graph = copy_of(from->graph);
    to->knobs = copy_of(from->knobs);
}

static int64_t int64_of(const struct descriptor *d, int name, int64_t otherwise) {
    const struct attribute *a = attribute_of(d, name);
    if (!a || a->count < 1) return otherwise;
    return element_bytes(a->type) == 8 ? *(int64_t *)a->values : *(int32_t *)a->values;
}

EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out) {
    struct descriptor *d = calloc(1, sizeof *d);
    if (!d) return CUDNN_STATUS_ALLOC_FAILED;
    d->type = type;
    d->last = &d->attributes;
    d->engine.mode = -1;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    struct descriptor *d = descriptor;
    for (struct attribute *a = d->attributes, *next; a; a = next) {
        next = a->next;
        free(a->values);
        free(a->children);
        free(a);
    }
    for (int64_t i = 0; i < d->n_results; i++) free(d->results[i]);
    free(d->results);
    clear_engine(&d->engine);
    free(d->text);
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

static char *texts_of(struct descriptor *const *children, int64_t count) {
    struct text t = {0};
    add(&t, "[");
    for (int64_t i = 0; i < count; i++) add(&t, "%s%s", i ? "," : "", children[i] && children[i]->text ? children[i]->text : "0{}");
    add(&t, "]");
    return t.s;
}

/* The facts that a parent needs from the descriptor it is made from. */
static void inherit(struct descriptor *d, cudnnBackendAttributeName_t name, struct descriptor *const *children, int64_t count) {
    if (count < 1 || !children[0]) return;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH:
    case CUDNN_ATTR_ENGINE_OPERATION_GRAPH:
        free(d->engine.graph);
        d->engine.graph = copy_of(children[0]->text);
        break;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: copy_engine(&d->engine, &children[0]->engine); break;
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES: {
        struct text t = {0};
        for (int64_t i = 0; i < count; i++)
            add(&t, "%s%lld=%lld", i ? "," : "", (long long)int64_of(children[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, -1),
                (long long)int64_of(children[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 0));
        free(d->engine.knobs);
        d->engine.knobs = t.s;
        break;
    }
    default: break;
    }
}

EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void *values) {
    struct descriptor *d = descriptor;
    struct attribute *a = attribute_of(d, name);
    if (count < 0 || (count > 0 && !values)) return CUDNN_STATUS_BAD_PARAM;
    if (!a) {
        a = calloc(1, sizeof *a);
        if (!a) return CUDNN_STATUS_ALLOC_FAILED;
        *d->last = a;
        d->last = &a->next;
    }
    a->name = name;
    a->type = type;
    a->count = count;
    free(a->values);
    free(a->children);
    a->values = malloc((size_t)count * element_bytes(type) + 1);
    a->children = NULL;
    if (!a->values) return CUDNN_STATUS_ALLOC_FAILED;
    memcpy(a->values, count ? values : "", (size_t)count * element_bytes(type));
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        a->children = texts_of(values, count);
        inherit(d, name, values, count);
    }
    return CUDNN_STATUS_SUCCESS;
}

static void write_values(struct text *t, const struct attribute *a) {
    const size_t words = a->type == CUDNN_TYPE_FRACTION ? 2 * (size_t)a->count : (size_t)a->count;
    const size_t size = a->type == CUDNN_TYPE_FRACTION ? 8 : element_bytes(a->type);
    for (size_t i = 0; i < words; i++) {
        const char *at = (const char *)a->values + i * size;
        long long value = size == 8 ? *(const int64_t *)at : size == 4 ? *(const int32_t *)at : *(const int8_t *)at;
        add(t, "%s%lld", i ? "," : "", value);
    }
}

static void write_text(struct descriptor *d) {
    struct text t = {0};
    add(&t, "%d{", (int)d->type);
    for (const struct attribute *a = d->attributes; a; a = a->next) {
        if (a->type == CUDNN_TYPE_HANDLE || a->type == CUDNN_TYPE_VOID_PTR) continue;
        add(&t, "%d=%d:", (int)a->name, (int)a->type);
        if (a->children)
            add(&t, "%s", a->children);
        else
            write_values(&t, a);
        add(&t, ";");
    }
    add(&t, "}");
    free(d->text);
    d->text = t.s;
}

static int64_t read_notes(const char *text, int32_t *notes) {
    int64_t n = 0;
    char *end;
    while (n < 64 && *text && *text != '-') {
        notes[n++] = (int32_t)strtol(text, &end, 10);
        if (end == text) return n - 1;
        text = *end == ',' ? end + 1 : end;
    }
    return n;
}

static cudnnStatus_t find_engines(struct descriptor *d) {
    struct text question = {0};
    d->engine.mode = (int)int64_of(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_HEUR_MODE_INSTANT);
    add(&question, "HEUR %d %s", d->engine.mode, d->engine.graph ? d->engine.graph : "");
    char *answer = ask(question.s, &d->results, &d->n_results);
    free(question.s);
    if (!answer || strncmp(answer, "OK ", 3)) {
        /* One unknown engine: the job continues, and its workspace counts as unknown. */
        d->results = calloc(1, sizeof *d->results);
        d->results[0] = strdup("-1 - -");
        d->n_results = 1;
    }
    free(answer);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t build_plan(struct descriptor *d) {
    const struct engine *e = &d->engine;
    struct text question = {0};
    cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
    char *answer = NULL;
    if (e->graph && e->mode >= 0 && e->global >= 0) {
        add(&question, "PLAN %d %lld %s", e->mode, (long long)e->index, e->graph);
        answer = ask(question.s, NULL, NULL);
    } else if (e->graph && e->mode < 0) {
        add(&question, "ENGINE %lld %s %s", (long long)e->global, e->knobs && *e->knobs ? e->knobs : "-", e->graph);
        answer = ask(question.s, NULL, NULL);
    }
    free(question.s);
    if (answer && !strncmp(answer, "OK ", 3)) {
        char *rest = NULL;
        d->workspace_bytes = strtoll(answer + 3, &rest, 10);
        d->limit_bytes = strtoll(rest, &rest, 10);
        d->withheld = strtoll(rest, NULL, 10);
        d->known = 1;
    } else if (answer && !strncmp(answer, "FAIL", 4)) {
        status = CUDNN_STATUS_NOT_SUPPORTED;
    }
    free(answer);
    return status;
}

EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    struct descriptor *d = descriptor;
    switch (d->type) {
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: return find_engines(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: return build_plan(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR: d->engine.global = int64_of(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, d->engine.global); break;
    default: break;
    }
    write_text(d);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
    const struct descriptor *d = plan;
    ng_workspace((uint64_t)d->workspace_bytes);
    ng_executed(plan);
    if (!d->known) NG_HIT(NG_ASSUMED, NG_NO_ORACLE, 0);
    if (d->withheld) NG_HIT(NG_ASSUMED, NG_WITHHELD_ENGINES, 0);
    if (d->engine.mode == CUDNN_HEUR_MODE_B) NG_HIT(NG_ASSUMED, "cuDNN's heuristics of mode B, without a device", 0);
    if (d->limit_bytes) NG_HIT(NG_BOUNDED, NG_CUBLASLT_WORKSPACE, d->limit_bytes);
    return CUDNN_STATUS_SUCCESS;
}

static void fill_engine(struct descriptor *out, const struct descriptor *heuristics, int64_t index) {
    const char *line = heuristics->results[index];
    char numeric[512] = "-", behavior[512] = "-";
    long long global = -1;
    copy_engine(&out->engine, &heuristics->engine);
    if (line) sscanf(line, "%lld %511s %511s", &global, numeric, behavior);
    out->engine.index = index;
    out->engine.global = global;
    out->engine.n_numeric = read_notes(numeric, out->engine.numeric);
    out->engine.n_behavior = read_notes(behavior, out->engine.behavior);
}

static cudnnStatus_t give_int64(int64_t value, int64_t wanted, int64_t *count, void *out) {
    *count = 1;
    if (out && wanted > 0) *(int64_t *)out = value;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t give_notes(const int32_t *notes, int64_t n, int64_t wanted, int64_t *count, void *out) {
    *count = n;
    if (out) memcpy(out, notes, (size_t)(n < wanted ? n : wanted) * sizeof *notes);
    return CUDNN_STATUS_SUCCESS;
}

EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t wanted, int64_t *count_out,
                                              void *out) {
    struct descriptor *d = descriptor;
    int64_t unused, *count = count_out ? count_out : &unused;
    switch ((int)name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        /* Without an output array: the number of results; with one: the number written to it. */
        *count = out && wanted < d->n_results ? wanted : d->n_results;
        for (int64_t i = 0; out && i < *count; i++) fill_engine(((struct descriptor **)out)[i], d, i);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        *count = 1;
        if (out && wanted > 0 && *(struct descriptor **)out) copy_engine(&(*(struct descriptor **)out)->engine, &d->engine);
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: return give_notes(d->engine.numeric, d->engine.n_numeric, wanted, count, out);
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE: return give_notes(d->engine.behavior, d->engine.n_behavior, wanted, count, out);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return give_int64(d->engine.global, wanted, count, out);
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: return give_int64(d->workspace_bytes, wanted, count, out);
    case ENGINECFG_WORKSPACE_SIZE: { /* attention is chosen by it, before a plan is made */
        const cudnnStatus_t status = build_plan(d);
        return status ? status : give_int64(d->workspace_bytes, wanted, count, out);
    }
    case CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: { /* torch 2.14 avoids engines by it, see convolution_workspaces.py */
        const int version = getenv("NULLGPU_TAKES_ALL_ENGINES") ? 0 : 100 * ng_device()->major + 10 * ng_device()->minor;
        char json[64];
        const int n = snprintf(json, sizeof json, "{\"engine\":{\"smVersion\":%d}}", version);
        *count = n;
        if (out) memcpy(out, json, (size_t)(n < wanted ? n : wanted));
        return CUDNN_STATUS_SUCCESS;
    }
    case ENGINECFG_SHARED_MEMORY_USED: /* cuDNN's frontend only compares it with a limit, and PyTorch sets none */
        *count = 1;
        if (out && wanted > 0) *(int32_t *)out = 0;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_KNOB_INFO:       /* the engine keeps the knobs set by the heuristics */
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
        *count = 0;
        return CUDNN_STATUS_SUCCESS;
    default: break;
    }
    const struct attribute *a = attribute_of(d, name);
    if (!a || type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        NG_HIT(NG_REFUSED, "cudnnBackendGetAttribute (an attribute nobody set)", 0);
        return CUDNN_STATUS_NOT_SUPPORTED;
    }
    *count = a->count;
    if (out) memcpy(out, a->values, (size_t)(wanted < a->count ? wanted : a->count) * element_bytes(a->type));
    return CUDNN_STATUS_SUCCESS;
}
