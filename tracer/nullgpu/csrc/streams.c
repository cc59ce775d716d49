/* Work that the host knows to be done: happens-before between streams, by vector clocks.
 *
 * A stream's own time advances by one with each event recorded on it; its clock has, for each stream, the time that it comes
 * after. The host's clock covers all it waited for, directly or through earlier work. An event known to the host is over on
 * every card. For any other event the card's speed decides: an infinitely fast card has done it, an infinitely slow one has
 * not. Work that was not waited for is never over here, even in obvious cases (a stream on which nothing ran).
 * Source: CUDA runtime API, "Stream synchronization behavior", cudaStreamWaitEvent, cudaEventRecord.
 */
#include <stdlib.h>
#include <string.h>

#include "nullgpu.h"

struct stream {
    const void *name;
    int with_legacy; /* it and the legacy default stream wait for each other */
    struct ng_clock clock;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;
static int n_streams, room;
static struct ng_clock host;
static __thread char own_stream; /* its address serves as the name of the thread's own default stream */

static uint32_t at(const struct ng_clock *clock, int i) { return i < clock->n ? clock->at[i] : 0; }

static void reach(struct ng_clock *clock, int n) {
    if (clock->n >= n) return;
    uint32_t *larger = realloc(clock->at, (size_t)n * sizeof *larger);
    if (!larger) abort();
    memset(larger + clock->n, 0, (size_t)(n - clock->n) * sizeof *larger);
    clock->at = larger;
    clock->n = n;
}

static void join(struct ng_clock *into, const struct ng_clock *from) {
    reach(into, from->n);
    for (int i = 0; i < from->n; i++)
        if (from->at[i] > into->at[i]) into->at[i] = from->at[i];
}

/* Names of the default streams: NULL and 1 are the legacy one, 2 is the thread's own. spec: driver_types.h */
static const void *resolved(const void *name) {
    if ((uintptr_t)name == 1) return NULL;
    return (uintptr_t)name == 2 ? &own_stream : name;
}

static int added(const void *name, int with_legacy) {
    if (n_streams == room) {
        room = room ? 2 * room : 16;
        struct stream *more = realloc(streams, (size_t)room * sizeof *more);
        if (!more) abort();
        streams = more;
    }
    streams[n_streams] = (struct stream){name, with_legacy, {NULL, 0}};
    return n_streams++;
}

/* The legacy stream is always the first. A stream without an observed creation is independent, like PyTorch's own. */
static int index_of(const void *name) {
    if (!n_streams) added(NULL, 0);
    for (int i = 0; i < n_streams; i++)
        if (streams[i].name == name) return i;
    return added(name, name == &own_stream);
}

/* The clock that the next work on a stream comes after. */
static struct ng_clock *before_next(const void *name) {
    const int own = index_of(resolved(name));
    if (streams[own].with_legacy) join(&streams[own].clock, &streams[0].clock);
    for (int i = 1; own == 0 && i < n_streams; i++)
        if (streams[i].with_legacy) join(&streams[0].clock, &streams[i].clock);
    return &streams[own].clock;
}

void ng_stream_made(const void *stream, int with_legacy) {
    NG_HOLD(lock);
    const int own = index_of(stream); /* this may move `streams` */
    streams[own].with_legacy = with_legacy;
}

void ng_moment_record(struct ng_moment *moment, const void *stream) {
    NG_HOLD(lock);
    struct ng_clock *clock = before_next(stream);
    const int own = index_of(resolved(stream));
    reach(clock, own + 1);
    clock->at[own]++;
    if (moment->clock.n) memset(moment->clock.at, 0, (size_t)moment->clock.n * sizeof *moment->clock.at);
    join(&moment->clock, clock);
    moment->stream = own + 1;
}

void ng_moment_forget(struct ng_moment *moment) {
    free(moment->clock.at);
    memset(moment, 0, sizeof *moment);
}

int ng_moment_is_over(const struct ng_moment *moment) {
    NG_HOLD(lock);
    const int own = moment->stream - 1;
    return own < 0 || at(&moment->clock, own) <= at(&host, own);
}

void ng_host_waits(const struct ng_moment *moment) {
    NG_HOLD(lock);
    join(&host, &moment->clock);
}

void ng_stream_waits(const void *stream, const struct ng_moment *moment) {
    NG_HOLD(lock);
    if (moment->stream) join(before_next(stream), &moment->clock);
}

void ng_host_waits_for_stream(const void *stream) {
    NG_HOLD(lock);
    join(&host, before_next(stream));
}

void ng_host_waits_for_all(void) {
    NG_HOLD(lock);
    for (int i = 0; i < n_streams; i++) join(&host, &streams[i].clock);
}

int ng_stream_is_over(const void *stream) {
    NG_HOLD(lock);
    const int own = index_of(resolved(stream));
    return at(&streams[own].clock, own) <= at(&host, own);
}

/* ---------------------------------------------------------------------------------------- captures */
#define MAX_CAPTURES 64 /* arbitrary: streams captured at the same time */
static struct {
    const void *stream;
    uint64_t id, began; /* ng_device_changes */
} captures[MAX_CAPTURES];
static int n_captures;

uint64_t ng_capture_id(const void *stream) {
    NG_HOLD(lock);
    for (int i = n_captures - 1; i >= 0; i--)
        if (captures[i].stream == stream) return captures[i].id;
    return 0;
}

int ng_begin_capture(const void *stream) {
    static uint64_t last_id;
    NG_HOLD(lock);
    if (n_captures == MAX_CAPTURES) return 0;
    captures[n_captures].stream = stream;
    captures[n_captures].began = ng_device_changes();
    captures[n_captures++].id = ++last_id;
    return 1;
}

uint64_t ng_end_capture(const void *stream) {
    NG_HOLD(lock);
    for (int i = 0; i < n_captures; i++)
        if (captures[i].stream == stream) {
            const uint64_t nodes = ng_device_changes() - captures[i].began;
            captures[i] = captures[--n_captures];
            return nodes;
        }
    return 0;
}
