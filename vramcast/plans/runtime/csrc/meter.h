// torch's statistics of a device with the arena and the blocks in it, peaks included.
#pragma once
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace vramcast {
using Stats = c10::CachingDeviceAllocator::DeviceStats;
using Stat = decltype(Stats::segment)::value_type;
constexpr size_t kAggregate = 0, kLargePool = 2;  // spec: StatType; its namespace has another name since torch 2.8

class Meter {
 public:
  // Changes of what is allocated, what is active (with freed blocks that other streams use), what was requested, and what the
  // arena holds.
  void allocate(int64_t size, int64_t requested) { add({1, 1, 0, size, size, 0, requested}); }
  void free(int64_t size, int64_t requested) { add({-1, 0, 0, -size, 0, 0, -requested}); }
  void release(int64_t size) { add({0, -1, 0, 0, -size, 0, 0}); }
  void hold(int64_t size, int64_t segments) { add({0, 0, segments, 0, 0, size, 0}); }

  void begin(Stats native) {
    for (int k = 0; k < kStats; ++k) peak_[k] = of(native, k).peak;
    has_begun_ = true;
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
      seen_[k] = of(native, k).current;
      peak_[k] = std::max(peak_[k], mine_[k] + seen_[k]);
    }
  }
  void reset_peaks(Stats native) {
    peak_ = {};
    look(native);
  }
  void reset_totals() { allocated_ = freed_ = {}; }
  Stats told(Stats native) {
    if (!has_begun_) return native;
    look(native);
    for (int k = 0; k < kStats; ++k) {
      auto& stat = of(native, k);
      stat.current += mine_[k];
      stat.peak = peak_[k];
      stat.allocated += allocated_[k % kKinds];
      stat.freed += freed_[k % kKinds];
    }
    return native;
  }

 private:
  static constexpr int kKinds = 7, kPools = 2, kStats = kKinds * kPools;

  // The same of all blocks, and of those in large segments: the arena is one.
  static Stat& of(Stats& stats, int k) {
    auto* const kind =
        std::array{&stats.allocation,   &stats.active,         &stats.segment,        &stats.allocated_bytes,
                   &stats.active_bytes, &stats.reserved_bytes, &stats.requested_bytes}[k % kKinds];
    return (*kind)[k < kKinds ? kAggregate : kLargePool];
  }
  void add(const std::array<int64_t, kKinds>& change) {
    for (int k = 0; k < kKinds; ++k) {
      mine_[k] += change[k];
      mine_[k + kKinds] += change[k];
      (change[k] > 0 ? allocated_ : freed_)[k] += std::abs(change[k]);
    }
  }

  std::array<int64_t, kStats> mine_{}, seen_{}, peak_{};
  std::array<int64_t, kKinds> allocated_{}, freed_{};
  bool has_begun_ = false;
};
}  // namespace vramcast
