/* Checks by PyTorch's watchdog of NCCL's groups.
 *
 * A collective keeps its tensors alive until the watchdog, a thread that checks every 100 ms, has seen its end. A step on a
 * card takes longer than that, one on the null GPU does not, so peaks would depend on the speed of this machine. Therefore the
 * tracer waits for the watchdog after each step (nullgpu_await_watchdog). The watchdog calls cudaEventQuery on the event that
 * the collective's thread recorded after it, or after its group.
 *
 * On an infinitely slow card it checks only at that time, and sees the ends that the host has waited for; a real watchdog could
 * be later only if a step takes less than its period.
 * Source: torch 2.11, ProcessGroupNCCL::Watchdog::runLoop, kWatchdogThreadSleepMillis; WorkNCCL's stashed tensors.
 */
#include <errno.h>
#include <time.h>

#include "nullgpu.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_seen = PTHREAD_COND_INITIALIZER;
static struct ng_work *works;
static int gave_up, is_awaited;
static __thread int depth, has_ended;

void ng_group(int begins) {
    depth += begins ? 1 : -1;
    has_ended = !begins && depth == 0;
}

void ng_collective(void) { has_ended = depth == 0; }

int ng_records_work(void) {
    const int answer = has_ended;
    has_ended = 0;
    return answer;
}

void ng_work_begin(struct ng_work *work, const struct ng_moment *end) {
    NG_HOLD(lock);
    work->end = end;
    work->next = works;
    work->before = &works;
    if (works) works->before = &work->next;
    works = work;
}

void ng_work_seen(struct ng_work *work) {
    NG_HOLD(lock);
    if (work->before) {
        *work->before = work->next;
        if (work->next) work->next->before = work->before;
        work->before = NULL;
        pthread_cond_broadcast(&all_seen);
    }
}

int ng_work_may_be_seen(void) {
    NG_HOLD(lock);
    return !ng_device()->is_slow || is_awaited;
}

void ng_works_end(void) {
    ng_host_waits_for_all();
    NG_HOLD(lock);
    is_awaited = 1; /* until the next wait for the watchdog */
}

/* Number of finished collectives that the watchdog has not seen. */
static int waiting(void) {
    int n = 0;
    for (const struct ng_work *work = works; work; work = work->next) n += !ng_device()->is_slow || ng_moment_is_over(work->end);
    return n;
}

int nullgpu_await_watchdog(int limit_ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += limit_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
    NG_HOLD(lock);
    is_awaited = 1;
    while (waiting() > 0 && !gave_up)
        if (pthread_cond_timedwait(&all_seen, &lock, &until) == ETIMEDOUT) gave_up = 1; /* this job's groups have none */
    is_awaited = 0;
    return waiting();
}
