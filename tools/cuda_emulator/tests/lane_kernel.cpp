#include "tests/lane_kernel.h"

#include "tests/harness.h"

namespace emulator::test {

LaneOutcome run_lanes(const std::string& body, const std::vector<LaneValues>& inputs, int outputs,
                      std::uint32_t threads, const std::string& declarations, std::uint64_t seed) {
  const std::uint64_t row_bytes = std::uint64_t{threads} * 4;
  Buffer in(row_bytes * std::max<std::size_t>(inputs.size(), 1)),
      out(row_bytes * static_cast<std::uint64_t>(std::max(outputs, 1)));
  std::string text = "mul.wide.u32 %rd90, %t, 4;\nadd.s64 %rd91, %p0, %rd90;\nadd.s64 %rd92, %p1, %rd90;\n";
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    in.write(inputs[k].data(), row_bytes, k * row_bytes);
    text += "ld.global.u32 %r" + std::to_string(k) + ", [%rd91+" + std::to_string(k * row_bytes) + "];\n";
  }
  text += body + "\n";
  const LaneValues initial(threads, untouched);
  for (int k = 0; k < outputs; ++k) {
    const std::uint64_t at = static_cast<std::uint64_t>(k) * row_bytes;
    out.write(initial.data(), row_bytes, at);
    text += "st.global.u32 [%rd92+" + std::to_string(at) + "], %r" + std::to_string(50 + k) + ";\n";
  }
  Module module({kernel_text(2, text, declarations)}, 0);
  take_reports();
  LaunchShape shape;
  shape.block = {threads, 1, 1};
  LaneOutcome outcome;
  outcome.error = run(module, shape, Arguments().add(in.address()).add(out.address()), "", seed);
  outcome.reports = take_reports();
  for (int k = 0; k < outputs; ++k) {
    outcome.rows.emplace_back(threads);
    out.read(outcome.rows.back().data(), row_bytes, static_cast<std::uint64_t>(k) * row_bytes);
  }
  return outcome;
}

}  // namespace emulator::test
