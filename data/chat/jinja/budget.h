#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/error.h"

namespace nemocube::jinja {

/// The limits of a template's rendering. Templates come from strangers, so every limit is finite.
struct Limits {
  std::uint64_t steps = 20'000'000;  ///< nodes evaluated, look-ups, items passed on, 16 bytes of text made
  std::size_t memory = std::size_t{512} << 20;  ///< bytes of all texts, lists and mappings made
  std::size_t shared_memory = std::size_t{64}
                              << 20;  ///< the part beside other renderings (Budget::spend_memory)
  std::size_t text_bytes = std::size_t{64} << 20;  ///< of one text, the result included
  std::size_t items = 1'000'000;                   ///< of one list, tuple or mapping
  int depth = 1000;                                ///< nodes under evaluation at a time, macros included
  int value_depth = 150;                           ///< lists and mappings inside each other
};

/// A mistake that is found where the place in the template is not known; the interpreter adds the place.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] void raise(const Parts&... parts) {
  throw Failure(cat(parts...));
}

/// Counts the steps and memory of a rendering. Throws Failure at a limit. Belongs to one thread.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  const Limits& limits() const { return limits_; }

  void spend(std::uint64_t steps = 1) {
    spent_ += steps;
    if (spent_ > limits_.steps) [[unlikely]]
      raise("the template takes more than ", limits_.steps, " steps");
  }
  /// Called before memory of `bytes` is taken. Freed memory is not subtracted, so the limit also holds for
  /// all memory held at once. Many renderings may take up to Limits::shared_memory each at the same time. A
  /// rendering that takes more first waits until no other such rendering is left in the process, so that
  /// threads do not multiply the limit, and no result depends on other threads.
  void spend_memory(std::size_t bytes) {
    memory_ += bytes;
    if (memory_ > limits_.shared_memory) [[unlikely]]
      take_large_memory();
  }
  /// Called before a text of `bytes` is made.
  void spend_text(std::size_t bytes) {
    check_text(bytes);
    spend(1 + bytes / 16);
    spend_memory(bytes_of_text + bytes);
  }
  void check_text(std::size_t bytes) const {
    if (bytes > limits_.text_bytes) [[unlikely]]
      raise("the template makes a text of more than ", limits_.text_bytes, " bytes");
  }
  /// Called before a list, tuple or mapping of `items` is made.
  void spend_items(std::size_t items) {
    if (items > limits_.items) [[unlikely]]
      raise("the template makes a list of more than ", limits_.items, " items");
    spend(1 + items);
  }

  static constexpr std::size_t bytes_of_value = 32;  ///< in a list
  static constexpr std::size_t bytes_of_text = 80;   ///< of any text or list, beside its contents

  /// One level of evaluation, for as long as the guard lives.
  class Level {
   public:
    explicit Level(Budget& budget) : budget_(budget) {
      if (++budget_.depth_ > budget_.limits_.depth) [[unlikely]] {
        --budget_.depth_;
        raise("expressions, macros and loops are nested more than ", budget_.limits_.depth, " deep");
      }
    }
    ~Level() { --budget_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Budget& budget_;
  };

 private:
  void take_large_memory();

  const Limits limits_;
  std::uint64_t spent_ = 0;
  std::size_t memory_ = 0;
  std::unique_lock<std::recursive_mutex>
      large_;  // held by the one rendering of the process that takes more than shared_memory
  int depth_ = 0;
};

}  // namespace nemocube::jinja
