/* The null GPU: declarations shared by all stand-in libraries.
 *
 * libcuda.so.1 holds the state (ledger.c, device.c, memory.c); libcudart, libcublas, libcudnn, ... are linked to it. Memory
 * calls keep exact accounts, launches and maths do nothing, and every call without a full answer is entered in the ledger,
 * which Python reads after the job (nullgpu_report).
 */
#ifndef NULLGPU_H
#define NULLGPU_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "ledger.h"

#if defined(__x86_64__) && defined(__GLIBC__)
/* The first versions of these functions: glibc 2.34 gave them a second one, which would keep a wheel from older systems. */
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
__asm__(".symver pthread_once, pthread_once@GLIBC_2.2.5");
#endif

#define EXPORT __attribute__((visibility("default")))
/* An entry point that does one thing and succeeds. */
#define NG_DOES(status, success, call, action) \
    EXPORT status call {                       \
        action;                                \
        return success;                        \
    }

/* Holds a lock until the end of the block. */
#define NG_HOLD(lock)                                                   \
    __attribute__((cleanup(ng_release))) pthread_mutex_t *held_ = &lock; \
    pthread_mutex_lock(held_)
static inline void ng_release(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }

/* ---- ledger (ledger.c) -------------------------------------------------------------------------------------------
 * One counter per (kind, name). A counter is a static object of its call site; it enters the list at its first hit. */
enum ng_kind {
    NG_NOOP,    /* a reviewed call without results: did nothing and succeeded              */
    NG_REFUSED, /* a call that should have returned numbers we do not have: failed loudly */
    NG_ASSUMED, /* answered with an assumed number, not NVIDIA's answer                     */
    NG_READ,    /* the host read device memory and got zeros                                */
    NG_BOUNDED, /* answered with 0, although more is possible: the ledger's bytes add up the upper limits */
    NG_COMMUNICATOR, /* a call on one of NCCL's communicators: "NUMBER/RANKS/COLOR/CALL"              */
    NG_CONTEXT,      /* the process made its context on a device: the device's number                 */
    NG_SPEED         /* whether an event has happened depends on the card's speed                     */
};
struct ng_counter {
    enum ng_kind kind;
    const char *name;
    uint64_t hits, bytes;
    int listed;
    struct ng_counter *next;
};
EXPORT void ng_hit(struct ng_counter *counter, uint64_t bytes);
#define NG_HIT(kind, name, bytes)                                  \
    do {                                                           \
        static struct ng_counter counter_ = {kind, name, 0, 0, 0, 0}; \
        ng_hit(&counter_, (uint64_t)(bytes));                      \
    } while (0)

/* Sizes that a library was given as workspace: the trace marks blocks of these sizes as workspaces. */
EXPORT void ng_workspace(uint64_t size_bytes);
/* The same by address, if the size may be a part of the block's: torch 2.13 and 2.14 give cuBLASLt a part of cuBLAS's. */
EXPORT void ng_workspace_at(const void *start);

/* Passes each line of the ledger to `line`, with `to`. */
typedef void ng_line(void *to, const char *kind, const char *name, uint64_t hits, uint64_t bytes);
void ng_list(ng_line *line, void *to);
uint64_t ng_launches(void); /* number of kernels; ng_count_launch counts one */

/* ---- device model (device.c) --------------------------------------------------------------------------------------
 * Set once per process, before the first CUDA call, from vramcast/hardware/device.py through nullgpu_configure. */
struct ng_device {
    char name[96];
    uint64_t total_bytes, context_bytes;
    uint64_t capacity_bytes; /* upper end of allocations; above total_bytes to see how much a job needs */
    int major, minor, sm_count, clock_khz, memory_clock_khz, memory_bus_bits, l2_bytes;
    int shared_per_sm_bytes, shared_per_block_optin_bytes, threads_per_sm, blocks_per_sm, device_count;
    int is_slow;     /* whether the card is infinitely slow: only work that the host waited for is done */
    int kernel_arch; /* target of the compiled kernels, 10 x major + minor: an 8.9 card runs kernels for 8.6 */
};
EXPORT const struct ng_device *ng_device(void);
/* Returns the number of cards that the process selects with CUDA_VISIBLE_DEVICES, at most those of the machine. */
EXPORT int ng_visible_count(void);
EXPORT int ng_attribute(int cuda_device_attribute);
EXPORT int ng_kernel_attribute(int cuda_function_attribute);
EXPORT int ng_blocks_per_sm(int threads_per_block, size_t dynamic_shared_bytes);
EXPORT void ng_count_launch(void);
EXPORT void *ng_new_handle(void); /* a fresh, unique, non-null handle */
EXPORT void ng_activate_context(int device); /* the runtime makes a device's primary context on first use */
EXPORT void *ng_driver_symbol(const char *name);

/* ---- work that the host knows to be done (streams.c) --------------------------------------------------------------
 * Streams are identified by their handles; without `ng_stream_made` they do not wait for the legacy default stream. */
