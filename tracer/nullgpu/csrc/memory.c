/* Device memory without a device: addresses from one reserved range, exact accounts, and a card of real size.
 *
 * Rules of the driver that the caching allocator can see:
 *   - cudaMalloc and cuMemCreate charge whole 2 MiB pages against total - context, and fail with error 2 beyond that;
 *   - addresses come in chunks of a multiple of 32 MiB, from above: a new chunk takes the highest gap that fits. The rest of a
 *     chunk serves later requests, the newest chunk first; a chunk without live ranges is returned (docs/simulator.md);
 *   - reserving addresses (expandable segments) costs nothing, only mapping physical memory does;
 *   - managed memory belongs to the host: a card takes its pages when it uses them, and a full card returns them.
 */
#define _GNU_SOURCE /* dladdr */
#include "nullgpu.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES (2ull << 20)    /* spec: cuMemGetAllocationGranularity on current GPUs */
#define CHUNK_BYTES (32ull << 20)  /* measured: simulator/card.py has the same rule */
#define ARENA_BYTES (16ull << 40)  /* arbitrary: far above any card, within 47-bit addresses */
#define ARENA_HINT 0x600000000000u /* arbitrary: between the heap (0x55...) and libraries (0x7f...) of Linux on x86-64 */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* `ranges` covers every chunk without gaps, sorted by address: a range is live or free, no two free neighbours in one chunk. */
struct range {
    uint64_t address, size, chunk; /* chunks are numbered in order, from 1 */
    int live;
    int outside; /* not for PyTorch's allocator */
};
static struct range *ranges;
static size_t n_ranges, ranges_capacity;
static uint64_t arena, arena_end, n_chunks, used_bytes, ever_bytes; /* `used` is the total, `ever` only the allocator's */

static uint64_t round_up(uint64_t size) { return (size + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1); }

static void open_arena(void) {
    if (arena) return;
    void *p = mmap((void *)ARENA_HINT, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        perror("vramcast null GPU: cannot reserve the device's address range");
        abort();
    }
    arena = round_up((uint64_t)p);
    arena_end = ((uint64_t)p + ARENA_BYTES) & ~(CHUNK_BYTES - 1);
}

static int in_arena(uint64_t address) { return arena && address >= arena && address < arena_end; }

