/* Plays lists of requests read from stdin: once with unlimited memory, then with one more allowed allocation each time.
 *
 *     n n_pools, the numbers of struct config in order, then n lines: kind size stream block
 *
 * A play without enough memory must report that and free everything: the leak checker runs at the end.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int64_t allocations_left;
static void *short_malloc(size_t size) { return allocations_left-- > 0 ? malloc(size) : NULL; }
static void *short_calloc(size_t n, size_t size) { return allocations_left-- > 0 ? calloc(n, size) : NULL; }
static void *short_realloc(void *old, size_t size) { return allocations_left-- > 0 ? realloc(old, size) : NULL; }

#define malloc short_malloc
#define calloc short_calloc
#define realloc short_realloc
#include CACHING_C
#undef malloc
#undef calloc
#undef realloc

static int64_t number(void) {
    int64_t value;
    if (scanf("%" SCNd64, &value) != 1) exit(2);
    return value;
}

static void *column(int64_t n, size_t item) { return calloc((size_t)n + 1, item); }

int main(void) {
    for (int64_t n_lists = number(); n_lists; n_lists--) {
        struct requests r = {.n = number(), .n_pools = number()};
        struct config c = {.max_split = number(), .max_non_split_rounding = number(), .large_segment = number()};
        c.allowed = number();
        c.total = number();
        c.capacity = number();
        c.context = number();
        for (int i = 0; i < N_INTERVALS; i++) c.divisions[i] = number();
        c.gc_threshold = (double)number() / 1000;
        c.expandable = number();
        c.policy = number();
        c.waits = number();
        c.oldest_first = number();
        c.pools_capture = number();
        c.refuses_beyond_range = number();
        c.stop_at_oom = number();
        uint8_t *kind = column(r.n, sizeof *kind);
        int64_t *size = column(r.n, sizeof *size), *block = column(r.n, sizeof *block);
        int32_t *stream = column(r.n, sizeof *stream);
        for (int64_t i = 0; i < r.n; i++) {
            kind[i] = (uint8_t)number();
            size[i] = number();
            stream[i] = (int32_t)number();
            block[i] = number();
        }
        r.kind = kind, r.size = size, r.stream = stream, r.block = block;
        struct outcome whole = {0};
        allocations_left = INT64_MAX;
        const int failed = caching_play(&c, &r, &whole);
        const int64_t needed = INT64_MAX - allocations_left;
        int64_t n_wrong = failed;
        for (int64_t limit = 0; limit <= needed; limit++) {
            struct outcome o = {0};
            allocations_left = limit;
            n_wrong += caching_play(&c, &r, &o) != (limit < needed);
            if (limit == needed) n_wrong += memcmp(&o.statistics, &whole.statistics, sizeof o.statistics) != 0;
            caching_free(o.events);
        }
        printf("%" PRId64 " %" PRId64 " %" PRId64 "\n", n_wrong, whole.n_events, whole.statistics.reserved.peak);
        caching_free(whole.events);
        free(kind);
        free(size);
        free(stream);
        free(block);
    }
    return 0;
}
