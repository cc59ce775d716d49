// A CUDAAllocator that serves a plan's requests from one arena, and forwards all others to PyTorch's own allocator.
//
//   request -> planned place, free now, default stream, no graph capture?   yes: there
//                                      no: memory that is taken already: a hole of the arena if the plan has no such request,
//                                          or an idle block of the native allocator; only then new memory, from the latter,
//                                          for which the arena gives back pages that no block is in
//
// The plan only proposes places. What lives is known here, and a place is given only if nothing lives there: a wrong proposal
// costs memory, never correctness. Compiled against the headers of the job's own torch; ctypes calls the functions at the end.
#include <c10/core/Allocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "arena.h"
#include "meter.h"
#include "pages.h"
#include "sequence.h"

namespace cca = c10::cuda::CUDACachingAllocator;
using c10::DataPtr;
using c10::DeviceIndex;
using Native = cca::CUDAAllocator;
using Pool = c10::cuda::MempoolId_t;
#define AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= (minor)))

namespace {
constexpr int64_t kAlign = 512;      // spec: alignment of PyTorch's CUDA blocks
constexpr int64_t kSmall = 1 << 20;  // spec: the native allocator serves these from segments of 2 MiB
constexpr int64_t kWaste = 4;        // arbitrary: a native block of that many times the request stays whole for larger ones
constexpr int64_t kPatience = 256;   // arbitrary: requests outside the plan, after which its first steps are not expected
constexpr int64_t kLarge = 10 << 20;    // spec: from here on, the native allocator's segments are as large as the request
constexpr int64_t kSparePercent = 5;    // arbitrary: new memory of the native allocator, of the arena, that costs no pages

void free_planned(void* pointer);

class Follower final : public Native {
 public:
  Follower(Native* native, std::vector<int64_t> sizes, std::vector<int64_t> offsets, std::vector<int64_t> lasts,
           int64_t height, int64_t first, int64_t period, int64_t end)
      : native_(native), offset_(std::move(offsets)), sequence_(std::move(sizes), std::move(lasts), first, period, end), pages_(height),
        arena_(pages_.size()) {}

  // ------------------------------------------------------------------------------------------------ requests
  DataPtr allocate(size_t bytes) override {
    const DeviceIndex device = current_device();
    const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    void* place = take(bytes, device, stream);
    const auto planned = [&] { return DataPtr{place, place, &free_planned, c10::Device(c10::DeviceType::CUDA, device)}; };
    if (place) return planned();
    DataPtr data;
    try {
      data = native_->allocate(bytes);
    } catch (const c10::OutOfMemoryError&) {
      if ((place = last_resort(bytes, device, stream))) return planned();
      data = native_->allocate(bytes);  // it has more room now
    }
    note(device);
    return data;
  }
  void* raw_alloc(size_t bytes) override {
    return raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(current_device()).stream());
  }
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    const DeviceIndex device = current_device();
    if (void* place = take(bytes, device, stream)) return place;
    void* pointer = nullptr;
    try {
      pointer = native_->raw_alloc_with_stream(bytes, stream);
    } catch (const c10::OutOfMemoryError&) {
      if (void* place = last_resort(bytes, device, stream)) return place;
      pointer = native_->raw_alloc_with_stream(bytes, stream);
    }
    note(device);
    return pointer;
  }
  void raw_delete(void* pointer) override { holds(pointer) ? give(pointer) : native_->raw_delete(pointer); }
  c10::DeleterFnPtr raw_deleter() const override { return native_->raw_deleter(); }  // CUDA graph trees compare with it
  void give(void* pointer) {
    std::lock_guard<std::mutex> guard(lock_);
    const int64_t offset = static_cast<char*>(pointer) - base_;
    const vramcast::Block* block = arena_.at(offset);
    TORCH_CHECK(block, "vramcast follow: a block was freed that is not in use.");
    const int64_t size = block->size;
    meter_.free(size, block->requested);
    if (block->left_out >= 0) sequence_.put_back(block->left_out);
    if (block->streams.empty()) {
      arena_.free(offset, false);
      return meter_.release(size);
    }
    c10::cuda::CUDAGuard device(device_);  // the events' one
    arena_.free(offset, pools_ == 0);
  }
  void recordStream(const DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (!holds(data.get())) return native_->recordStream(data, stream);
    std::lock_guard<std::mutex> guard(lock_);
    vramcast::Block* block = arena_.at(static_cast<char*>(data.get()) - base_);
    if (!block || stream.stream() == stream_) return;
    auto& streams = block->streams;
    if (std::find(streams.begin(), streams.end(), stream.stream()) == streams.end()) streams.push_back(stream.stream());
  }

  // Values for vramcast/plans/runtime/follower.py, in the order of its `Counts`.
  void counts(int64_t* out) {
    std::lock_guard<std::mutex> guard(lock_);
    const int64_t values[] = {planned_, holes_, strays_, sequence_.resyncs(), pages_.held(), is_over_};
    std::copy(std::begin(values), std::end(values), out);
  }
  void* base() const { return base_; }

  // ------------------------------------------------------------------------------------------------ statistics
  vramcast::Stats getDeviceStats(DeviceIndex device) override {
    auto found = native_->getDeviceStats(device);
    if (device != device_) return found;
    std::lock_guard<std::mutex> guard(lock_);
    return meter_.told(found);
  }
  void resetAccumulatedStats(DeviceIndex device) override {
    native_->resetAccumulatedStats(device);
    if (device != device_) return;
    std::lock_guard<std::mutex> guard(lock_);
    meter_.reset_totals();
  }
  void resetPeakStats(DeviceIndex device) override {
    native_->resetPeakStats(device);
    const auto found = native_->getDeviceStats(device);
    std::lock_guard<std::mutex> guard(lock_);
    if (device == device_) meter_.reset_peaks(found);
  }
