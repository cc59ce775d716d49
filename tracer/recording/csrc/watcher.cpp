/* The facts about each allocation that PyTorch's profiler would give, noted while it happens: its operator, module and pass.
 *
 * The rules are those of `_enter` in profile.py, applied to a stack of open ranges for each thread: operators, modules, nodes of
 * autograd. Kineto keeps a kilobyte for each of them; this keeps two numbers for each allocation. watcher.py is the only caller.
 */
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <pthread.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace {

enum Field { OP, MODULE, BACKWARD, DATA, OPTIMIZER, N_FIELDS }; /* the first two are numbers of names, the others flags */
using Place = std::array<int32_t, N_FIELDS>;
using Over = std::shared_ptr<std::atomic<bool>>; /* of an asynchronous range, which any thread may end */
enum class Kind { OPERATOR, FACTORY, MODULE, DATA, OPTIMIZER, ENGINE };

struct Meaning {
    int32_t name;
    Kind kind;
};

struct Range {
    Place place;
    bool is_engine; /* the engine's range around the node that it runs */
    Over over;
};

struct Open : at::ObserverContext {
    size_t depth; /* of the stack below the range */
    std::vector<Range> *stack;
    int session;
    Over over;
};

std::mutex lock; /* for everything that follows; threads have their own stacks */
std::vector<std::string> names;
std::unordered_map<std::string, int32_t> numbers;
std::unordered_map<std::string, Meaning> meanings;
std::unordered_set<std::string> factories;
std::unordered_map<int64_t, int32_t> module_by_sequence; /* joins a node of the backward pass to its forward operator */
std::map<Place, uint32_t> place_numbers;
std::vector<Place> places;
std::vector<uint64_t> addresses;
std::vector<uint32_t> place_of;
std::atomic<int> session{0};
at::CallbackHandle handle = 0;

int32_t number_of(const std::string &name) {
    auto [at, is_new] = numbers.try_emplace(name, int32_t(names.size()));
    if (is_new) names.push_back(name);
    return at->second;
}

bool begins(const std::string &text, const char *with) { return text.rfind(with, 0) == 0; }

Meaning meaning_of(const std::string &text) {
    if (begins(text, "vramcast::")) return {number_of(text.substr(10)), Kind::MODULE};
    if (text == "vramcast:data") return {0, Kind::DATA};
    if (begins(text, "Optimizer.")) return {number_of(text.substr(0, text.find('#'))), Kind::OPTIMIZER};
    if (begins(text, "autograd::engine")) return {number_of(text.substr(text.rfind(' ') + 1)), Kind::ENGINE};
    return {number_of(text), factories.count(text) ? Kind::FACTORY : Kind::OPERATOR};
}

std::vector<Range> &stack_of_thread() {
    thread_local int of_session = 0;
    thread_local std::vector<Range> stack;
    if (of_session != session) {
        of_session = session;
        stack.clear();
    }
    while (!stack.empty() && stack.back().over && *stack.back().over) stack.pop_back();
    return stack;
}

void open_range(const at::RecordFunction &function, std::vector<Range> &stack) {
    Place place = stack.empty() ? Place{} : stack.back().place;
    thread_local std::string text;
    text = function.name();
    auto known = meanings.find(text);
    if (known == meanings.end()) known = meanings.emplace(text, meaning_of(text)).first;
    const Meaning meaning = known->second;
    const int64_t sequence = function.seqNr();
    switch (meaning.kind) {
    case Kind::MODULE: place[MODULE] = meaning.name; break;
    case Kind::DATA: place[DATA] = 1; break;
    case Kind::OPTIMIZER:
        if (!place[OP]) place[OP] = meaning.name;
        place[OPTIMIZER] = 1;
        break;
    case Kind::ENGINE: place = {meaning.name, 0, 1, place[DATA], place[OPTIMIZER]}; break;
    default:
        if (!stack.empty() && stack.back().is_engine && function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
            auto forward = module_by_sequence.find(sequence); /* the engine's range has no number: that of its node counts */
            place[MODULE] = stack.back().place[MODULE] = forward == module_by_sequence.end() ? 0 : forward->second;
        }
        if (place[MODULE] && !place[BACKWARD] && sequence >= 0) module_by_sequence.try_emplace(sequence, place[MODULE]);
        if (!place[OP] || meaning.kind != Kind::FACTORY) place[OP] = meaning.name;
    }
    const Over over = function.isAsync() ? std::make_shared<std::atomic<bool>>(false) : nullptr;
    stack.push_back({place, meaning.kind == Kind::ENGINE, over});
}

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction &function) {
    auto &stack = stack_of_thread();
    auto open = std::make_unique<Open>();
    open->depth = stack.size();
    open->stack = &stack;
    open->session = session;
    std::lock_guard<std::mutex> guard(lock);
    open_range(function, stack);
    open->over = stack.back().over;
    return open;
}

void leave(const at::RecordFunction &, at::ObserverContext *context) {
    auto *open = static_cast<Open *>(context);
    if (!open || open->session != session) return;
    if (open->over)
        *open->over = true;
    else if (open->stack == &stack_of_thread() && open->stack->size() > open->depth)
        open->stack->resize(open->depth);
}

struct State : torch::profiler::impl::ProfilerStateBase {
    using ProfilerStateBase::ProfilerStateBase;
    torch::profiler::impl::ActiveProfilerType profilerType() override { return torch::profiler::impl::ActiveProfilerType::NVTX; }
    bool memoryProfilingEnabled() const override { return false; } /* only the host's allocators ask */
    void reportMemoryUsage(void *address, int64_t size, size_t, size_t, c10::Device device) override {
        if (size <= 0 || !device.is_cuda()) return;
        auto &stack = stack_of_thread();
        const Place place = stack.empty() ? Place{} : stack.back().place;
        std::lock_guard<std::mutex> guard(lock);
        auto [at, is_new] = place_numbers.try_emplace(place, uint32_t(places.size()));
        if (is_new) places.push_back(place);
        addresses.push_back(uint64_t(address));
        place_of.push_back(at->second);
    }
};

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

/* Begins, without the notes of an earlier session; in the thread that runs the job. */
EXPORT void watcher_start(const char *const *factory_names, size_t n) {
    using namespace torch::profiler::impl;
    static std::once_flag once; /* a fork during another thread's note would inherit a lock that no one opens */
    std::call_once(once, [] { pthread_atfork([] { lock.lock(); }, [] { lock.unlock(); }, [] { lock.unlock(); }); });
    std::unique_lock<std::mutex> guard(lock);
    names.clear(), numbers.clear(), meanings.clear(), factories.clear(), module_by_sequence.clear();
    place_numbers.clear(), places.clear(), addresses.clear(), place_of.clear();
    factories.insert(factory_names, factory_names + n);
    number_of("");
    session++;
    guard.unlock();
    auto state = std::make_shared<State>(ProfilerConfig(ProfilerState::NVTX, false, true));
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, state);
    handle = at::addThreadLocalCallback(at::RecordFunctionCallback(&enter, &leave));
}

EXPORT void watcher_stop(void) {
    session++;
    at::removeCallback(handle);
    try {
        c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE);
    } catch (const c10::Error &) { /* the job has left a state of its own above ours */
    }
}

/* Returns the number of allocations; their addresses and places, and the table of these, until the next start. */
EXPORT size_t watcher_read(const uint64_t **address, const uint32_t **place, const Place **table, size_t *n_places) {
    *address = addresses.data(), *place = place_of.data(), *table = places.data(), *n_places = places.size();
    return addresses.size();
}

EXPORT const char *watcher_name(int32_t number) { return names[size_t(number)].c_str(); }
