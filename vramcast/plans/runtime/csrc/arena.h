// The blocks that live in the arena, by offset. No two overlap: a place is given only if nothing lives there.
#pragma once
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace vramcast {
constexpr int64_t kTakenAway = -1;  // in place of a block's requested bytes: no block, but a part that is taken away

struct Block {
  int64_t size, requested;
  int64_t left_out;                   // its place, if the job had left that out before; else -1
  std::vector<cudaStream_t> streams;  // other streams that use it (record_stream)
  bool is_freed = false;              // by the job; it lives until these streams have passed that point
  std::vector<cudaEvent_t> events;    // one for each stream, at that point; fewer: not all could be recorded yet
};

class Arena {
 public:
  explicit Arena(int64_t height) : height_(height) {}
  int64_t height() const { return height_; }
  const std::map<int64_t, Block>& live() const { return live_; }
  Block* at(int64_t offset) {
    const auto found = live_.find(offset);
    return found == live_.end() || found->second.is_freed ? nullptr : &found->second;
  }
  void put(int64_t offset, Block block) { live_.emplace(offset, std::move(block)); }

  // Frees a block; with events of other streams to wait for, it lives on until they are over. Returns whether it is gone.
  bool free(int64_t offset, bool can_record) {
    const auto found = live_.find(offset);
    if (found->second.streams.empty()) return live_.erase(found), true;
    found->second.is_freed = true;
    if (can_record) record(found->second);
    return false;
  }
  // Removes what other streams have passed from [low, low + size); returns whether nothing is left there. Bytes removed are
  // added to `gone`. A freed block without all of its events lives.
  template <typename Gone>
  bool clear(int64_t low, int64_t size, const Gone& gone) {
    auto next = live_.lower_bound(low);
    if (next != live_.begin() && std::prev(next)->first + std::prev(next)->second.size > low) --next;
    while (next != live_.end() && next->first < low + size) {
      if (!is_over(next->second)) return false;
      gone(next->second);
      next = live_.erase(next);
    }
    return true;
  }
  // Takes a free part away for good: no block is put there again.
  void take_away(int64_t low, int64_t size) { live_.emplace(low, Block{size, kTakenAway, -1, {}, false, {}}); }
  // The smallest hole for a block, and the lowest of equal ones; -1: there is none.
  template <typename Gone>
  int64_t hole(int64_t size, const Gone& gone) {
    int64_t low = 0, best = -1, room = height_ + 1;
    const auto look = [&](int64_t high) {
      if (high - low >= size && high - low < room) best = low, room = high - low;
    };
    for (auto it = live_.begin(); it != live_.end();) {
      if (is_over(it->second)) {
        gone(it->second);
        it = live_.erase(it);
        continue;
      }
      look(it->first);
      low = it->first + it->second.size;
      ++it;
    }
    look(height_);
    return best;
  }

 private:
  static void record(Block& block) {
    while (block.events.size() < block.streams.size()) {
      cudaEvent_t event = nullptr;
      const auto stream = block.streams[block.events.size()];
      if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess || cudaEventRecord(event, stream) != cudaSuccess) {
        if (event) (void)cudaEventDestroy(event);
        (void)cudaGetLastError();
        return;  // it stays where it is
      }
      block.events.push_back(event);
    }
  }
  static bool is_over(Block& block) {
    if (!block.is_freed) return false;
    record(block);  // of a block that was freed during a capture, which must have no events
    if (block.events.size() < block.streams.size()) return false;
    for (const auto event : block.events)
      if (cudaEventQuery(event) != cudaSuccess) return (void)cudaGetLastError(), false;
    for (const auto event : block.events) (void)cudaEventDestroy(event);
    return true;
  }

  const int64_t height_;
  std::map<int64_t, Block> live_;
};
}  // namespace vramcast
