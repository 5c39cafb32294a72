#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/error.h"

namespace nemocube::jinja {

/// What a template may spend while it is rendered. Templates come from strangers, so each of these is finite.
struct Limits {
  std::uint64_t steps = 20'000'000;  ///< nodes evaluated, items passed on, 16 bytes of text made
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

/// Counts what a rendering spends. Throws Failure at a limit.
class Budget {
 public:
  explicit Budget(const Limits& limits) : limits_(limits) {}

  const Limits& limits() const { return limits_; }

  void spend(std::uint64_t steps = 1) {
    spent_ += steps;
    if (spent_ > limits_.steps) [[unlikely]]
      raise("the template takes more than ", limits_.steps, " steps");
  }
  /// Called before a text of `bytes` is made.
  void spend_text(std::size_t bytes) {
    check_text(bytes);
    spend(1 + bytes / 16);
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
  const Limits limits_;
  std::uint64_t spent_ = 0;
  int depth_ = 0;
};

}  // namespace nemocube::jinja
