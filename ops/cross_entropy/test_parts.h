#pragma once
#include <algorithm>
#include <barrier>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ops/cross_entropy/vocabulary_part.h"

/// The ranks of a cut vocabulary as threads, for tests.
namespace nemocube::testing {

/// Where the threads meet. They take turns: one runs while the others wait here.
struct Meeting {
  explicit Meeting(std::size_t parts) : brought(parts), all(static_cast<std::ptrdiff_t>(parts)) {}
  std::mutex turn;
  std::vector<Tensor> brought;
  std::barrier<> all;
};

class ThreadReduction final : public RankReduction {
 public:
  ThreadReduction(Meeting& meeting, std::size_t part) : meeting_(meeting), part_(part) {}
  void max(const Tensor& rows) override {
    combine(rows, [](auto a, auto b) { return std::max(a, b); });
  }
  void sum(const Tensor& rows) override { combine(rows, std::plus<>()); }

  std::vector<Shape> messages;

 private:
  void wait() {
    meeting_.turn.unlock();
    meeting_.all.arrive_and_wait();
    meeting_.turn.lock();
  }
  template <class Fn>
  void combine(const Tensor& rows, Fn fn) {
    expect(rows.contiguous(), "rows of shape ", rows.shape(), " are not contiguous");
    messages.push_back(rows.shape());
    meeting_.brought[part_] = rows.clone();
    wait();
    visit_accumulate("reduction", rows.dtype(), [&]<class T>(TypeTag<T>) {
      for (const Tensor& other : meeting_.brought) check_shape("reduction", other, rows.shape());
      for (std::int64_t i = 0; i < rows.numel(); ++i) {
        T value = meeting_.brought[0].data<T>()[i];
        for (std::size_t p = 1; p < meeting_.brought.size(); ++p)
          value = fn(value, meeting_.brought[p].data<T>()[i]);
        rows.data<T>()[i] = value;
      }
    });
    wait();
  }

  Meeting& meeting_;
  std::size_t part_;
};

/// Calls fn(i, part, reduction) for each part i, the tokens [cuts[i], cuts[i + 1]), on a thread of its own.
/// The reduction is that of the part. Throws the first exception of any.
template <class Fn>
void on_parts(const std::vector<std::int64_t>& cuts, std::int64_t vocabulary, Fn&& fn) {
  const std::size_t parts = cuts.size() - 1;
  Meeting meeting(parts);
  std::vector<std::exception_ptr> errors(parts);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < parts; ++i)
    threads.emplace_back([&, i] {
      try {
        const std::lock_guard turn(meeting.turn);
        ThreadReduction reduction(meeting, i);
        fn(i, VocabularyPart{cuts[i], vocabulary, &reduction}, reduction);
      } catch (...) {
        errors[i] = std::current_exception();
      }
      meeting.all.arrive_and_drop();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace nemocube::testing
