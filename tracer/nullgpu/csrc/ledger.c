/* The ledger: calls that were not fully answered, and their number. See nullgpu.h. */
#include "nullgpu.h"

#include <stdio.h>
#include <string.h>

static pthread_mutex_t ledger_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ng_counter *ledger;
static uint64_t launches;

static uint64_t changes;

void ng_device_changed(void) { __atomic_add_fetch(&changes, 1, __ATOMIC_RELAXED); }
uint64_t ng_device_changes(void) { return __atomic_load_n(&changes, __ATOMIC_RELAXED); }

/* A search of cudnn.benchmark runs each plan twice and times the second run (cudnn_frontend_find_plan.h, time_sorted_plan). */
static void (*on_trial)(void);
static __thread const void *executed; /* the plan that ran last on this thread */
static __thread uint64_t executed_at, is_repeated; /* is_repeated: nothing else ran between its last two runs */

EXPORT void nullgpu_on_trial(void (*callback)(void)) { on_trial = callback; }

void ng_executed(const void *plan) {
    const uint64_t now = __atomic_add_fetch(&changes, 1, __ATOMIC_RELAXED);
    is_repeated = plan == executed && now == executed_at + 1;
    executed = plan;
    executed_at = now;
}

void ng_timed(uint64_t from, uint64_t to) {
    if (is_repeated && on_trial && to == executed_at && from + 1 == to) on_trial();
}

static int next_split;

void nullgpu_split_into(int ranks) { __atomic_store_n(&next_split, ranks, __ATOMIC_RELAXED); }
int ng_next_split(void) { return __atomic_exchange_n(&next_split, 0, __ATOMIC_RELAXED); }

/* A library's mathematics changes device memory; synchronization does not, nor do collectives of equal ranks or settings. */
static int changes_memory(const struct ng_counter *c) {
    static const char *const settings[] = {"Attribute", "Descriptor", "SetStream", "estroy"};
    if (c->kind != NG_NOOP || !strncmp(c->name, "nccl", 4) || !strncmp(c->name, "cuda", 4)) return 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        if (strstr(c->name, settings[i])) return 0;
    return 1;
}

void ng_hit(struct ng_counter *counter, uint64_t bytes) {
    if (changes_memory(counter)) ng_device_changed();
    NG_HOLD(ledger_lock);
    if (!counter->listed) {
        counter->listed = 1;
        counter->next = ledger;
        ledger = counter;
        if (counter->kind == NG_REFUSED)
            fprintf(stderr, "vramcast null GPU: %s is not implemented and must return a result: refused\n", counter->name);
    }
    counter->hits++;
    counter->bytes += bytes;
}

#define MAX_WORKSPACE_SIZES 4096 /* arbitrary: distinct sizes in one job; more are counted as one */
static uint64_t workspace_sizes[MAX_WORKSPACE_SIZES];
static size_t n_workspace_sizes;

void ng_workspace(uint64_t size_bytes) {
    size_t i = 0;
    if (!size_bytes) return;
    NG_HOLD(ledger_lock);
    while (i < n_workspace_sizes && workspace_sizes[i] != size_bytes) i++;
    if (i == n_workspace_sizes && i < MAX_WORKSPACE_SIZES) workspace_sizes[n_workspace_sizes++] = size_bytes;
}

#define MAX_WORKSPACES 1024 /* arbitrary: about one per thread and stream; further ones are not marked */
static uint64_t workspaces[MAX_WORKSPACES];
static size_t n_workspaces;

void ng_workspace_at(const void *start) {
    size_t i = 0;
    if (!start) return;
    NG_HOLD(ledger_lock);
    while (i < n_workspaces && workspaces[i] != (uint64_t)start) i++;
    if (i == n_workspaces && i < MAX_WORKSPACES) workspaces[n_workspaces++] = (uint64_t)start;
}

/* Gives the addresses passed to ng_workspace_at so far; returns their number. */
EXPORT size_t nullgpu_workspaces(const uint64_t **starts) {
    *starts = workspaces;
    return n_workspaces;
}

void ng_count_launch(void) {
    __atomic_add_fetch(&launches, 1, __ATOMIC_RELAXED);
    ng_device_changed();
}

uint64_t ng_launches(void) { return __atomic_load_n(&launches, __ATOMIC_RELAXED); }

void ng_list(ng_line *line, void *to) {
    static const char *const kinds[] = {"noop", "refused", "assumed", "read", "bounded", "communicator", "context", "speed"};
    NG_HOLD(ledger_lock);
    for (const struct ng_counter *c = ledger; c; c = c->next) line(to, kinds[c->kind], c->name, c->hits, c->bytes);
    for (size_t i = 0; i < n_workspace_sizes; i++) line(to, "workspace", "size", 1, workspace_sizes[i]);
}