/* Index of the last range that starts at or below `address`, or -1. */
static long find(uint64_t address) {
    long low = 0, high = (long)n_ranges - 1, found = -1;
    while (low <= high) {
        const long middle = (low + high) / 2;
        if (ranges[middle].address <= address) {
            found = middle;
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    return found;
}

static void insert(size_t at, struct range r) {
    if (n_ranges == ranges_capacity) {
        ranges_capacity = ranges_capacity ? 2 * ranges_capacity : 256;
        ranges = realloc(ranges, ranges_capacity * sizeof *ranges);
        if (!ranges) abort();
    }
    memmove(ranges + at + 1, ranges + at, (n_ranges - at) * sizeof *ranges);
    ranges[at] = r;
    n_ranges++;
}

static void drop(size_t at) {
    memmove(ranges + at, ranges + at + 1, (n_ranges - at - 1) * sizeof *ranges);
    n_ranges--;
}

/* Index of the free range to serve `size`: the lowest one in the newest chunk that has one; -1: there is none. */
static long find_slack(uint64_t size) {
    long found = -1;
    for (size_t i = 0; i < n_ranges; i++)
        if (!ranges[i].live && ranges[i].size >= size && (found < 0 || ranges[i].chunk > ranges[found].chunk)) found = (long)i;
    return found;
}

/* Opens a chunk in the highest gap that fits; returns the index of its only range, or -1 if there are no addresses left. */
static long open_chunk(uint64_t size) {
    const uint64_t chunk = (size + CHUNK_BYTES - 1) & ~(CHUNK_BYTES - 1);
    uint64_t end = arena_end;
    size_t at = n_ranges;
    while (at && end - (ranges[at - 1].address + ranges[at - 1].size) < chunk) end = ranges[--at].address;
    if (!at && end - arena < chunk) return -1;
    insert(at, (struct range){end - chunk, chunk, ++n_chunks, 0, 0});
    return (long)at;
}

static uint64_t take(uint64_t size, int outside) {
    open_arena();
    long at = find_slack(size);
    if (at < 0) at = open_chunk(size);
    if (at < 0) return 0;
    if (ranges[at].size > size) {
        const struct range rest = {ranges[at].address + size, ranges[at].size - size, ranges[at].chunk, 0, 0};
        ranges[at].size = size;
        insert((size_t)at + 1, rest);
    }
    ranges[at].live = 1;
    ranges[at].outside = outside;
    return ranges[at].address;
}

static int same_chunk(size_t i, size_t k) { return i < n_ranges && k < n_ranges && ranges[i].chunk == ranges[k].chunk; }

/* Frees the live range at `address`; returns its size (0: there is none), and whether it was outside the allocator. */
static uint64_t give_back(uint64_t address, int *outside) {
    const long found = find(address);
    if (found < 0 || ranges[found].address != address || !ranges[found].live) return 0;
    size_t i = (size_t)found;
    const uint64_t size = ranges[i].size;
    *outside = ranges[i].outside;
    ranges[i].live = 0;
    if (same_chunk(i, i + 1) && !ranges[i + 1].live) {
        ranges[i].size += ranges[i + 1].size;
        drop(i + 1);
    }
    if (i && same_chunk(i, i - 1) && !ranges[i - 1].live) {
        ranges[i - 1].size += ranges[i].size;
        drop(i--);
    }
    if (!same_chunk(i, i + 1) && !(i && same_chunk(i, i - 1))) drop(i); /* the chunk is empty */
    return size;
}

/* -------------------------------------------------------------------------------- accounts */
static uint64_t outside_bytes, outside_peak_bytes, managed_bytes, managed_peak_bytes;
static char outside_by[64]; /* arbitrary: a file's name; the first library outside the allocator */

/* Whether the caller is other than PyTorch's caching allocator, which lives in libc10_cuda. */
static int is_outside(const void *caller) {
    Dl_info info;
    const char *file = dladdr(caller, &info) && info.dli_fname ? info.dli_fname : "unknown code";
    const char *slash = strrchr(file, '/');
    const char *name = slash ? slash + 1 : file;
    if (!strncmp(name, "libc10_cuda", 11)) return 0;
    if (!outside_by[0]) snprintf(outside_by, sizeof outside_by, "%s", name);
    return 1;
}

/* Total memory of the job's processes on the card, in a file of 8 bytes that nvidia-smi's stand-in reads too. */
static uint64_t own_account, *account = &own_account;
static pthread_once_t account_opened = PTHREAD_ONCE_INIT;

static void open_account(void) {
    const char *path = getenv("NULLGPU_ACCOUNT");
    const int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *p = mmap(NULL, sizeof *account, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p != MAP_FAILED) account = p;
}

static void enter(int64_t change) {
    pthread_once(&account_opened, open_account);
    __atomic_add_fetch(account, (uint64_t)change, __ATOMIC_RELAXED);
}

uint64_t ng_used_on_card(void) {
    pthread_once(&account_opened, open_account);
    return __atomic_load_n(account, __ATOMIC_RELAXED);
}

static void enter_context(void) { enter((int64_t)ng_device()->context_bytes); }

void ng_use_context(void) {
    static pthread_once_t used = PTHREAD_ONCE_INIT;
    pthread_once(&used, enter_context);
}

static int charge(uint64_t size, int outside) {
    const struct ng_device *d = ng_device();
    if (d->context_bytes + used_bytes + size > d->capacity_bytes) return NG_OUT_OF_MEMORY;
    used_bytes += size;
    enter((int64_t)size);
    if (!outside) ever_bytes += size;
    if (outside) outside_bytes += size;
    if (outside_bytes > outside_peak_bytes) outside_peak_bytes = outside_bytes;
    return 0;
}

static void uncharge(uint64_t size, int outside) {
    used_bytes -= size;
    enter(-(int64_t)size);
    if (outside) outside_bytes -= size;
}

void ng_beside(uint64_t *outside, const char **by, uint64_t *managed) {
    NG_HOLD(lock);
    *outside = outside_peak_bytes;
    *by = outside_by;
    *managed = managed_peak_bytes;
}

int ng_malloc(uint64_t *address, uint64_t size_bytes, const void *caller) {
    if (!size_bytes) {
        *address = 0;
        return 0;
    }
    if (size_bytes > ARENA_BYTES) return NG_OUT_OF_MEMORY;
    const uint64_t size = round_up(size_bytes);
    NG_HOLD(lock);
    const int outside = is_outside(caller);
    if (charge(size, outside)) return NG_OUT_OF_MEMORY;
    *address = take(size, outside);
    if (*address) return 0;
    uncharge(size, outside);
    if (!outside) ever_bytes -= size;
    return NG_OUT_OF_MEMORY;
}

int ng_free(uint64_t address) {
    if (!address) return 0;
    NG_HOLD(lock);
    int outside = 0;
    const uint64_t size = give_back(address, &outside);
    uncharge(size, outside);
    return size ? 0 : NG_INVALID_VALUE;
}

/* Memory that the driver takes after its context: for code loaded late, and for each graph that can be launched. */
static uint64_t graph_bytes, node_bytes;

static uint64_t charge_driver(uint64_t size) { /* returns what was charged: nothing if the card is full */
    if (!size || charge(size, 1)) return 0;
    if (!outside_by[0]) snprintf(outside_by, sizeof outside_by, "the driver");
    return size;
}

EXPORT void nullgpu_set_driver(uint64_t now, uint64_t a_graph, uint64_t a_node) {
    NG_HOLD(lock);
    charge_driver(now);
    graph_bytes = a_graph;
    node_bytes = a_node;
}

uint64_t ng_graph_made(uint64_t nodes) {
    NG_HOLD(lock);
    return charge_driver(graph_bytes + nodes * node_bytes);
}

void ng_graph_gone(uint64_t charged) {
    NG_HOLD(lock);
    uncharge(charged, 1);
}

void ng_memory_info(uint64_t *free_bytes, uint64_t *total_bytes) {
    const struct ng_device *d = ng_device();
    NG_HOLD(lock);
    const uint64_t taken = d->context_bytes + used_bytes;
    *total_bytes = d->total_bytes;
    *free_bytes = taken < d->total_bytes ? d->total_bytes - taken : 0;
}

EXPORT void nullgpu_taken(uint64_t *ever, uint64_t *now) {
    NG_HOLD(lock);
    *ever = ever_bytes;
    *now = used_bytes - outside_bytes;
}

int ng_reserve_range(uint64_t *address, uint64_t size_bytes) {
    if (size_bytes > ARENA_BYTES) return NG_OUT_OF_MEMORY;
    NG_HOLD(lock);
    *address = take(round_up(size_bytes), 0);
    return *address ? 0 : NG_OUT_OF_MEMORY;
}

int ng_release_range(uint64_t address) {
    NG_HOLD(lock);
    int outside = 0;
    const uint64_t size = give_back(address, &outside);
    return size ? 0 : NG_INVALID_VALUE;
}

struct physical { /* lives until it is released and nothing maps it */
    uint64_t size;
    int outside, is_released, n_maps;
};
static struct mapping {
    uint64_t address;
    struct physical *of;
    struct mapping *next;
} *mappings;

static void forget_unused(struct physical *p) {
    if (!p->is_released || p->n_maps) return;
    uncharge(p->size, p->outside);
    free(p);
}

int ng_create_physical(uint64_t *handle, uint64_t size_bytes, const void *caller) {
    NG_HOLD(lock);
    const int outside = is_outside(caller);
    const int error = charge(round_up(size_bytes), outside);
    if (error) return error;
    struct physical *p = malloc(sizeof *p);
    if (!p) abort();
    *p = (struct physical){round_up(size_bytes), outside, 0, 0};
    *handle = (uint64_t)p;
    return 0;
}

int ng_release_physical(uint64_t handle) {
    struct physical *p = (struct physical *)handle;
    NG_HOLD(lock);
    p->is_released = 1;
    forget_unused(p);
    return 0;
}

int ng_map(uint64_t address, uint64_t handle) {
    NG_HOLD(lock);
    struct mapping *m = malloc(sizeof *m);
    if (!m) abort();
    *m = (struct mapping){address, (struct physical *)handle, mappings};
    m->of->n_maps++;
    mappings = m;
    return 0;
}

int ng_unmap(uint64_t address, uint64_t size_bytes) {
    NG_HOLD(lock);
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *m = *at;
        if (m->address < address || m->address >= address + size_bytes) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        m->of->n_maps--;
        forget_unused(m->of);
        free(m);
    }
    return 0;
}

int ng_range_of(uint64_t address, uint64_t *start, uint64_t *size_bytes) {
    NG_HOLD(lock);
    const long i = find(address);
    if (i < 0 || !ranges[i].live || address >= ranges[i].address + ranges[i].size) return NG_INVALID_VALUE;
    *start = ranges[i].address;
    *size_bytes = ranges[i].size;
    return 0;
}

/* Pinned memory is real memory, but its untouched pages cost nothing. */
enum pin_kind { REGISTERED, MAPPED, MANAGED };
struct pinned {
    uint64_t address, size;
    enum pin_kind kind;
};
static struct pinned *pins;
static size_t n_pins, pins_capacity;

static void add_pin(void *address, uint64_t size_bytes, enum pin_kind kind) {
    NG_HOLD(lock);
    if (n_pins == pins_capacity) {
        pins_capacity = pins_capacity ? 2 * pins_capacity : 64;
        pins = realloc(pins, pins_capacity * sizeof *pins);
        if (!pins) abort();
    }
    pins[n_pins++] = (struct pinned){(uint64_t)address, size_bytes, kind};
    if (kind == MANAGED) managed_bytes += size_bytes;
    if (managed_bytes > managed_peak_bytes) managed_peak_bytes = managed_bytes;
}

static long find_pin(uint64_t address) {
    for (size_t i = 0; i < n_pins; i++)
        if (address >= pins[i].address && address < pins[i].address + pins[i].size) return (long)i;
    return -1;
}

static struct pinned remove_pin(void *address) {
    NG_HOLD(lock);
    const long i = find_pin((uint64_t)address);
    if (i < 0) return (struct pinned){0, 0, REGISTERED};
    const struct pinned found = pins[i];
    pins[i] = pins[--n_pins];
    if (found.kind == MANAGED) managed_bytes -= found.size;
    return found;
}

static int map_host(void **address, uint64_t size_bytes, enum pin_kind kind) {
    void *p = mmap(NULL, size_bytes ? size_bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NG_OUT_OF_MEMORY;
    add_pin(p, size_bytes ? size_bytes : 1, kind);
    *address = p;
    return 0;
}

int ng_host_malloc(void **address, uint64_t size_bytes) { return map_host(address, size_bytes, MAPPED); }
int ng_managed_malloc(void **address, uint64_t size_bytes) { return map_host(address, size_bytes, MANAGED); }

int ng_host_free(void *address) {
    const struct pinned p = remove_pin(address);
    if (p.kind == REGISTERED) return NG_INVALID_VALUE;
    munmap((void *)p.address, p.size);
    return 0;
}

void ng_host_register(void *address, uint64_t size_bytes) { add_pin(address, size_bytes, REGISTERED); }
void ng_host_unregister(void *address) { remove_pin(address); }

enum ng_place ng_place_of(uint64_t address) {
    if (in_arena(address)) return NG_DEVICE;
    NG_HOLD(lock);
    const long pin = find_pin(address);
    return pin < 0 ? NG_UNREGISTERED : pins[pin].kind == MANAGED ? NG_MANAGED : NG_HOST;
}

/* ----------------------------------------------------------------------------------- copies
 * Nothing is ever computed on the device: the host reads zeros from it, and each such read is recorded. Two things are known:
 * answers set by nullgpu_know, and uploads that are read back before anything else ran on the device. DistributedDataParallel
 * plans its buckets that way (copy, broadcast, copy back), and crashes on zeros. */
#define MAX_UPLOAD_BYTES (1ull << 20) /* = BIG_BYTES of meta_model.py: larger host tensors have no content */
static struct {
    uint64_t address, size, changes; /* valid until the device has seen further changes */
    unsigned char bytes[MAX_UPLOAD_BYTES];
} upload; /* size 0: none */

/* Answers to the host's next reads, worked out outside the job's code (vramcast.tracer.values). A read takes the next answer if
 * the sizes are equal; a read without an answer counts like any other. */
static struct {
    unsigned char *bytes;
    uint64_t *sizes;
    size_t n, next, offset;
} known;

static void drop_known(void) {
    free(known.bytes);
    free(known.sizes);
    memset(&known, 0, sizeof known);
}

EXPORT size_t nullgpu_know(const void *bytes, const uint64_t *sizes, size_t n) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) total += sizes[i];
    NG_HOLD(lock);
    const size_t untaken = known.n - known.next;
    drop_known();
    if (!n) return untaken;
    known.bytes = malloc(total ? total : 1);
    known.sizes = malloc(n * sizeof *sizes);
    if (known.bytes && known.sizes) {
        memcpy(known.bytes, bytes, total);
        memcpy(known.sizes, sizes, n * sizeof *sizes);
        known.n = n;
    } else {
        drop_known(); /* the reads give zeros, and are counted */
    }
    return untaken;
}

