#pragma once
#include <cstdint>
#include <span>
#include <string>

/// What is said of kernels that do not get on: where their warps stand, and what they wait for.
namespace emulator {

class Block;
class Launch;

/// Instructions that warps of one launch may execute in loops that wait, while nothing happens that could end the wait, before the launch
/// counts as hanging: CUDA_EMULATOR_HANG_AFTER, default 2^23; 0: no limit. Instructions count a sixty-fourth while some warp computes, or
/// waits for memory that the host or another process may write.
std::uint64_t hang_limit();
constexpr std::uint64_t patience_with_others = 64;

/// A paragraph for each instruction at which warps stand:
///     12 warps of 3 blocks (first: block (0,0,0) warp 0): at barrier 1, where 64 of 96 threads have come
///         k.cu:12  bar.sync 1, 96;  (PTX line 31)
std::string describe_standstill(std::span<const Block* const> blocks);

/// SIGTERM and SIGINT, where they would end the process, let a running launch say first where it stands. A second signal ends
/// the process at once.
void answer_signals();
/// The signal that a running launch has to answer; 0: none.
int signal_to_answer();
/// Ends the process by that signal.
[[noreturn]] void end_by_signal();
/// While one lives, signals wait for the launch's answer.
class AnswersSignals {
 public:
  AnswersSignals();
  ~AnswersSignals();
  AnswersSignals(const AnswersSignals&) = delete;
};

}  // namespace emulator
