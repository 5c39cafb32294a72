#include "core/trace.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <tuple>
#include <utility>

#include "core/error.h"

namespace nemocube::trace {
namespace {

constexpr std::size_t piece_events = 1024;
using Piece = std::array<Event, piece_events>;

/// The events of one thread. stop() waits for `writing`, so that whoever reads afterwards needs no lock.
struct Buffer {
  std::atomic<bool> writing = false;
  std::vector<std::unique_ptr<Piece>> pieces;
  std::size_t size = 0;
  Row row = own_row;
  std::string name;
};

struct Recorder {
  std::mutex mutex;  // of `buffers` and `next_row`; taken when a thread records its first event
  std::vector<std::unique_ptr<Buffer>> buffers;  // of ended threads, too
  Row next_row = first_thread_row;
  std::atomic<std::int64_t> began = 0;  // nanoseconds
  std::atomic<std::int64_t> room = 0;   // events that further pieces may hold
  std::atomic<std::int64_t> dropped = 0;
};
Recorder& recorder() {
  static auto* const one = new Recorder;  // never destroyed: threads may record until the end
  return *one;
}

std::string name_of_thread() {
  std::array<char, 16> name{};
  if (::pthread_getname_np(::pthread_self(), name.data(), name.size()) != 0) return "thread";
  return name.data();
}

Buffer& own_buffer() {
  thread_local Buffer* own = nullptr;
  if (own) return *own;
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  own = all.buffers.emplace_back(std::make_unique<Buffer>()).get();
  own->row = all.next_row++;
  own->name = name_of_thread();
  return *own;
}

void append(Buffer& buffer, const Event& event) {
  Recorder& all = recorder();
  if (event.begin < all.began.load(std::memory_order_relaxed)) return;
  const std::size_t piece = buffer.size / piece_events;
  if (piece == buffer.pieces.size()) {
    if (all.room.fetch_sub(piece_events, std::memory_order_relaxed) <= 0) {
      all.dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    buffer.pieces.push_back(std::make_unique<Piece>());
  }
  Event& place = (*buffer.pieces[piece])[buffer.size++ % piece_events];
  place = event;
  if (place.row == own_row) place.row = buffer.row;
}

std::string name_of_row(Row row) {
  constexpr std::array<const char*, 7> names{"compute",          "collectives",          "device compute",
                                             "device copies",    "device communication", "device messages",
                                             "device background"};
  if (row >= 0 && row < std::ssize(names)) return names[static_cast<std::size_t>(row)];
  for (const auto& buffer : recorder().buffers)
    if (buffer->row == row) return buffer->name;
  return cat("row ", row);
}

}  // namespace

const char* name_of(Category category) {
  constexpr std::array<const char*, category_count> names{"step",       "forward",    "backward", "optimizer",
                                                          "operation",  "collective", "pipeline", "data",
                                                          "checkpoint", "validation"};
  return names[static_cast<std::size_t>(category)];
}

void start(std::int64_t most_events) {
  expect(!recording(), "a second trace while one is recorded");
  Buffer& own = own_buffer();
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  for (const auto& buffer : all.buffers) {
    buffer->pieces.clear();
    buffer->size = 0;
    if (buffer->row == compute_row) buffer->row = all.next_row++;
  }
  own.row = compute_row;
  all.room = most_events;
  all.dropped = 0;
  all.began = now();
  detail::recording = true;
}

void stop() {
  detail::recording = false;
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  for (const auto& buffer : all.buffers)
    while (buffer->writing) std::this_thread::yield();
}

void record(const Event& event) {
  Buffer& own = own_buffer();
  // In this order, and in the other one in stop(): a thread that stop() does not see writing sees that
  // nothing is recorded.
  own.writing = true;
  if (detail::recording) try {
      append(own, event);
    } catch (const std::bad_alloc&) {
      recorder().dropped.fetch_add(1, std::memory_order_relaxed);
    }
  own.writing.store(false, std::memory_order_release);
}

Recorded take() {
  expect(!recording(), "events of a trace that goes on");
  Recorder& all = recorder();
  const std::lock_guard lock(all.mutex);
  Recorded recorded;
  recorded.dropped = all.dropped;
  for (const auto& buffer : all.buffers) {
    std::size_t left = std::exchange(buffer->size, 0);
    for (const auto& piece : std::exchange(buffer->pieces, {})) {
      const std::size_t here = std::min(left, piece_events);
      recorded.events.insert(recorded.events.end(), piece->begin(), piece->begin() + here);
      left -= here;
    }
  }
  std::ranges::sort(recorded.events, {},
                    [](const Event& e) { return std::tuple(e.row, e.begin, -e.duration); });
  for (const Event& e : recorded.events)
    if (!recorded.rows.contains(e.row)) recorded.rows.emplace(e.row, name_of_row(e.row));
  return recorded;
}

void Span::open(Category category, const char* name, std::initializer_list<Argument> arguments) {
  expect(arguments.size() <= most_arguments, "a span with ", arguments.size(), " arguments");
  category_ = category;
  name_ = name;
  arguments_ = {};
  std::ranges::copy(arguments, arguments_.begin());
  begin_ = now();
}

void Span::close() { record({name_, begin_, now() - begin_, category_, own_row, arguments_}); }

}  // namespace nemocube::trace
