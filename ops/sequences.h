#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <type_traits>
#include <typeindex>
#include <typeinfo>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace nemocube {

/// Sequences in the form for kernels: tables on the device.
struct SequenceTable {
  Tensor offsets;  ///< [sequences + 1] i64: sequence i holds rows [offsets[i], offsets[i + 1])
  template <class Fn>
  void for_each_tensor(Fn&& fn) const {
    fn(offsets);
  }
  std::int64_t count() const { return offsets.numel() - 1; }
  /// For kernels of the CPU.
  std::int64_t begin(std::int64_t i) const { return offsets.data<std::int64_t>()[i]; }
  std::int64_t end(std::int64_t i) const { return begin(i + 1); }
  std::int64_t length(std::int64_t i) const { return end(i) - begin(i); }
  /// See Sequences::become().
  void refill(const SequenceTable& made) const { offsets.copy_from(made.offsets); }
};

/// The rows of a microbatch: how its token rows are cut into sequences, and all tables that follow. Sequence
/// i holds rows [offset i, offset i + 1). A rectangular batch of B rows of S tokens is B sequences of S; a
/// packed batch has any lengths. Operations along the sequence (convolution, scan, attention) start afresh at
/// every offset. Other libraries call the offsets cu_seqlens.
///
/// Only become() changes offsets. Copies of the object share the offsets and the tables that follow from
/// them: tensors on a device, chunks of a scan, the rows that each rank has. Each table is made once, at its
/// first use; every layer, forward and backward, uses the same table.
///
/// Batches of different lengths can have tensors and tables of the same sizes, so that a recorded
/// step can be repeated with another batch (with_capacity, become). A sequence may be empty, and
/// the last one may hold spare rows: rows without tokens. Operations treat spare rows as any
/// others; only the router does not count them.
class Sequences {
 public:
  /// The rows of the last sequence.
  enum class Last { tokens, spare_rows };
  Sequences();  ///< none
  /// `positions`: the position of each row in its sequence, where a rank has only some rows or a call
  /// continues sequences. Without `positions` the rows of a sequence have the positions 0, 1, 2, ...
  explicit Sequences(std::vector<std::int64_t> offsets, std::vector<std::int64_t> positions = {},
                     Last last = Last::tokens);
  static Sequences uniform(std::int64_t count, std::int64_t length);
  /// `starts`: positions of the first rows, where sequences continue; none: 0.
  static Sequences of_lengths(std::span<const std::int64_t> lengths,
                              std::span<const std::int64_t> starts = {});
  /// These sequences, then empty ones up to `count`, then one sequence of spare rows up to `rows`. Error
  /// where there are already more sequences or rows, or spare rows.
  Sequences with_capacity(std::int64_t rows, std::int64_t count) const;
  /// These sequences with a number each: the number of its first row among all rows of a training run, so
  /// that all rows differ. Dropout and noise draw by a row's number, and only where there are numbers.
  /// `padded_length`: length of each row of the data in the padded rectangle that the sequences come from; 0:
  /// not known. Numbered sequences of a batch without rows want a padded_length above 0, by which
  /// with_capacity() knows that they are numbered.
  Sequences numbered(std::vector<std::int64_t> numbers, std::int64_t padded_length = 0) const;
  /// The same offsets, positions, numbers and padded length, in an object that shares nothing with this one.
  Sequences clone() const;
  /// Whether the other object is this one or a copy that shares its offsets.
  bool same(const Sequences& other) const { return data_ == other.data_; }
  /// This object and all copies of it take the sequences of `other`, which has the same capacity.
  /// Tables on devices stay where they are and get other values: work queued with them can be
  /// queued again. The host may not be using any table. std::logic_error for another capacity,
  /// and where a table cannot be filled again.
  void become(const Sequences& other);

  const std::vector<std::int64_t>& offsets() const { return data_->offsets; }
  std::int64_t count() const { return static_cast<std::int64_t>(offsets().size()) - 1; }
  std::int64_t tokens() const { return offsets().back(); }  ///< and spare rows
  std::int64_t token_count() const { return has_spare_rows() ? begin(count() - 1) : tokens(); }
  bool has_spare_rows() const { return last() == Last::spare_rows; }
  Last last() const { return data_->last; }
  std::int64_t begin(std::int64_t i) const { return offsets()[static_cast<std::size_t>(i)]; }
  std::int64_t end(std::int64_t i) const { return offsets()[static_cast<std::size_t>(i) + 1]; }
  std::int64_t length(std::int64_t i) const { return end(i) - begin(i); }
  std::int64_t longest() const;
  /// Of each row in its sequence.
  const std::vector<std::int64_t>& positions() const;
  /// Throws Error naming `what` unless the offsets ascend from 0 to `tokens`.
  void check(std::string_view what, std::int64_t tokens) const;

  const SequenceTable& on(Device device) const;
  const Tensor& positions_on(Device device) const;  ///< [rows] i64
  /// Of the sequences; empty without numbers.
  const std::vector<std::int64_t>& numbers() const { return data_->numbers; }
  std::int64_t padded_length() const { return data_->padded_length; }  ///< see numbered()
  /// [rows] i64: the number of each row, its sequence's plus its position; undefined without numbers.
  Tensor row_numbers_on(Device device) const;
  /// [2] i64: 0 and the number of rows that are not spare; undefined where none are.
  Tensor token_rows_on(Device device) const;

  /// A table of type T on `device` that follows from the offsets and from `key`: made by make() at the first
  /// call, the same object afterwards. The table lives as long as these sequences and must not hold them.
  ///
  /// become() can fill a table again if make(const Sequences&) uses only its argument and
  /// things that never change, and T is a Tensor or has a member refill(const T& made), which
  /// keeps the memory on the device and takes the values of `made`. No other table can be
  /// filled; become() drops a table of the host.
  template <class T, class Make>
  const T& derived(Device device, const std::vector<std::int64_t>& key, Make make) const {
    Maker maker;
    if constexpr (std::is_invocable_v<Make&, const Sequences&>) {
      maker.make = [make](const Sequences& from) { return std::make_shared<T>(make(from)); };
      maker.refill = [](void* to, const void* from) {
        refill(*static_cast<T*>(to), *static_cast<const T*>(from));
      };
    } else {
      maker.make = [&make](const Sequences&) { return std::make_shared<T>(make()); };
    }
    return *static_cast<const T*>(find_or_make(typeid(T), device, key, std::move(maker)));
  }

 private:
  struct Maker {
    std::function<std::shared_ptr<void>(const Sequences&)> make;
    void (*refill)(void* to,
                   const void* from) = nullptr;  // null: `make` ends with the call
  };
  template <class T>
  static void refill(T& to, const T& from) {
    if constexpr (std::is_same_v<T, Tensor>)
      to.copy_from(from);
    else
      to.refill(from);
  }
  /// Everything that was derived.
  struct Tables {
    struct Entry {
      std::type_index type;
      Device device;
      std::vector<std::int64_t> key;
      std::shared_ptr<void> value;
      Maker maker;
    };
    std::recursive_mutex mutex;  // make() may derive, too
    std::vector<Entry> entries;
  };
  struct Data {
    std::vector<std::int64_t> offsets, positions;  // positions: empty where the offsets tell them
    std::vector<std::int64_t> numbers;
    std::int64_t padded_length = 0;
    Last last = Last::tokens;
    Tables tables;
  };
  const void* find_or_make(std::type_index type, Device device, const std::vector<std::int64_t>& key,
                           Maker maker) const;
  std::shared_ptr<Data> data_;
};

}  // namespace nemocube
