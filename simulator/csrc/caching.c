/* PyTorch's CUDA caching allocator over a whole list of requests: the rules of caching.py, compiled.
 *
 * One call plays one list. For each request it returns the address and the allocated and reserved bytes afterwards; it also
 * returns every segment event. No state is kept between calls or shared, so threads can play lists concurrently.
 * compiled.py is the only caller and has checked the list. tests/simulator compare the two and torch's own allocator.
 */
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rules.h"

#define EXPORT __attribute__((visibility("default")))

struct config {
    int64_t max_split, max_non_split_rounding, large_segment, allowed; /* allowed: -1 for no limit */
    int64_t total, capacity, context;
    int64_t divisions[N_INTERVALS];
    double gc_threshold;
    int64_t expandable, policy, waits, oldest_first, pools_capture, refuses_beyond_range, stop_at_oom;
};

struct level {
    int64_t current, peak;
};

struct statistics {
    struct level requested, allocated, active, reserved, inactive_split, n_allocated, n_segments, n_inactive_split;
    int64_t n_retries, n_ooms, n_device_allocs, n_device_frees;
};

struct event {
    int64_t action, request, address, size, stream;
};

struct block {
    int64_t address, size, requested, age_base, id;
    int64_t order; /* of its segment's creation, where the allocator reuses the oldest first */
    int32_t stream;
    uint8_t allocated, mapped, used; /* used: other streams may still use it */
    struct pool *pool;
    struct range *range;
    struct block *previous, *next;
};

struct range { /* the addresses of an expandable segment */
    int64_t address, size, page;
    struct range *next; /* links all ranges ever created */
};

/* Blocks come from slabs, which are freed together at the end; released blocks are reused. */
#define SLAB_BLOCKS 512 /* arbitrary: about 50 KB per slab */
struct slab {
    struct slab *next;
    struct block blocks[SLAB_BLOCKS];
};

struct entry { /* sorted: by size, order and address; unmapped blocks by address alone (size and order 0) */
    int64_t size, order, address;
    struct block *block;
};

struct list {
    struct entry *entries;
    int64_t n, room;
};

struct pool {
    int64_t owner, searches;
    int is_small, n_streams;
    struct list *free, *unmapped; /* by stream */
};

struct private_pool {
    int64_t users, n_segments;
    int freeable;
    struct pool pools[2]; /* large, small */
};

/* Addresses of one chunk, taken or free: simulator/card.py. */
struct place {
    int64_t address, size, chunk;
    int is_free;
};

struct state {
    const struct config *config;
    struct statistics *statistics;
    struct pool pools[2]; /* large, small; everything outside CUDA graphs */
    struct private_pool **private_pools;
    int64_t n_private;
    int64_t *recording;
    int64_t n_recording, recording_room;
    struct slab *slabs;
    struct range *ranges;
    int64_t slab_used;
    struct block *spare;  /* released, linked by `next` */
    struct block **live;  /* by request */
    struct block **pending;
    int64_t n_pending, pending_room;
    struct place *places; /* by address; they cover all chunks */
    int64_t n_places, places_room, n_chunks;
    int64_t used, segments, n_ordered;
    struct event *events;
    int64_t n_events, events_room;
    int64_t request; /* the current one */
    struct entry *copy; /* of a list being changed */
    jmp_buf out_of_host_memory;
};

/* ------------------------------------------------------------------------------------------------ host memory */
/* Returns the allocation. If it failed, ends the play at once; all memory belongs to the state, and `destroy` frees it. */
static void *had(struct state *s, void *memory) {
    if (!memory) longjmp(s->out_of_host_memory, 1);
    return memory;
}

/* Grows an array to hold one more element. */
static void grow(struct state *s, void **array, int64_t *room, int64_t n, size_t item) {
    if (n < *room) return;
    const int64_t wanted = *room ? 2 * *room : 64;
    *array = had(s, realloc(*array, (size_t)wanted * item));
    *room = wanted;
}

static void tell(struct state *s, enum action action, int64_t address, int64_t size, int64_t stream) {
    grow(s, (void **)&s->events, &s->events_room, s->n_events, sizeof *s->events);
    s->events[s->n_events++] = (struct event){action, s->request, address, size, stream};
}

