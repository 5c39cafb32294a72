#pragma once
#include <algorithm>
#include <barrier>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/vocabulary_part.h"

/// Ranks as threads, for tests of operations that send messages.
namespace nemocube::testing {

/// The meeting point of the threads. They take turns: one runs while the others wait here.
struct Meeting {
  explicit Meeting(std::size_t ranks) : brought(ranks), all(static_cast<std::ptrdiff_t>(ranks)) {}
  std::mutex turn;
  std::vector<Tensor> brought;
  std::barrier<> all;
};

/// Sums also i64.
class ThreadReduction final : public RankReduction {
 public:
  ThreadReduction(Meeting& meeting, std::size_t rank) : meeting_(meeting), rank_(rank) {}
  void max(const Tensor& rows) override {
    meet(rows, [](auto a, auto b) { return std::max(a, b); });
  }
  void sum(const Tensor& rows) override { meet(rows, std::plus<>()); }

  std::vector<Shape> messages;

 private:
  void wait() {
    meeting_.turn.unlock();
    meeting_.all.arrive_and_wait();
    meeting_.turn.lock();
  }
  template <class Fn>
  void meet(const Tensor& rows, Fn fn) {
    expect(rows.contiguous(), "rows of shape ", rows.shape(), " are not contiguous");
    messages.push_back(rows.shape());
    meeting_.brought[rank_] = rows.to(Device::cpu).clone();
    wait();
    for (const Tensor& other : meeting_.brought) {
      check_shape("reduction", other, rows.shape());
      check_dtype("reduction", other, rows.dtype());
    }
    const Tensor result = Tensor::empty(rows.shape(), rows.dtype(), Device::cpu);
    if (rows.dtype() == DType::i64)
      combine<std::int64_t>(result, fn);
    else
      visit_accumulate("reduction", rows.dtype(), [&]<class T>(TypeTag<T>) { combine<T>(result, fn); });
    rows.copy_from(result);
    wait();
  }
  template <class T, class Fn>
  void combine(const Tensor& rows, Fn fn) {
    for (std::int64_t i = 0; i < rows.numel(); ++i) {
      T value = meeting_.brought[0].data<T>()[i];
      for (std::size_t r = 1; r < meeting_.brought.size(); ++r)
        value = fn(value, meeting_.brought[r].data<T>()[i]);
      rows.data<T>()[i] = value;
    }
  }

  Meeting& meeting_;
  std::size_t rank_;
};

/// Calls fn(rank, reduction) for each rank on a thread of its own. Throws the first exception of any.
template <class Fn>
void on_ranks(std::size_t ranks, Fn&& fn) {
  Meeting meeting(ranks);
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const std::lock_guard turn(meeting.turn);
        ThreadReduction reduction(meeting, rank);
        fn(rank, reduction);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
      meeting.all.arrive_and_drop();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// Calls fn(rank, part, reduction) for each rank. Its part are the tokens [cuts[rank], cuts[rank + 1]).
template <class Fn>
void on_parts(const std::vector<std::int64_t>& cuts, Fn&& fn) {
  on_ranks(cuts.size() - 1, [&](std::size_t rank, ThreadReduction& reduction) {
    fn(rank, VocabularyPart{cuts[rank], &reduction}, reduction);
  });
}

}  // namespace nemocube::testing
