// Nanoseconds of a pair of a request and its free, with `kept` blocks live, of the allocator that torch has now.
#include <c10/cuda/CUDACachingAllocator.h>

#include <chrono>
#include <vector>

extern "C" __attribute__((visibility("default"))) double pair_ns(const int64_t* sizes, int64_t n_sizes, int64_t kept, int64_t n) {
  std::vector<c10::DataPtr> ring(kept);
  const auto started = std::chrono::steady_clock::now();
  for (int64_t k = 0; k < n; ++k) {
    ring[k % kept].clear();
    ring[k % kept] = c10::cuda::CUDACachingAllocator::get()->allocate(sizes[k % n_sizes]);
  }
  for (auto& one : ring) one.clear();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - started).count() / n;
}
