/* Checks the work done on an infinitely slow card: only work that the host has waited for. Every line must hold; with an
 * argument, the card is infinitely fast, and all work is done. */
#include "check.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>

static cudaError_t not_yet;

static cudaEvent_t recorded(cudaStream_t stream) {
    cudaEvent_t event;
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
    CHECK(cudaEventRecord(event, stream) == cudaSuccess);
    return event;
}

static cudaStream_t made(unsigned int flags) {
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, flags) == cudaSuccess);
    return stream;
}

#define OVER(event) CHECK(cudaEventQuery(event) == cudaSuccess)
#define NOT_YET(event) CHECK(cudaEventQuery(event) == not_yet)

static void an_event_is_over_when_the_host_has_waited_for_it_or_for_a_later_one(void) {
    cudaStream_t stream = made(cudaStreamNonBlocking);
    cudaEvent_t never, first = recorded(stream), second = recorded(stream), third = recorded(stream);
    CHECK(cudaEventCreate(&never) == cudaSuccess);
    OVER(never);
    NOT_YET(first);
    CHECK(cudaGetLastError() == not_yet);
    CHECK(cudaEventSynchronize(second) == cudaSuccess);
    OVER(first);
    OVER(second);
    NOT_YET(third);
    CHECK(cudaEventRecord(first, stream) == cudaSuccess); /* again: it now covers later work */
    NOT_YET(first);
    CHECK(cudaEventDestroy(third) == cudaSuccess);
    CHECK(cudaStreamQuery(stream) == not_yet);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
    OVER(first);
    CHECK(cudaStreamQuery(stream) == cudaSuccess);
}

static void a_stream_comes_after_the_events_which_it_waits_for(void) {
    cudaStream_t a = made(cudaStreamNonBlocking), b = made(cudaStreamNonBlocking), c = made(cudaStreamNonBlocking);
    cudaEvent_t of_a = recorded(a), later_of_a;
    CHECK(cudaStreamWaitEvent(b, of_a, 0) == cudaSuccess);
    cudaEvent_t of_b = recorded(b);
    CHECK(cudaStreamWaitEvent(c, of_b, 0) == cudaSuccess);
    later_of_a = recorded(a);
    CHECK(cudaStreamSynchronize(c) == cudaSuccess); /* without an event of its own */
    OVER(of_b);
    OVER(of_a);
    NOT_YET(later_of_a);
    CHECK(cudaEventRecord(of_a, b) == cudaSuccess); /* an event goes to another stream */
    CHECK(cudaStreamSynchronize(a) == cudaSuccess);
    OVER(later_of_a);
    NOT_YET(of_a);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    OVER(of_a);
}

static void the_legacy_stream_and_streams_which_block_wait_for_each_other(void) {
    cudaStream_t blocking = made(cudaStreamDefault), apart = made(cudaStreamNonBlocking);
    cudaEvent_t of_blocking = recorded(blocking), of_apart = recorded(apart), of_legacy = recorded(NULL);
    CHECK(cudaStreamSynchronize(cudaStreamLegacy) == cudaSuccess);
    OVER(of_legacy);
    OVER(of_blocking);
    NOT_YET(of_apart);
    of_legacy = recorded(cudaStreamLegacy);
    NOT_YET(of_legacy);
    CHECK(cudaStreamSynchronize(apart) == cudaSuccess);
    NOT_YET(of_legacy);
    CHECK(cudaStreamSynchronize(blocking) == cudaSuccess);
    OVER(of_legacy);
    of_legacy = recorded(NULL);
    char host[4] = {0};
    CHECK(cudaMemcpy(host, host, sizeof host, cudaMemcpyHostToHost) == cudaSuccess); /* waits on the legacy stream */
    OVER(of_legacy);
}

static void *on_another_thread(void *event) {
    return (void *)(intptr_t)(cudaEventRecord(*(cudaEvent_t *)event, cudaStreamPerThread) == cudaSuccess);
}

static void each_thread_has_a_default_stream_of_its_own(void) {
    pthread_t thread;
    void *is_recorded;
    cudaEvent_t mine = recorded(cudaStreamPerThread), theirs;
    CHECK(cudaEventCreate(&theirs) == cudaSuccess);
    CHECK(!pthread_create(&thread, NULL, on_another_thread, &theirs) && !pthread_join(thread, &is_recorded) && is_recorded);
    CHECK(cudaStreamSynchronize(cudaStreamPerThread) == cudaSuccess);
    OVER(mine);
    NOT_YET(theirs);
    CHECK(cudaStreamSynchronize(NULL) == cudaSuccess); /* waits for all of them */
    OVER(theirs);
}

static void many_streams_are_told_apart(void) {
    cudaStream_t streams[100];
    cudaEvent_t events[100];
    for (int i = 0; i < 100; i++) events[i] = recorded(streams[i] = made(cudaStreamNonBlocking));
    CHECK(cudaEventSynchronize(events[40]) == cudaSuccess);
    for (int i = 0; i < 100; i++) CHECK(cudaEventQuery(events[i]) == (i == 40 ? cudaSuccess : not_yet));
    for (int i = 0; i < 100; i++) CHECK(cudaEventDestroy(events[i]) == cudaSuccess);
}

int main(int argc, char **argv) {
    (void)argv;
    not_yet = argc > 1 ? cudaSuccess : cudaErrorNotReady;
    an_event_is_over_when_the_host_has_waited_for_it_or_for_a_later_one();
    a_stream_comes_after_the_events_which_it_waits_for();
    the_legacy_stream_and_streams_which_block_wait_for_each_other();
    each_thread_has_a_default_stream_of_its_own();
    many_streams_are_told_apart();
    puts("all lines hold");
    return 0;
}
