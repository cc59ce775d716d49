// Where a job is in its plan: requests are recognized by their sizes, in the order of the plan.
//
//   plan      A B C D E F | A B C D E F       a request of the next size: the next place
//   job       A B   D E F   A x x B C D       a size of a few places ahead or back: that place (C was left out)
//                                             the last kRun sizes stand in a row somewhere: the nearest such place ahead
//
// A wrong guess costs memory at most: the caller gives a place only if nothing lives there.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace vramcast {
class Sequence {
 public:
  // Place k has sizes[k], and lasts[k] if its block outlives its step. Behind `end`, the `period` places from `first` on repeat.
  // period 0: nothing repeats.
  Sequence(std::vector<int64_t> sizes, std::vector<int64_t> lasts, int64_t first, int64_t period, int64_t end)
      : size_(std::move(sizes)), lasts_(std::move(lasts)), first_(first), period_(period), end_(end) {
    for (size_t at = 0; at < size_.size(); ++at)
      if (lasts_[at]) lasting_.insert(size_[at]);
    for (size_t at = kRun - 1; at < size_.size(); ++at) runs_[run_at(at)].push_back(static_cast<int64_t>(at));
  }

  // Whether a block of this size may outlive a step. Such sizes alone do not tell where a job is: a wrong place for what stays
  // would be in the way for the rest of the job.
  bool may_last(int64_t size) const { return lasting_.count(size); }

  // Returns the place of a request of this size, and goes on behind it; -1: the plan has no such request here.
  template <typename IsFree>
  int64_t find(int64_t size, const IsFree& is_free) {
    std::rotate(last_.begin(), last_.begin() + 1, last_.end());
    last_.back() = size;
    const bool is_sure = missed_ <= kSure || !may_last(size);
    int64_t at = is_at(next_, size) && (is_sure || lasts_[next_]) ? next_ : -1;
    if (at < 0 && is_sure && size >= kDistinct) at = near(size, is_free);
    if (at < 0) at = in_a_row(is_free);
    if (at < 0) return ++missed_, -1;
    missed_ = 0;
    resyncs_ += at != next_;
    for (int64_t passed = next_; passed < at; ++passed)
      if (lasts_[passed] && is_free(passed)) put_back(passed);
    next_ = after(at);
    return at;
  }
  // A place for what stays that the job went past without taking it, such as that of an optimizer's state before the first
  // step: no other planned block needs it any more. -1: there is none of this size.
  template <typename IsFree>
  int64_t take_left_out(int64_t size, const IsFree& is_free) {
    const auto found = left_out_.find(size);
    if (found == left_out_.end()) return -1;
    auto& places = found->second;
    const auto first = std::find_if(places.begin(), places.end(), is_free);
    if (first == places.end()) return -1;
    const int64_t at = *first;
    places.erase(first);
    return at;
  }
  void put_back(int64_t at) { left_out_[size_[at]].insert(at); }
  bool is_in_steps() const { return has_repeated_ || next_ >= first_; }
  int64_t next() const { return next_; }
  int64_t resyncs() const { return resyncs_; }

 private:
  static constexpr int64_t kDistinct = 64 << 10;  // arbitrary: smaller sizes occur everywhere in a step
  static constexpr int kAhead = 16, kBack = 8;    // arbitrary: places that a few more or fewer workspaces move a request by
  static constexpr int kSure = 1;                 // arbitrary: the same for sizes of what may last, and requests missed before
  static constexpr int kRun = 4;                  // arbitrary

  bool is_telling(int64_t size) const { return size >= kDistinct && !may_last(size); }
  bool is_at(int64_t at, int64_t size) const { return at >= 0 && at < length() && size_[at] == size; }
  int64_t length() const { return static_cast<int64_t>(size_.size()); }
  int64_t after(int64_t at) {
    if (++at != end_ || !period_) return at;
    has_repeated_ = true;
    return first_ + (end_ - first_) % period_;
  }
  int64_t before(int64_t at) const { return has_repeated_ && at == first_ ? first_ + period_ - 1 : at - 1; }
  template <typename IsFree>
  int64_t near(int64_t size, const IsFree& is_free) const {
    int64_t ahead = next_, back = next_;
    for (int k = 1; k <= (may_last(size) ? kSure : kAhead); ++k) {
      ahead = ahead + 1 == end_ && period_ ? first_ + (end_ - first_) % period_ : ahead + 1;
      back = before(back);
      if (is_at(ahead, size)) return ahead;
      if (k <= kBack && !may_last(size) && is_at(back, size) && is_free(back)) return back;
    }
    return -1;
  }
  // The nearest free place, from the next one on and around, at which the last kRun sizes end; a far one only if one of them
  // tells where the job is.
  template <typename IsFree>
  int64_t in_a_row(const IsFree& is_free) const {
    const auto found = runs_.find(run_of(last_.data()));
    if (found == runs_.end()) return -1;
    const auto& places = found->second;
    const auto search = [&](int64_t from, int64_t to) -> int64_t {
      for (auto at = std::lower_bound(places.begin(), places.end(), from); at != places.end() && *at <= to; ++at)
        if (is_free(*at) && std::equal(last_.begin(), last_.end(), size_.begin() + (*at - kRun + 1))) return *at;
      return -1;
    };
    if (std::none_of(last_.begin(), last_.end(), [this](int64_t size) { return is_telling(size); }))
      return search(next_, next_ + kAhead);
    for (const int64_t from : {next_ - kAhead, first_, int64_t{0}})
      if (const int64_t at = search(from, length()); at >= 0) return at;
    return -1;
  }
  static uint64_t run_of(const int64_t* sizes) {
    uint64_t hash = 0;
    for (int k = 0; k < kRun; ++k) hash = (hash ^ static_cast<uint64_t>(sizes[k])) * 0x9E3779B97F4A7C15ull;  // arbitrary: odd
    return hash;
  }
  uint64_t run_at(size_t at) const { return run_of(size_.data() + at - (kRun - 1)); }

  const std::vector<int64_t> size_, lasts_;
  std::unordered_set<int64_t> lasting_;  // sizes
  const int64_t first_, period_, end_;
  std::unordered_map<uint64_t, std::vector<int64_t>> runs_;
  std::unordered_map<int64_t, std::set<int64_t>> left_out_;  // by size
  std::array<int64_t, kRun> last_{};
  int64_t next_ = 0, resyncs_ = 0, missed_ = 0;
  bool has_repeated_ = false;
};
}  // namespace vramcast