static void add(struct level *level, int64_t amount) {
    level->current += amount;
    if (level->current > level->peak) level->peak = level->current;
}

/* -------------------------------------------------------------------------------------------------- sorted lists */
static int64_t lower_bound(const struct list *list, struct entry wanted) {
    int64_t low = 0, high = list->n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        const struct entry *e = &list->entries[middle];
        if (e->size != wanted.size ? e->size < wanted.size
            : e->order != wanted.order ? e->order < wanted.order
                                       : e->address < wanted.address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void remove_at(struct list *list, int64_t at) {
    list->n--;
    memmove(list->entries + at, list->entries + at + 1, (size_t)(list->n - at) * sizeof *list->entries);
}

static struct entry entry_of(struct block *b) {
    return (struct entry){b->mapped ? b->size : 0, b->mapped ? b->order : 0, b->address, b};
}

static struct list *like(const struct block *block) {
    return &(block->mapped ? block->pool->free : block->pool->unmapped)[block->stream];
}

/* Adds a free block, or one without memory behind it. */
static void insert(struct state *s, struct block *block) {
    struct list *list = like(block);
    block->age_base = block->pool->searches;
    grow(s, (void **)&list->entries, &list->room, list->n, sizeof *list->entries);
    const int64_t at = lower_bound(list, entry_of(block));
    memmove(list->entries + at + 1, list->entries + at, (size_t)(list->n - at) * sizeof *list->entries);
    list->entries[at] = entry_of(block);
    list->n++;
}

static void take_out(struct block *block) {
    struct list *list = like(block);
    remove_at(list, lower_bound(list, entry_of(block)));
}

/* -------------------------------------------------------------------------------------------------------- the card */
static int64_t round_up(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

static int charge(struct state *s, int64_t size) {
    const int64_t pages = round_up(size, PAGE);
    if (s->used + pages > s->config->capacity) return 0;
    s->used += pages;
    return 1;
}

static void insert_place(struct state *s, int64_t at, struct place place) {
    grow(s, (void **)&s->places, &s->places_room, s->n_places, sizeof place);
    memmove(s->places + at + 1, s->places + at, (size_t)(s->n_places - at) * sizeof place);
    s->places[at] = place;
    s->n_places++;
}

static void drop_place(struct state *s, int64_t at) {
    s->n_places--;
    memmove(s->places + at, s->places + at + 1, (size_t)(s->n_places - at) * sizeof *s->places);
}

/* Puts a chunk into the highest gap that fits; returns the index of its only place. */
static int64_t open_chunk(struct state *s, int64_t wanted) {
    const int64_t size = round_up(wanted, s->config->policy == LINUX ? CHUNK : SPAN);
    int64_t at = s->n_places, end = BASE + SPAN;
    while (at && end - (s->places[at - 1].address + s->places[at - 1].size) < size) end = s->places[--at].address;
    insert_place(s, at, (struct place){end - size, size, ++s->n_chunks, 1});
    return at;
}

static int64_t reserve(struct state *s, int64_t size) {
    const int64_t wanted = round_up(size, PAGE);
    int64_t at = -1; /* the lowest fitting place in the newest chunk that has one */
    for (int64_t i = 0; i < s->n_places; i++)
        if (s->places[i].is_free && s->places[i].size >= wanted && (at < 0 || s->places[i].chunk > s->places[at].chunk)) at = i;
    if (at < 0) at = open_chunk(s, wanted);
    const struct place found = s->places[at];
    if (found.size > wanted) insert_place(s, at + 1, (struct place){found.address + wanted, found.size - wanted, found.chunk, 1});
    s->places[at].size = wanted;
    s->places[at].is_free = 0;
    return found.address;
}

static int is_one_chunk(const struct state *s, int64_t left) {
    return left >= 0 && left < s->n_places - 1 && s->places[left].chunk == s->places[left + 1].chunk;
}

static void release(struct state *s, int64_t address) {
    int64_t at = 0, high = s->n_places;
    while (at < high) {
        const int64_t middle = (at + high) / 2;
        if (s->places[middle].address < address)
            at = middle + 1;
        else
            high = middle;
    }
    s->places[at].is_free = 1;
    if (is_one_chunk(s, at) && s->places[at + 1].is_free) {
        s->places[at].size += s->places[at + 1].size;
        drop_place(s, at + 1);
    }
    if (is_one_chunk(s, at - 1) && s->places[at - 1].is_free) {
        s->places[at - 1].size += s->places[at].size;
        drop_place(s, at--);
    }
    if (!is_one_chunk(s, at - 1) && !is_one_chunk(s, at)) drop_place(s, at); /* the chunk is empty */
}

/* ---------------------------------------------------------------------------------------------------------- blocks */
static struct block *new_block(struct state *s, int64_t address, int64_t size, int32_t stream, struct pool *pool,
                               struct range *range) {
    struct block *b = s->spare;
    if (b) {
        s->spare = b->next;
    } else {
        if (!s->slabs || s->slab_used == SLAB_BLOCKS) {
            struct slab *slab = had(s, malloc(sizeof *slab));
            slab->next = s->slabs;
            s->slabs = slab;
            s->slab_used = 0;
        }
        b = &s->slabs->blocks[s->slab_used++];
    }
    *b = (struct block){.address = address, .size = size, .stream = stream, .pool = pool, .range = range, .mapped = 1};
    return b;
}

static int64_t next_order(struct state *s) { return s->config->oldest_first ? ++s->n_ordered : 0; }

static void give_up(struct state *s, struct block *b) {
    b->next = s->spare;
    s->spare = b;
}

static int is_split(const struct block *b) { return b->previous || b->next; }
static int is_free(const struct block *b) { return !b->allocated && !b->used; }

static void link_between(struct block *before, struct block *b, struct block *after) {
    b->previous = before;
    b->next = after;
    if (before) before->next = b;
    if (after) after->previous = b;
}

/* Merges a free neighbor into `b`; returns its bytes, 0 if it cannot be merged. */
static int64_t merge(struct state *s, struct block *b, struct block *neighbour) {
    if (!neighbour || !is_free(neighbour) || neighbour->mapped != b->mapped) return 0;
    take_out(neighbour);
    if (b->previous == neighbour) {
        b->address = neighbour->address;
        b->previous = neighbour->previous;
        if (b->previous) b->previous->next = b;
    } else {
        b->next = neighbour->next;
        if (b->next) b->next->previous = b;
    }
    const int64_t size = neighbour->size;
    b->size += size;
    give_up(s, neighbour);
    return size;
}

static void free_block(struct state *s, struct block *b) {
    struct statistics *t = s->statistics;
    int64_t split_bytes = 0, n_split = 0;
    add(&t->active, -b->size);
    add(&t->requested, -b->requested);
    s->live[b->id] = NULL;
    struct block *const neighbours[2] = {b->previous, b->next};
    for (int i = 0; i < 2; i++) {
        const int64_t merged = merge(s, b, neighbours[i]);
        split_bytes -= merged;
        n_split -= merged > 0;
    }
    insert(s, b);
    if (is_split(b)) {
        split_bytes += b->size;
        n_split++;
    }
    if (!b->range) {
        add(&t->inactive_split, split_bytes);
        add(&t->n_inactive_split, n_split);
    }
}

static void complete_all(struct state *s) {
    for (int64_t i = 0; i < s->n_pending; i++) {
        s->pending[i]->used = 0;
        free_block(s, s->pending[i]);
    }
    s->n_pending = 0;
}

/* ------------------------------------------------------------------------------------------ release to the driver */
static struct private_pool *owner(const struct state *s, const struct pool *pool) {
    return pool->owner ? s->private_pools[pool->owner] : NULL;
}

static void release_segment(struct state *s, struct block *b) {
    struct statistics *t = s->statistics;
    tell(s, SEGMENT_FREE, b->address, b->size, b->stream);
    take_out(b);
    s->used -= round_up(b->size, PAGE);
    release(s, b->address);
    if (owner(s, b->pool)) owner(s, b->pool)->n_segments--;
    s->segments -= b->size;
    add(&t->reserved, -b->size);
    add(&t->n_segments, -1);
    t->n_device_frees++;
    give_up(s, b);
}

/* Unmaps the whole pages inside a free block; bytes that do not fill a page stay mapped. */
static void unmap(struct state *s, struct block *b) {
    struct range *range = b->range;
    struct pool *pool = b->pool;
    const int64_t offset = b->address - range->address;
    const int64_t begin = range->address + round_up(offset, range->page);
    const int64_t end = range->address + (offset + b->size) / range->page * range->page;
    if (begin >= end) return;
    take_out(b);
    const int64_t block_end = b->address + b->size;
    if (begin > b->address) {
        struct block *before = new_block(s, b->address, begin - b->address, b->stream, pool, range);
        before->order = b->order;
        link_between(b->previous, before, b);
        insert(s, before);
    }
    if (block_end > end) {
        struct block *after = new_block(s, end, block_end - end, b->stream, pool, range);
        after->order = b->order;
        link_between(b, after, b->next);
        insert(s, after);
    }
    b->address = begin;
    b->size = end - begin;
    b->mapped = 0;
    merge(s, b, b->previous);
    merge(s, b, b->next);
    insert(s, b);
    const int64_t size = end - begin;
    s->used -= size / range->page * round_up(range->page, PAGE);
    if (owner(s, pool)) owner(s, pool)->n_segments--;
    s->segments -= size;
    add(&s->statistics->reserved, -size);
    s->statistics->n_device_frees++;
    tell(s, SEGMENT_UNMAP, begin, size, b->stream);
    if (!is_split(b)) {
        take_out(b);
        release(s, range->address);
        give_up(s, b);
    }
}

static void release_pool_blocks(struct state *s, struct pool *pool) {
    for (int stream = 0; stream < pool->n_streams; stream++) {
        struct list *list = &pool->free[stream];
        /* Releasing changes the list: walk over a copy. */
        const int64_t n = list->n;
        if (!n) continue;
        struct entry *copy = s->copy = had(s, realloc(s->copy, (size_t)n * sizeof *copy));
        memcpy(copy, list->entries, (size_t)n * sizeof *copy);
        for (int64_t i = 0; i < n; i++) {
            if (copy[i].block->range)
                unmap(s, copy[i].block);
            else if (!is_split(copy[i].block))
                release_segment(s, copy[i].block);
        }
    }
}

static void release_cached(struct state *s) {
    complete_all(s);
    release_pool_blocks(s, &s->pools[0]);
    release_pool_blocks(s, &s->pools[1]);
    for (int64_t i = 1; i < s->n_private; i++) {
        struct private_pool *p = s->private_pools[i];
        if (!p || !p->freeable) continue;
        release_pool_blocks(s, &p->pools[1]);
        release_pool_blocks(s, &p->pools[0]);
        if (!p->n_segments) p->freeable = 0;
    }
}

/* Releases as many unsplittable blocks as the request needs; returns whether they were enough. */
static int release_oversize(struct state *s, struct pool *pool, int64_t size, int32_t stream) {
    const int64_t limit = s->config->max_split;
    /* torch 2.11 stops here with an internal error if segments are expandable. */
    if (limit == INT64_MAX || s->config->expandable) return 0;
    const int64_t wanted = size > limit ? size : limit;
    struct list *list = &pool->free[stream];
    const int64_t at = lower_bound(list, (struct entry){.size = wanted});
    if (at < list->n) {
        release_segment(s, list->entries[at].block);
        return 1;
    }
    int64_t released = 0;
    while (list->n && released < wanted && list->entries[list->n - 1].size >= limit) {
        released += list->entries[list->n - 1].size;
        release_segment(s, list->entries[list->n - 1].block);
    }
    return released >= wanted;
}

/* Releases unused large segments, starting with those passed over more often than the average. */
static void collect_garbage(struct state *s) {
    const int64_t target = s->segments - (int64_t)(s->config->gc_threshold * (double)s->config->allowed);
    struct pool *pool = &s->pools[0];
    int64_t age = 0, n = 0, reclaimed = 0;
    if (target <= 0) return;
    for (int stream = 0; stream < pool->n_streams; stream++)
        for (int64_t i = 0; i < pool->free[stream].n; i++) {
            const struct block *b = pool->free[stream].entries[i].block;
            if (is_split(b)) continue;
            age += pool->searches - b->age_base;
            n++;
        }
    for (int freed = 1; freed && n && reclaimed < target;) {
        const double threshold = (double)age / (double)n;
        freed = 0;
        for (int stream = 0; stream < pool->n_streams; stream++)
            for (int64_t i = 0; i < pool->free[stream].n;) {
                struct block *b = pool->free[stream].entries[i].block;
                const int64_t own_age = pool->searches - b->age_base;
                if (is_split(b) || (double)own_age < threshold) {
                    i++;
                    continue;
                }
                freed = 1;
                age -= own_age;
                n--;
                reclaimed += b->size;
                release_segment(s, b); /* the next one is at `i` now */
            }
    }
}

/* ------------------------------------------------------------------------------------------- expandable segments */
/* Maps memory to the first `size` bytes of an unmapped block, in whole pages; returns whether there was enough. */
static int map(struct state *s, struct block *b, int64_t size) {
    const int64_t page = b->range->page, mapped = round_up(size, page);
    if (s->used + mapped / page * round_up(page, PAGE) > s->config->capacity) return 0;
    take_out(b);
    if (mapped < b->size) {
        struct block *rest = new_block(s, b->address + mapped, b->size - mapped, b->stream, b->pool, b->range);
        rest->mapped = 0;
        rest->order = b->order;
        link_between(b, rest, b->next);
        insert(s, rest);
        b->size = mapped;
    }
    s->used += mapped / page * round_up(page, PAGE);
    b->mapped = 1;
    const int64_t address = b->address;
    merge(s, b, b->previous);
    merge(s, b, b->next);
    insert(s, b);
    s->segments += mapped;
    add(&s->statistics->reserved, mapped);
    s->statistics->n_device_allocs++;
    tell(s, SEGMENT_MAP, address, mapped, b->stream);
    return 1;
}

/* Returns the lowest block, free or unmapped, that starts a stretch of enough addresses without an allocated block. */
static struct block *find_addresses(struct state *s, struct pool *pool, int64_t size, int32_t stream) {
    const struct list *unmapped = &pool->unmapped[stream];
    for (int64_t i = 0; i < unmapped->n; i++) {
        struct block *first = unmapped->entries[i].block;
        if (first->previous && is_free(first->previous)) first = first->previous;
        int64_t found = 0;
        for (const struct block *b = first; b && found < size && is_free(b); b = b->next) found += b->size;
        if (found >= size) return first;
    }
    /* A ninth more than the card: pages released early in the range may be needed again at its end. */
    const int64_t page = pool->is_small ? SMALL_SEGMENT : s->config->large_segment;
    const int64_t all = round_up(s->config->total + s->config->total / 8, page);
    if (size > all && s->config->refuses_beyond_range) return NULL;
    const int64_t address = reserve(s, all);
    struct range *range = had(s, malloc(sizeof *range));
    *range = (struct range){.address = address, .size = all, .page = page, .next = s->ranges};
    s->ranges = range;
    struct block *b = new_block(s, range->address, range->size, stream, pool, range);
    b->order = next_order(s);
    b->mapped = 0;
    insert(s, b);
    return b;
}

static struct block *expand(struct state *s, struct pool *pool, int64_t size, int32_t stream) {
    struct block *b = find_addresses(s, pool, size, stream);
    if (!b) return NULL;
    if (!b->mapped && !map(s, b, b->size < size ? b->size : size)) return NULL;
    while (b->size < size) {
        struct block *next = b->next;
        if (!next) return NULL; /* larger than the whole range: torch does not expect that */
        const int64_t missing = size - b->size;
        if (!map(s, next, missing < next->size ? missing : next->size)) return NULL;
        b = next; /* it has absorbed the free block before it */
    }
    if (owner(s, pool)) owner(s, pool)->n_segments++;
    take_out(b);
    return b;
}

/* ------------------------------------------------------------------------------------------------ serving a request */
static int64_t round_request(const struct config *c, int64_t size) {
    if (size < MIN_BLOCK) return MIN_BLOCK;
    const int log2 = 63 - __builtin_clzll((uint64_t)size);
    int interval = log2 - 20; /* 1 MiB is 2**20 */
    if (interval < 0) interval = 0;
    if (interval >= N_INTERVALS) interval = N_INTERVALS - 1;
    const int64_t divisions = c->divisions[interval];
    if (divisions > 1 && size > MIN_BLOCK * divisions) {
        const int64_t power = 1ll << log2, step = power / divisions;
        return round_up(size, step);
    }
    return round_up(size, MIN_BLOCK);
}

static int64_t segment_size(const struct config *c, int64_t size) {
    if (size <= SMALL) return SMALL_SEGMENT;
    return size < MIN_LARGE ? c->large_segment : round_up(size, ROUND_LARGE);
}

static int collects_garbage(const struct config *c) { return c->allowed >= 0 && c->gc_threshold > 0; }

static int64_t growable(const struct block *b) { return b->size + (b->next && !b->next->mapped ? b->next->size : 0); }

/* Removes the best fitting free block from its pool and returns it. */
static struct block *find(struct state *s, struct pool *pool, int64_t size, int32_t stream) {
    const struct config *c = s->config;
    struct list *list = &pool->free[stream];
    if (collects_garbage(c)) pool->searches++;
    int64_t at = lower_bound(list, (struct entry){.size = size});
    if (at == list->n) return NULL;
    if (c->expandable)
        while (at + 1 < list->n && growable(list->entries[at + 1].block) < growable(list->entries[at].block)) at++;
    struct block *b = list->entries[at].block;
    if (size < c->max_split ? b->size >= c->max_split : b->size >= size + c->max_non_split_rounding) return NULL;
    remove_at(list, at);
    return b;
}

static struct block *new_segment(struct state *s, struct pool *pool, int64_t size, int32_t stream) {
    const struct config *c = s->config;
    const int64_t segment = segment_size(c, size);
    if (c->allowed >= 0 && s->segments + segment > c->allowed) return NULL;
    if (c->expandable) return expand(s, pool, size, stream);
    if (!charge(s, segment)) return NULL;
    struct block *b = new_block(s, reserve(s, segment), segment, stream, pool, NULL);
    b->order = next_order(s);
    if (owner(s, pool)) owner(s, pool)->n_segments++;
    s->segments += segment;
    add(&s->statistics->reserved, segment);
    add(&s->statistics->n_segments, 1);
    s->statistics->n_device_allocs++;
    tell(s, SEGMENT_ALLOC, b->address, segment, stream);
    return b;
}

/* Ensures that the pool has lists for the stream. */
static void add_streams(struct state *s, struct pool *pool, int32_t stream) {
    while (pool->n_streams <= stream) {
        const size_t n = (size_t)pool->n_streams + 1;
        pool->free = had(s, realloc(pool->free, n * sizeof *pool->free));
        pool->unmapped = had(s, realloc(pool->unmapped, n * sizeof *pool->unmapped));
        memset(pool->free + pool->n_streams, 0, sizeof *pool->free);
        memset(pool->unmapped + pool->n_streams, 0, sizeof *pool->unmapped);
        pool->n_streams++;
    }
}

static void fail(struct state *s, int64_t size, int32_t stream) {
    const int64_t left = s->config->total - s->config->context - s->used;
    s->statistics->n_ooms++;
    tell(s, OOM, left > 0 ? left : 0, size, stream);
}

/* Takes card memory for something other than the allocator; the allocator's cache does not make room for it. */
static int take(struct state *s, int64_t size) {
    if (s->used + size > s->config->capacity) {
        fail(s, size, 0);
        return 0;
    }
    s->used += size;
    return 1;
}

static struct block *serve(struct state *s, int64_t requested, int32_t stream) {
    const struct config *c = s->config;
    struct statistics *t = s->statistics;
    const int captures = s->n_recording && c->pools_capture;
    if (!captures && !c->waits) complete_all(s);
    const int64_t size = round_request(c, requested);
    struct pool *pools = s->n_recording ? s->private_pools[s->recording[0]]->pools : s->pools;
    struct pool *pool = &pools[size <= SMALL];
    add_streams(s, pool, stream);
    struct block *b = find(s, pool, size, stream);
    if (!b) {
        if (collects_garbage(c)) collect_garbage(s);
        b = new_segment(s, pool, size, stream);
        if (!b && release_oversize(s, pool, size, stream)) b = new_segment(s, pool, size, stream);
        if (!b && !captures) {
            release_cached(s);
            t->n_retries++;
            b = new_segment(s, pool, size, stream);
        }
        if (!b) {
            fail(s, size, stream);
            return NULL;
        }
    }
    const int64_t remaining = b->size - size;
    const int was_split = is_split(b);
    const int split =
        pool->is_small || c->expandable ? remaining >= MIN_BLOCK : size < c->max_split && remaining > SMALL;
    if (split) {
        struct block *rest = b;
        b = new_block(s, rest->address, size, stream, pool, rest->range);
        b->order = rest->order;
        link_between(rest->previous, b, rest);
        rest->address += size;
        rest->size -= size;
        insert(s, rest);
        if (!b->range) {
            add(&t->inactive_split, was_split ? -size : rest->size);
            add(&t->n_inactive_split, !was_split);
        }
    } else if (was_split && !b->range) {
        add(&t->inactive_split, -b->size);
        add(&t->n_inactive_split, -1);
    }
    b->allocated = 1;
    b->requested = requested;
    b->id = s->request;
    s->live[b->id] = b;
    add(&t->n_allocated, 1);
    add(&t->allocated, b->size);
    add(&t->active, b->size);
    add(&t->requested, requested);
    return b;
}

static void take_back(struct state *s, struct block *b) {
    b->allocated = 0;
    add(&s->statistics->n_allocated, -1);
    add(&s->statistics->allocated, -b->size);
    if (!b->used) {
        free_block(s, b);
    } else {
        grow(s, (void **)&s->pending, &s->pending_room, s->n_pending, sizeof *s->pending);
        s->pending[s->n_pending++] = b;
    }
}

static void complete(struct state *s, struct block *b) {
    for (int64_t i = 0; i < s->n_pending; i++) {
        if (s->pending[i] != b) continue;
        s->n_pending--;
        memmove(s->pending + i, s->pending + i + 1, (size_t)(s->n_pending - i) * sizeof *s->pending);
        b->used = 0;
        free_block(s, b);
        return;
    }
}

static void begin_pool(struct state *s, int64_t id) {
    grow(s, (void **)&s->recording, &s->recording_room, s->n_recording, sizeof *s->recording);
    struct private_pool *p = s->private_pools[id];
    if (!p) {
        p = had(s, calloc(1, sizeof *p));
        p->pools[0].owner = p->pools[1].owner = id;
        p->pools[1].is_small = 1;
        s->private_pools[id] = p;
    }
    p->users++;
    s->recording[s->n_recording++] = id;
}

static void end_pool(struct state *s, int64_t id) {
    int64_t at = 0;
    while (s->recording[at] != id) at++;
    s->n_recording--;
    memmove(s->recording + at, s->recording + at + 1, (size_t)(s->n_recording - at) * sizeof *s->recording);
}

static void destroy_lists(struct pool *pool) {
    for (int i = 0; i < pool->n_streams; i++) {
        free(pool->free[i].entries);
        free(pool->unmapped[i].entries);
    }
    free(pool->free);
    free(pool->unmapped);
}

static void destroy(struct state *s) {
    for (struct slab *slab = s->slabs, *next; slab; slab = next) {
        next = slab->next;
        free(slab);
    }
    for (struct range *range = s->ranges, *next; range; range = next) {
        next = range->next;
        free(range);
    }
    for (int k = 0; k < 2; k++) destroy_lists(&s->pools[k]);
    for (int64_t p = 0; s->private_pools && p < s->n_private; p++)
        if (s->private_pools[p]) {
            for (int k = 0; k < 2; k++) destroy_lists(&s->private_pools[p]->pools[k]);
            free(s->private_pools[p]);
        }
    free(s->private_pools);
    free(s->recording);
    free(s->copy);
    free(s->live);
    free(s->pending);
    free(s->places);
}

/* One list of requests, as columns; `block` is the row of the MALLOC that the request refers to. */
struct requests {
    int64_t n, n_pools; /* pools are numbered from 1 to n_pools - 1 */
    const uint8_t *kind;
    const int64_t *size; /* bytes of a MALLOC, or number of a pool */
    const int32_t *stream;
    const int64_t *block;
};

/* The outcome. Columns may be NULL; events are malloc'd, and the caller passes them to caching_free. */
struct outcome {
    int64_t *address;    /* of a MALLOC, -1 if it failed */
    int64_t *block_size; /* of its block */
    int64_t *allocated, *active, *reserved; /* after each request */
    struct event *events;
    int64_t n_events;
    int64_t stopped_at; /* the first MALLOC that failed, -1 for none */
    struct statistics statistics;
};

static void play(struct state *s, const struct requests *r, struct outcome *o) {
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t size = r->size[i];
        struct block *b = r->block[i] < 0 ? NULL : s->live[r->block[i]];
        s->request = i;
        switch ((enum request)r->kind[i]) {
        case MALLOC:
        case TRY:
            b = serve(s, size, r->stream[i]);
            if (o->address) o->address[i] = b ? b->address : -1;
            if (o->block_size) o->block_size[i] = b ? b->size : 0;
            if (b || r->kind[i] == TRY) break;
            if (o->stopped_at < 0) o->stopped_at = i;
            if (s->config->stop_at_oom) return;
            break;
        case TAKE:
            if (take(s, size)) break;
            if (o->block_size) o->block_size[i] = 0;
            if (o->stopped_at < 0) o->stopped_at = i;
            if (s->config->stop_at_oom) return;
            break;
        case RETIRE:
            if (b && b->allocated) b->used = 1;
            /* fall through */
        case FREE:
            if (b && b->allocated) take_back(s, b);
            break;
        case COMPLETE:
            if (b && !b->allocated) complete(s, b);
            break;
        case RECORD:
            if (b && b->allocated && r->stream[i] != b->stream) b->used = 1;
            break;
        case EMPTY: release_cached(s); break;
        case BEGIN_POOL: begin_pool(s, size); break;
        case END_POOL: end_pool(s, size); break;
        case RELEASE_POOL:
            if (!--s->private_pools[size]->users) s->private_pools[size]->freeable = 1;
            break;
        }
        if (o->allocated) o->allocated[i] = s->statistics->allocated.current;
        if (o->active) o->active[i] = s->statistics->active.current;
        if (o->reserved) o->reserved[i] = s->statistics->reserved.current;
    }
}

/* Returns 1 if the host runs out of memory. */
static int play_guarded(struct state *s, const struct requests *r, struct outcome *o) {
    if (setjmp(s->out_of_host_memory)) return 1;
    s->live = had(s, calloc((size_t)r->n + 1, sizeof *s->live));
    s->private_pools = had(s, calloc((size_t)r->n_pools + 1, sizeof *s->private_pools));
    play(s, r, o);
    return 0;
}

/* Plays the requests from an empty allocator; returns 0, or 1 if the host ran out of memory. */
EXPORT int caching_play(const struct config *config, const struct requests *requests, struct outcome *outcome);
int caching_play(const struct config *config, const struct requests *requests, struct outcome *outcome) {
    struct state s = {.config = config, .statistics = &outcome->statistics, .n_private = requests->n_pools};
    s.pools[1].is_small = 1;
    memset(&outcome->statistics, 0, sizeof outcome->statistics);
    outcome->stopped_at = -1;
    const int failed = play_guarded(&s, requests, outcome);
    outcome->events = s.events;
    outcome->n_events = s.n_events;
    destroy(&s);
    return failed;
}

EXPORT void caching_free(struct event *events);
void caching_free(struct event *events) { free(events); }
