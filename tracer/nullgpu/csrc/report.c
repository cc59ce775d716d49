/* The report: the ledger and memory taken outside PyTorch's allocator, as text. */
#include "nullgpu.h"

#include <stdio.h>

struct report {
    char *text;
    size_t capacity, length;
};

static void add_line(void *to, const char *kind, const char *name, uint64_t hits, uint64_t bytes) {
    struct report *r = to;
    const size_t room = r->length < r->capacity ? r->capacity - r->length : 0;
    r->length += (size_t)snprintf(room ? r->text + r->length : NULL, room, "%s\t%s\t%llu\t%llu\n", kind, name,
                                  (unsigned long long)hits, (unsigned long long)bytes);
}

/* Writes lines "kind<TAB>name<TAB>hits<TAB>bytes" into `text`; returns the length required. */
EXPORT size_t nullgpu_report(char *text, size_t capacity) {
    struct report r = {text, capacity, 0};
    uint64_t outside, managed;
    const char *by;
    ng_list(add_line, &r);
    ng_beside(&outside, &by, &managed);
    if (outside) add_line(&r, "outside", by, 1, outside);
    if (managed) add_line(&r, "managed", "cudaMallocManaged", 1, managed);
    add_line(&r, "launches", "kernels", ng_launches(), 0);
    return r.length;
}