struct ng_clock {
    uint32_t *at;
    int n;
};
struct ng_moment { /* time of an event; all zero: it was never recorded */
    struct ng_clock clock;
    int stream;
};
EXPORT void ng_stream_made(const void *stream, int with_legacy);
EXPORT uint64_t ng_capture_id(const void *stream); /* 0: it is not captured */
EXPORT int ng_begin_capture(const void *stream);    /* 0: too many at the same time */
EXPORT uint64_t ng_end_capture(const void *stream); /* returns the number of kernels and library calls since */
EXPORT void ng_moment_record(struct ng_moment *moment, const void *stream);
EXPORT void ng_moment_forget(struct ng_moment *moment);
EXPORT int ng_moment_is_over(const struct ng_moment *moment); /* on every card, because the host has waited for it */
EXPORT void ng_host_waits(const struct ng_moment *moment);
EXPORT void ng_stream_waits(const void *stream, const struct ng_moment *moment);
EXPORT void ng_host_waits_for_stream(const void *stream);
EXPORT void ng_host_waits_for_all(void);
EXPORT int ng_stream_is_over(const void *stream); /* whether all events on it are over */

/* ---- the watchdog of NCCL's groups (watchdog.c) -------------------------------------------------------------------- */
EXPORT void ng_collective(void);        /* libnccl: this thread runs one */
EXPORT void ng_group(int begins);       /* libnccl: a group of this thread's collectives begins or ends */
EXPORT int ng_records_work(void);       /* whether this thread's next event marks a collective's end; resets on each call */
struct ng_work { /* such an event, which the watchdog has not checked yet */
    const struct ng_moment *end;
    struct ng_work *next, **before;
};
EXPORT void ng_work_begin(struct ng_work *work, const struct ng_moment *end);
EXPORT int ng_work_may_be_seen(void); /* whether the watchdog may see ends now */
EXPORT void ng_works_end(void); /* libnccl: a communicator ends with its running work; PyTorch then waits for its watchdog */
EXPORT void ng_work_seen(struct ng_work *work); /* its end was seen, or will not be queried again */
/* Waits until the end of each finished collective was seen; returns how many are left when the time is up. */
EXPORT int nullgpu_await_watchdog(int limit_ms);

/* ---- memory (memory.c): 0 or a CUDA error number ------------------------------------------------------------------ */
#define NG_INVALID_VALUE 1 /* spec: CUDA driver and runtime API, CUDA_ERROR_INVALID_VALUE */
#define NG_OUT_OF_MEMORY 2 /* spec: CUDA driver and runtime API, CUDA_ERROR_OUT_OF_MEMORY */
enum ng_place { NG_UNREGISTERED, NG_HOST, NG_DEVICE, NG_MANAGED };
/* `caller`: an address in the calling code; memory from outside PyTorch's allocator is counted separately (nullgpu_outside). */
EXPORT int ng_malloc(uint64_t *address, uint64_t size_bytes, const void *caller);
EXPORT int ng_free(uint64_t address);
EXPORT void ng_memory_info(uint64_t *free_bytes, uint64_t *total_bytes);
/* The driver's memory: `now`, and from now on for each graph that can be launched and each of its nodes (vLLM's process). */
EXPORT void nullgpu_set_driver(uint64_t now, uint64_t a_graph, uint64_t a_node);
EXPORT uint64_t ng_graph_made(uint64_t nodes); /* returns the bytes charged for it */
EXPORT void ng_graph_gone(uint64_t charged);
EXPORT uint64_t ng_used_on_card(void); /* by all processes of the job, including their contexts */
EXPORT void ng_use_context(void);
EXPORT int ng_reserve_range(uint64_t *address, uint64_t size_bytes);
EXPORT int ng_release_range(uint64_t address);
EXPORT int ng_create_physical(uint64_t *handle, uint64_t size_bytes, const void *caller);
EXPORT int ng_release_physical(uint64_t handle);
EXPORT int ng_map(uint64_t address, uint64_t handle);
EXPORT int ng_unmap(uint64_t address, uint64_t size_bytes);
EXPORT int ng_range_of(uint64_t address, uint64_t *start, uint64_t *size_bytes);
EXPORT int ng_host_malloc(void **address, uint64_t size_bytes);
EXPORT int ng_managed_malloc(void **address, uint64_t size_bytes);
EXPORT int ng_host_free(void *address);
EXPORT void ng_host_register(void *address, uint64_t size_bytes);
EXPORT void ng_host_unregister(void *address);
EXPORT enum ng_place ng_place_of(uint64_t address);
EXPORT void ng_copy(uint64_t destination, uint64_t source, uint64_t size_bytes);
EXPORT void ng_device_changed(void); /* something ran on the device: its memory is now unknown */
EXPORT uint64_t ng_device_changes(void);
EXPORT void ng_executed(const void *plan);        /* a plan of cuDNN ran on the device */
EXPORT void ng_timed(uint64_t from, uint64_t to); /* the host asked for the time between two device changes */
/* Sets what is called in a search of cudnn.benchmark, once for each plan that it tries. */
EXPORT void nullgpu_on_trial(void (*callback)(void));
/* Ranks of the communicator that the next split makes: torch since 2.15 asks for them at once. 0: unknown. */
EXPORT void nullgpu_split_into(int ranks);
EXPORT int ng_next_split(void);
EXPORT void ng_set(uint64_t destination, int value, uint64_t size_bytes);
/* Sets the answers to the next n reads from the device, as consecutive bytes; returns how many answers were left from the last
 * call. n = 0: nothing is known any more. */
EXPORT size_t nullgpu_know(const void *bytes, const uint64_t *sizes, size_t n);
/* The allocator's account, in pages: bytes ever given, and those not returned yet. */
EXPORT void nullgpu_taken(uint64_t *ever, uint64_t *now);
/* Peaks outside the allocator, for the report: pages given to others, the first library that took some, bytes of managed
 * memory. */
EXPORT void ng_beside(uint64_t *outside, const char **by, uint64_t *managed);

#endif