#if AT_LEAST(11)
  cca::SnapshotInfo snapshot(Pool pool = {0, 0}, bool traces = true) override { return told(native_->snapshot(pool, traces)); }
#elif AT_LEAST(8)
  cca::SnapshotInfo snapshot(Pool pool = {0, 0}) override { return told(native_->snapshot(pool)); }
#else
  cca::SnapshotInfo snapshot() override { return told(native_->snapshot()); }
#endif

  // ------------------------------------------------------------------------------------------------ the native allocator's
  void beginAllocateToPool(DeviceIndex d, Pool pool, std::function<bool(cudaStream_t)> filter) override {
    ++pools_;
    native_->beginAllocateToPool(d, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex d, Pool pool) override {
    native_->endAllocateToPool(d, pool);
    --pools_;
  }
  void* getBaseAllocation(void* p, size_t* size) override {
    if (!holds(p)) return native_->getBaseAllocation(p, size);
    if (size) *size = arena_.height();
    return base_;
  }
  cca::ShareableHandle shareIpcHandle(void* p) override {
    TORCH_CHECK(!holds(p), "vramcast follow: memory from a plan cannot be shared with another process; run without a plan.");
    return native_->shareIpcHandle(p);
  }
  void copy_data(void* to, const void* from, std::size_t n) const override { native_->copy_data(to, from, n); }
  void init(int n) override { native_->init(n); }
  bool initialized() override { return native_->initialized(); }
  double getMemoryFraction(DeviceIndex d) override { return native_->getMemoryFraction(d); }
  void setMemoryFraction(double f, DeviceIndex d) override { native_->setMemoryFraction(f, d); }
  void enable(bool value) override { native_->enable(value); }
  bool isEnabled() const override { return native_->isEnabled(); }
  void cacheInfo(DeviceIndex d, size_t* largest) override { native_->cacheInfo(d, largest); }
  void releasePool(DeviceIndex d, Pool pool) override { native_->releasePool(d, pool); }
  int getPoolUseCount(DeviceIndex d, Pool pool) override { return native_->getPoolUseCount(d, pool); }
  bool checkPoolLiveAllocations(DeviceIndex d, Pool pool, const std::unordered_set<void*>& live) override {
    return native_->checkPoolLiveAllocations(d, pool, live);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return native_->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return native_->isHistoryEnabled(); }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& md) override { native_->recordAnnotation(md); }
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver o) override { native_->attachOutOfMemoryObserver(std::move(o)); }
  void attachAllocatorTraceTracker(cca::AllocatorTraceTracker t) override { native_->attachAllocatorTraceTracker(std::move(t)); }
  void enablePeerAccess(DeviceIndex d, DeviceIndex to) override {
    native_->enablePeerAccess(d, to);
    std::lock_guard<std::mutex> guard(lock_);
    TORCH_CHECK(to != device_ || pages_.allow(d), "vramcast follow: device ", d, " cannot use the planned memory of ", to, ".");
  }
  cudaError_t memcpyAsync(void* dst, int dd, const void* src, int sd, size_t n, cudaStream_t s, bool p2p) override {
    return native_->memcpyAsync(dst, dd, src, sd, n, s, p2p);
  }
  std::shared_ptr<cca::AllocatorState> getCheckpointState(DeviceIndex d, Pool id) override {
    return native_->getCheckpointState(d, id);
  }
  cca::CheckpointDelta setCheckpointPoolState(DeviceIndex d, std::shared_ptr<cca::AllocatorState> s) override {
    return native_->setCheckpointPoolState(d, std::move(s));
  }
  std::string name() override { return native_->name(); }  // "native": CUDA graphs and others ask for it
