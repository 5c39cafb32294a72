#include "train/ranks/rank_settings.h"

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>

#include "core/environment.h"
#include "core/error.h"
#include "core/quote.h"

namespace nemocube {
namespace {

/// What the compiler was allowed to use: a build for "native" differs from machine to machine.
constexpr const char* own_instruction_set =
#if defined(__AVX512BF16__)
    "AVX-512 with bf16";
#elif defined(__AVX512F__)
    "AVX-512";
#elif defined(__AVX2__) && defined(__FMA__)
    "AVX2 and FMA";
#elif defined(__AVX__)
    "AVX";
#else
    "the plain one of the architecture";
#endif

/// By which glibc chooses its versions of exp, log and so on, as far as their results differ.
std::string instruction_set_of_c_library() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("fma") ? "FMA" : __builtin_cpu_supports("fma4") ? "FMA4" : "no FMA";
#else
  return "the plain one of the architecture";
#endif
}

/// "rank 1", "ranks 0, 2 and 3", "ranks 0 to 6 and 9"
std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;
    parts.push_back(end == i + 1 ? cat(ranks[i]) : cat(ranks[i], " to ", ranks[end - 1]));
    i = end;
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < parts.size(); ++i)
    text += cat(i == 0 ? "" : i + 1 < parts.size() ? ", " : " and ", parts[i]);
  return text;
}

struct Holders {
  std::string value;
  std::vector<std::size_t> ranks;
};

/// The ranks that have each value of setting `index`; the fewest ranks first, as the likely mistake.
std::vector<Holders> holders_of(std::span<const std::vector<RankSetting>> of_ranks, std::size_t index) {
  std::vector<Holders> all;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::string& value = of_ranks[rank][index].value;
    auto at = std::ranges::find(all, value, &Holders::value);
    if (at == all.end()) at = all.insert(at, Holders{value, {}});
    at->ranks.push_back(rank);
  }
  std::ranges::stable_sort(all, {}, [](const Holders& h) { return h.ranks.size(); });
  return all;
}

}  // namespace

std::vector<RankSetting> settings_of_this_rank() {
  std::vector<RankSetting> all;
  for (const EnvironmentVariable& variable : environment_variables) {
    if (variable.across_ranks == AcrossRanks::free) continue;
    const char* value = environment_variable(variable);
    all.push_back({cat("the environment variable ", variable.name), value ? quote(value) : "none",
                   variable.across_ranks == AcrossRanks::same_machines});
  }
  dnnl_fpmath_mode_t arithmetic{};
  expect(dnnl_get_default_fpmath_mode(&arithmetic) == dnnl_success, "oneDNN has no default arithmetic");
  all.push_back({"the arithmetic of oneDNN (ONEDNN_DEFAULT_FPMATH_MODE)", dnnl_fpmath_mode2str(arithmetic)});
  all.push_back({"the instruction set of oneDNN (ONEDNN_MAX_CPU_ISA, and the CPU)",
                 dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa()), true});
  all.push_back({"the choice among instructions by oneDNN (ONEDNN_CPU_ISA_HINTS)",
                 dnnl_cpu_isa_hints2str(dnnl_get_cpu_isa_hints()), true});
  all.push_back({"the instruction set that nemocube was compiled for", own_instruction_set, true});
  all.push_back(
      {"the instruction set of the C library (the CPU decides)", instruction_set_of_c_library(), true});
  return all;
}

std::string differing_settings(std::span<const std::vector<RankSetting>> of_ranks,
                               std::optional<bool> allow_differing_machines) {
  constexpr std::size_t most_values = 8;
  std::string text;
  bool any_of_machine = false;
  for (std::size_t i = 0; i < of_ranks[0].size(); ++i) {
    const auto& [name, value, of_machine] = of_ranks[0][i];
    if (of_machine && allow_differing_machines == true) continue;
    const auto holders = holders_of(of_ranks, i);
    if (holders.size() == 1) continue;
    any_of_machine |= of_machine;
    text += cat(text.empty() ? "" : "\n  ", name, " is not the same on all ranks: ");
    for (std::size_t h = 0; h < std::min(holders.size(), most_values); ++h)
      text += cat(h == 0 ? "" : "; ", ranks_text(holders[h].ranks),
                  holders[h].ranks.size() == 1 ? " has " : " have ", holders[h].value);
    if (holders.size() > most_values) text += cat("; ", holders.size() - most_values, " more values");
  }
  if (any_of_machine && allow_differing_machines)
    text += "\n  debug.allow_differing_instruction_sets: true lets machines of several kinds work together";
  return text;
}

}  // namespace nemocube