static int read_known(uint64_t destination, uint64_t size_bytes) {
    NG_HOLD(lock);
    if (known.next == known.n || known.sizes[known.next] != size_bytes) return 0;
    memcpy((void *)destination, known.bytes + known.offset, size_bytes);
    known.offset += size_bytes;
    known.next++;
    return 1;
}

static int read_upload(uint64_t destination, uint64_t source, uint64_t size_bytes) {
    NG_HOLD(lock);
    const int known = upload.changes == ng_device_changes() && source >= upload.address &&
                      source + size_bytes <= upload.address + upload.size;
    if (known) memcpy((void *)destination, upload.bytes + (source - upload.address), size_bytes);
    return known;
}

static void keep_upload(uint64_t destination, uint64_t source, uint64_t size_bytes) {
    NG_HOLD(lock);
    ng_device_changed();
    if (size_bytes < MAX_UPLOAD_BYTES && !in_arena(source)) {
        memcpy(upload.bytes, (const void *)source, size_bytes);
        upload.address = destination;
        upload.size = size_bytes;
        upload.changes = ng_device_changes();
    }
}

/* Zeros where there are none yet: untouched host memory gets its pages when written to, not when read. */
static void clear(unsigned char *p, uint64_t size_bytes) {
    const uint64_t step = 4096; /* spec: x86-64, the smallest page */
    while (size_bytes) {
        const uint64_t left = step - (uint64_t)p % step, n = left < size_bytes ? left : size_bytes;
        if (p[0] || memcmp(p, p + 1, n - 1)) memset(p, 0, n);
        p += n;
        size_bytes -= n;
    }
}

void ng_copy(uint64_t destination, uint64_t source, uint64_t size_bytes) {
    if (!size_bytes) return;
    if (in_arena(destination)) {
        keep_upload(destination, source, size_bytes);
    } else if (!in_arena(source)) {
        memmove((void *)destination, (const void *)source, size_bytes);
    } else if (!read_known(destination, size_bytes) && !read_upload(destination, source, size_bytes)) {
        NG_HIT(NG_READ, "device to host", size_bytes);
        clear((unsigned char *)destination, size_bytes);
    }
}

void ng_set(uint64_t destination, int value, uint64_t size_bytes) {
    if (in_arena(destination))
        ng_device_changed();
    else
        memset((void *)destination, value, size_bytes);
}