#if AT_LEAST(8)
  void emptyCache(Pool pool = {0, 0}) override { native_->emptyCache(pool); }
  void pushCompileContext(std::string& md) override { native_->pushCompileContext(md); }
  void popCompileContext() override { native_->popCompileContext(); }
#else
  void emptyCache() override { native_->emptyCache(); }
  void ensureExistsAndIncrefPool(DeviceIndex d, Pool pool) override { native_->ensureExistsAndIncrefPool(d, pool); }
#endif
#if AT_LEAST(11)
  void createOrIncrefPool(DeviceIndex d, Pool pool, std::shared_ptr<Native> a = nullptr) override {
    native_->createOrIncrefPool(d, pool, std::move(a));
  }
  void setUseOnOOM(DeviceIndex d, Pool pool, bool use) override { native_->setUseOnOOM(d, pool, use); }
  void recordHistory(bool e, cca::CreateContextFn c, size_t n, cca::RecordContext w, bool clear,
                     const std::vector<std::string>& skip) override {
    native_->recordHistory(e, c, n, w, clear, skip);
  }
#elif AT_LEAST(8)
  void createOrIncrefPool(DeviceIndex d, Pool pool, Native* a = nullptr) override { native_->createOrIncrefPool(d, pool, a); }
  void setUseOnOOM(DeviceIndex d, Pool pool) override { native_->setUseOnOOM(d, pool); }
  void recordHistory(bool e, cca::CreateContextFn c, size_t n, cca::RecordContext w, bool clear) override {
    native_->recordHistory(e, c, n, w, clear);
  }
#else
  void recordHistory(bool e, cca::CreateContextFn c, size_t n, cca::RecordContext w) override {
    native_->recordHistory(e, c, n, w);
  }
#endif
#if AT_LEAST(10)
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex d) override {
    return native_->getExpandableSegmentSizes(d);
  }
  void setNoSplit(DeviceIndex d, Pool pool) override { native_->setNoSplit(d, pool); }
  void setUserMetadata(const std::string& m) override { native_->setUserMetadata(m); }
  std::string getUserMetadata() override { return native_->getUserMetadata(); }
#endif
#if AT_LEAST(12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* p) override {
    return holds(p) ? nullptr : native_->getContextForPointer(p);
  }
  void attachOomRejectionObserver(cca::OomRejectionObserver o) override { native_->attachOomRejectionObserver(std::move(o)); }
#endif
#if AT_LEAST(13)
  void markCaptureBegin(DeviceIndex d) override { native_->markCaptureBegin(d); }
  void markCaptureEnd(DeviceIndex d) override { native_->markCaptureEnd(d); }
  DataPtr allocateWithAddress(size_t n, void* address) override { return native_->allocateWithAddress(n, address); }
#endif
#if AT_LEAST(14)
  bool supportsUserMetadata() override { return native_->supportsUserMetadata(); }
  void annotateMemory(const void* p, const std::string& m) override {
    if (!holds(p)) native_->annotateMemory(p, m);
  }
