#include "core/cuda/graph.h"

#include <ranges>

#include "core/error.h"
#include "core/log.h"

namespace nemocube::cuda {
namespace {
thread_local Capture* current_capture = nullptr;
}

Capture::Capture() {
  expect(!current_capture, "a capture within a capture");
  current_capture = this;
}

Capture::~Capture() {
  current_capture = nullptr;
  for (const auto& call : std::views::reverse(at_end_)) call();
}

Capture* Capture::current() { return current_capture; }

void Capture::watch(const std::string& operation, const LaunchWatch& watch) {
  if (kept_.watched++ > 0) return;
  kept_.watch = watch;
  kept_.first_watched = operation;
}

std::string Capture::Kept::text(std::int64_t launch) const {
  return cat("launch ", launch, " of a CUDA graph with ", counted(watched, "operation"),
             ", the first captured as ", first_watched);
}

void refuse_in_capture(std::string_view what) {
  if (current_capture) fail("cannot be captured: ", what);
}

}  // namespace nemocube::cuda
