// Device memory at one range of addresses, in pages that can be given back one by one.
#pragma once
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace vramcast {
class Pages {
 public:
  explicit Pages(int64_t bytes)
      : size_((bytes + kGrain - 1) / kGrain * kGrain), page_(std::max(size_ / kMost / kGrain, int64_t{1}) * kGrain) {}
  int64_t size() const { return size_; }  // of the range
  int64_t page() const { return page_; }  // the last one may be smaller
  int64_t held() const { return held_; }
  char* base() const { return reinterpret_cast<char*>(base_); }

  // Takes the memory; returns whether the device has enough.
  bool take(int device) {
    if (!unmap_ && !find_driver()) return false;
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = device;
    bool is_taken = base_ || reserve_(&base_, size_, 0, 0, 0) == CUDA_SUCCESS;
    for (int64_t low = 0; is_taken && low < size_; low += page_) {
      CUmemGenericAllocationHandle page = 0;
      const int64_t length = std::min(page_, size_ - low);
      is_taken = create_(&page, length, &kind, 0) == CUDA_SUCCESS;
      if (!is_taken) break;
      pages_.push_back(page);
      held_ += length;
      is_taken = map_(base_ + low, length, 0, page, 0) == CUDA_SUCCESS;
    }
    if (is_taken && allow(device)) return true;
    for (size_t at = 0; at < pages_.size(); ++at) give_back(static_cast<int64_t>(at) * page_);
    pages_.clear();
    return false;
  }
  // Lets a device read and write the memory.
  bool allow(int device) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    bool is_allowed = true;
    for (int64_t low = 0; low < size_ && is_allowed; low += page_)
      if (pages_[low / page_]) is_allowed = allow_(base_ + low, std::min(page_, size_ - low), &access, 1) == CUDA_SUCCESS;
    return is_allowed;
  }
  // Gives back the page at an offset, which nothing on the device uses any more.
  void give_back(int64_t low) {
    const int64_t length = std::min(page_, size_ - low);
    auto& page = pages_[low / page_];
    (void)unmap_(base_ + low, length);
    if (release_(page) == CUDA_SUCCESS) held_ -= length;
    page = 0;
  }

 private:
  static constexpr int64_t kGrain = 2 << 20;  // spec: granularity of cuMemCreate, and of torch's segments
  static constexpr int64_t kMost = 1024;      // arbitrary: pages of a range, about

  bool find_driver() {
    void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);  // loaded already: there is a CUDA context
    const auto find = [driver](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(driver ? dlsym(driver, name) : nullptr);
      return function != nullptr;
    };
    return find(reserve_, "cuMemAddressReserve") && find(create_, "cuMemCreate") && find(release_, "cuMemRelease") &&
           find(map_, "cuMemMap") && find(allow_, "cuMemSetAccess") && find(unmap_, "cuMemUnmap");
  }

  const int64_t size_, page_;
  int64_t held_ = 0;
  std::vector<CUmemGenericAllocationHandle> pages_;  // 0: given back
  CUdeviceptr base_ = 0;
  decltype(&cuMemAddressReserve) reserve_ = nullptr;
  decltype(&cuMemCreate) create_ = nullptr;
  decltype(&cuMemRelease) release_ = nullptr;
  decltype(&cuMemMap) map_ = nullptr;
  decltype(&cuMemSetAccess) allow_ = nullptr;
  decltype(&cuMemUnmap) unmap_ = nullptr;
};
}  // namespace vramcast
