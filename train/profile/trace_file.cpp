#include "train/profile/trace_file.h"

#include <optional>
#include <span>

#include "core/error.h"
#include "data/json/atomic_file.h"

namespace nemocube {
namespace {

/// The file of rank 0, until something fails.
class TraceFile {
 public:
  TraceFile(const std::filesystem::path& target, const std::string& other_data) {
    attempt([&] {
      std::filesystem::create_directories(target.parent_path());
      file_.emplace(target);
      file_->write(cat("{\"displayTimeUnit\":\"ms\",\n\"otherData\":", other_data, ",\n\"traceEvents\":["));
    });
  }
  void add(std::string_view events) {
    if (first_) events.remove_prefix(1);  // the comma
    first_ = false;
    attempt([&] { file_->write(events); });
  }
  TraceFileResult finish() {
    attempt([&] {
      file_->write("\n]}\n");
      file_->commit();
      result_.bytes = file_->written();
    });
    return result_;
  }

 private:
  void attempt(const auto& work) {
    if (!result_.problem.empty()) return;
    try {
      work();
    } catch (const std::exception& e) {  // an Error, or one of std::filesystem
      result_.problem = e.what();
      file_.reset();
    }
  }

  std::optional<AtomicFile> file_;
  bool first_ = true;
  TraceFileResult result_;
};

Tensor memory_of(std::span<char> text) { return comm_detail::bytes_on_host(text); }

std::string receive_piece(Communicator& all, int rank) {
  std::int64_t bytes = 0;
  all.exchange({}, {{comm_detail::values_on_host(std::span(&bytes, 1)), rank}});
  std::string text(static_cast<std::size_t>(bytes), '\0');
  if (bytes > 0) all.exchange({}, {{memory_of(text), rank}});
  return text;
}

void send_piece(Communicator& all, std::string text) {
  auto bytes = static_cast<std::int64_t>(text.size());
  all.exchange({{comm_detail::values_on_host(std::span(&bytes, 1)), 0}}, {});
  if (bytes > 0) all.exchange({{memory_of(text), 0}}, {});
}

}  // namespace

TraceFileResult write_trace(Communicator& all, const std::filesystem::path& target,
                            const std::string& other_data, const std::function<std::string()>& next) {
  std::string piece;
  if (all.rank() > 0) {
    do {
      send_piece(all, piece = next());
    } while (!piece.empty());
    return {};
  }
  TraceFile file(target, other_data);
  while (!(piece = next()).empty()) file.add(piece);
  for (int rank = 1; rank < all.size(); ++rank)
    while (!(piece = receive_piece(all, rank)).empty()) file.add(piece);
  return file.finish();
}

}  // namespace nemocube
