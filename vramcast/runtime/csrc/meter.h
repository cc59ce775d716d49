// torch's statistics of a device with the blocks in the arena in place of the arena itself, peaks included.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace vramcast {
using Stats = c10::CachingDeviceAllocator::DeviceStats;

class Meter {
 public:
  // Changes of what is allocated, what is active (with freed blocks that other streams use), and what was requested.
  void allocate(int64_t size, int64_t requested) { add({1, 1, size, size, requested}); }
  void free(int64_t size, int64_t requested) { add({-1, 0, -size, 0, -requested}); }
  void release(int64_t size) { add({0, -1, 0, -size, 0}); }

  // The arena is a block of the native allocator: what it added to the statistics, while it lives and in the totals.
  void take_arena(Stats before, Stats after) {
    for (int k = 0; k < kStats; ++k) {
      arena_[k] = in_allocated_[k] = of(after, k).current - of(before, k).current;
      seen_[k] = of(before, k).current;
      peak_[k] = of(before, k).peak;
    }
    has_begun_ = true;
  }
  void return_arena() {
    in_freed_ = arena_;
    arena_ = {};
  }
  bool has_begun() const { return has_begun_; }
  // Whether there may be a new peak: then `look` is to be called with the native allocator's statistics.
  bool may_be_peak() const {
    bool may_be = false;
    for (int k = 0; k < kStats; ++k) may_be |= mine_[k] + seen_[k] > peak_[k];
    return may_be;
  }
  void look(Stats native) {
    for (int k = 0; k < kStats; ++k) {
      seen_[k] = of(native, k).current - arena_[k];
      peak_[k] = std::max(peak_[k], mine_[k] + seen_[k]);
    }
  }
  void reset_peaks(Stats native) {
    peak_ = {};
    look(native);
  }
  void reset_totals() {
    allocated_ = freed_ = {};
    in_allocated_ = in_freed_ = {};
  }
  Stats told(Stats native) {
    if (!has_begun_) return native;
    look(native);
    for (int k = 0; k < kStats; ++k) {
      auto& stat = of(native, k);
      stat.current += mine_[k] - arena_[k];
      stat.peak = peak_[k];
      stat.allocated += allocated_[k % kKinds] - in_allocated_[k];
      stat.freed += freed_[k % kKinds] - in_freed_[k];
    }
    return native;
  }

 private:
  static constexpr int kKinds = 5, kPools = 2, kStats = kKinds * kPools;
  using Values = std::array<int64_t, kStats>;

  // The same of all blocks, and of those in large segments: the arena is one.
  static c10::CachingAllocator::Stat& of(Stats& stats, int k) {
    auto* const kind = std::array{&stats.allocation, &stats.active, &stats.allocated_bytes, &stats.active_bytes,
                                  &stats.requested_bytes}[k % kKinds];
    return (*kind)[static_cast<size_t>(k < kKinds ? c10::CachingAllocator::StatType::AGGREGATE
                                                  : c10::CachingAllocator::StatType::LARGE_POOL)];
  }
  void add(const std::array<int64_t, kKinds>& change) {
    for (int k = 0; k < kKinds; ++k) {
      mine_[k] += change[k];
      mine_[k + kKinds] += change[k];
      (change[k] > 0 ? allocated_ : freed_)[k] += std::abs(change[k]);
    }
  }

  Values mine_{}, seen_{}, peak_{}, arena_{}, in_allocated_{}, in_freed_{};
  std::array<int64_t, kKinds> allocated_{}, freed_{};
  bool has_begun_ = false;
};
}  // namespace vramcast