#endif

 private:
  static DeviceIndex current_device() {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
  }
  static int64_t rounded(size_t bytes) { return (static_cast<int64_t>(bytes) + kAlign - 1) / kAlign * kAlign; }
  bool holds(const void* p) const {
    const auto at = static_cast<const char*>(p);
    const char* base = base_;
    return base && at >= base && at < base + arena_.height();
  }
  auto gone() {
    return [this](const vramcast::Block& block) { meter_.release(block.size); };
  }

  struct Given {
    char* place = nullptr;
    bool may_be_peak = false, may_fill_hole = false, is_unknown = false;
    int64_t planned = -1;  // the offset that it should have had
  };
  // Returns a place in the arena, if this request is to have one. The native allocator is asked only while the lock is not
  // held: under its own lock it may free blocks of ours (those of other processes, when the device is full).
  void* take(size_t bytes, DeviceIndex device, cudaStream_t stream) {
    if (is_over_ || !bytes) return nullptr;
    std::call_once(begun_, [&] { begin(device); });
    if (device != device_) return nullptr;
    Given given = step(bytes, stream);
    if (given.may_fill_hole && (given.is_unknown || !has_idle(bytes) || has_idle(kWaste * bytes))) fill_hole(bytes, given);
    if (!given.place && bytes > kSmall && !has_idle(bytes)) make_room(bytes, given.planned);
    if (given.may_be_peak) note(device);
    return given.place;
  }
  // Gives a request its planned place.
  Given step(size_t bytes, cudaStream_t stream) {
    std::lock_guard<std::mutex> guard(lock_);
    if (!base_) return {};
    if (stream != stream_ || pools_ > 0) return ++strays_, Given{};
    const int64_t size = rounded(bytes);
    const auto is_free = [&](int64_t at) { return arena_.clear(offset_[at], size, gone()); };
    const int64_t at = sequence_.find(size, is_free);
    const int64_t left_out = sequence_.take_left_out(size, is_free), place = left_out >= 0 ? left_out : at;
    if (place >= 0 && is_free(place)) {
      ++planned_;
      if (at >= 0) lost_ = 0;  // else the place is known, but not where the job is
      has_steps_ |= size > kSmall && !sequence_.may_last(size);
      return put(offset_[place], bytes, left_out);
    }
    ++strays_, ++lost_;
    // In the arena, what stays would keep large blocks from their places for the rest of the job, and so would many small ones.
    const bool may_stay = size <= kSmall || sequence_.may_last(size) || !(sequence_.is_in_steps() || lost_ > kPatience);
    return {nullptr, false, at >= 0 ? size > kSmall : !may_stay, at < 0, at >= 0 ? offset_[at] : -1};
  }
  void fill_hole(size_t bytes, Given& given) {
    std::lock_guard<std::mutex> guard(lock_);
    const int64_t low = base_ ? arena_.hole(rounded(bytes), gone()) : -1;
    if (low < 0) return;
    ++holes_, --strays_;
    given = put(low, bytes, -1);
  }
  Given put(int64_t offset, size_t bytes, int64_t left_out) {
    arena_.put(offset, {rounded(bytes), static_cast<int64_t>(bytes), left_out, {}, false, {}});
    meter_.allocate(rounded(bytes), static_cast<int64_t>(bytes));
    return {base_ + offset, meter_.may_be_peak()};
  }
  bool has_idle(size_t bytes) {  // in the native allocator
    size_t largest = 1;          // 0 would mean: start from the device's free memory
    native_->cacheInfo(device_, &largest);
    return largest >= bytes;
  }
  void note(DeviceIndex device) {  // perhaps there is a new peak
    if (device != device_) return;
    const auto found = native_->getDeviceStats(device);
    std::lock_guard<std::mutex> guard(lock_);
    if (meter_.has_begun()) meter_.look(found);
  }
  // The device is full, as the current exception says: any hole, or memory for the native allocator.
  char* last_resort(size_t bytes, DeviceIndex device, cudaStream_t stream) {
    if (!base_ || device != device_ || pools_ > 0) throw;
    Given given;
    if (stream == stream_) fill_hole(bytes, given);
    if (!given.place && !give_back(segment(bytes), -1, 0)) throw;
    if (given.may_be_peak) note(device);
    return given.place;
  }
  // The native allocator is about to take new memory. Beyond what the plan needs, the arena gives back as much; if it has no
  // free pages, and the job would take more than ever, the native allocator gives back its idle segments.
  void make_room(size_t bytes, int64_t planned) {
    if (pools_ > 0) return;  // the device cannot be waited for
    const auto native = [&] { return native_->getDeviceStats(device_).reserved_bytes[0].current + segment(bytes); };
    const auto taken = [&](int64_t natively) {
      std::lock_guard<std::mutex> guard(lock_);
      if (!has_steps_) outside_ = natively;
      return natively - outside_ + pages_.held();
    };
    const int64_t now = taken(native()), too_much = now - arena_.height() / 100 * (100 + kSparePercent);
    if (too_much <= 0 || give_back(too_much, planned, rounded(bytes)) || now <= most_) return;
    native_->emptyCache();
    most_ = std::max(most_, taken(native()));
  }
  // Gives back at least so many bytes, as far as there are free pages: those of a planned place first, which others have taken.
  bool give_back(int64_t bytes, int64_t planned, int64_t size) {
    std::vector<int64_t> pages;
    {
      std::lock_guard<std::mutex> guard(lock_);
      const auto look = [&](int64_t low, int64_t high) {
        for (int64_t page = high / pages_.page() * pages_.page(); page >= low && bytes > 0; page -= pages_.page()) {
          const int64_t length = std::min(pages_.page(), arena_.height() - page);
          if (length <= 0 || !arena_.clear(page, length, gone())) continue;
          arena_.take_away(page, length);
          pages.push_back(page);
          meter_.hold(-length, 0);
          bytes -= length;
        }
      };
      if (planned >= 0) look(planned, planned + size - pages_.page());
      look(0, arena_.height());
    }
    if (pages.empty()) return false;
    C10_CUDA_CHECK(cudaStreamSynchronize(stream_));  // queued work may still use what the job has freed
    std::lock_guard<std::mutex> guard(lock_);
    for (const int64_t page : pages) pages_.give_back(page);
    return true;
  }
  static int64_t segment(size_t bytes) {  // spec: CUDACachingAllocator's get_allocation_size
    const auto size = static_cast<int64_t>(bytes);
    return size < kLarge ? 2 * kLarge : (size + 2 * kSmall - 1) / (2 * kSmall) * (2 * kSmall);
  }
  void begin(DeviceIndex device) {
    c10::cuda::CUDAGuard guard(device);
    C10_CUDA_CHECK(cudaFree(nullptr));  // a context
    stream_ = c10::cuda::getDefaultCUDAStream(device).stream();
    if (!pages_.take(device)) {
      native_->emptyCache();
      if (!pages_.take(device)) return is_over_ = true, void();
    }
    meter_.begin(native_->getDeviceStats(device));
    meter_.hold(pages_.held(), 1);
    base_ = pages_.base();
    device_ = device;
    note(device);
  }
  cca::SnapshotInfo told(cca::SnapshotInfo info) {  // with the arena, a segment for each row of its pages
    std::lock_guard<std::mutex> guard(lock_);
    if (!base_) return info;
    cca::SegmentInfo segment;
    int64_t low = 0;
    const auto add = [&](int64_t size, const vramcast::Block* live) {
      if (size <= 0) return;
      cca::BlockInfo one;
      one.size = size;
      one.requested_size = live ? live->requested : 0;
      one.allocated = live && !live->is_freed;
      one.active = live;
      segment.total_size += size;
      segment.allocated_size += one.allocated ? size : 0;
      segment.active_size += one.active ? size : 0;
      segment.requested_size += one.allocated ? one.requested_size : 0;
      segment.blocks.push_back(one);
    };
    const auto end = [&] {
      if (segment.total_size) info.segments.push_back(segment);
      segment = {};
      segment.device = device_;
      segment.address = reinterpret_cast<size_t>(base_ + low);
      segment.stream = stream_;
      segment.is_large = segment.is_expandable = true;
    };
    end();
    for (const auto& [offset, live] : arena_.live()) {
      const bool is_there = live.requested != vramcast::kTakenAway;
      add(offset - low, nullptr);
      if (is_there) add(live.size, &live);
      low = offset + live.size;
      if (!is_there) end();
    }
    add(arena_.height() - low, nullptr);
    end();
    return info;
  }

  Native* const native_;
  const std::vector<int64_t> offset_;
  std::mutex lock_;  // never held while the native allocator is asked
  vramcast::Sequence sequence_;
  vramcast::Pages pages_;
  vramcast::Arena arena_;
  vramcast::Meter meter_;
  int64_t planned_ = 0, holes_ = 0, strays_ = 0, lost_ = 0;
  int64_t outside_ = 0;     // native memory from before the first step
  int64_t most_ = 0;        // memory taken since, after its idle segments were given back
  bool has_steps_ = false;  // something was served that a step frees
  std::once_flag begun_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> pools_{0};
  std::atomic<char*> base_{nullptr};
  std::atomic<DeviceIndex> device_{-1};
  cudaStream_t stream_ = nullptr;
};

Follower* follower = nullptr;  // until the process ends: blocks may outlive everything else
void free_planned(void* pointer) { follower->give(pointer); }
}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
EXPORT const char* follow_start(const int64_t* sizes, const int64_t* offsets, const int64_t* lasts, int64_t n,
                                int64_t height, int64_t first, int64_t period, int64_t end) {
  static std::string name;
  Native* native = cca::allocator.load();
  name = native->name();
  if (follower || name != "native") return follower ? "vramcast's own" : name.c_str();
  follower = new Follower(native, {sizes, sizes + n}, {offsets, offsets + n}, {lasts, lasts + n}, height, first, period, end);
  cca::allocator.store(follower);
  c10::SetAllocator(c10::DeviceType::CUDA, follower, 0);
  return nullptr;
}
EXPORT void follow_counts(int64_t* out) { follower->counts(out); }
EXPORT void* follow_base() { return follower->base(); }
