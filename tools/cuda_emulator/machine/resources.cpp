#include "machine/resources.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string_view>

#include "machine/device.h"
#include "machine/launch.h"

namespace emulator {
namespace {

namespace fs = std::filesystem;

std::string find_ptxas() {
  std::string folders = std::getenv("PATH") ? std::getenv("PATH") : "";
  if (const char* cuda = std::getenv("CUDA_PATH")) folders += ":" + std::string(cuda) + "/bin";
  folders += ":/usr/local/cuda/bin";
  std::istringstream list(folders);
  for (std::string folder; std::getline(list, folder, ':');)
    if (const std::string path = folder + "/ptxas"; access(path.c_str(), X_OK) == 0) return path;
  return {};
}

using UnitResources = std::map<std::string, KernelResources>;

/// Parses what ptxas -v says of each entry:
///     ptxas info    : Compiling entry function 'k' for 'sm_90'
///     ptxas info    : Function properties for k
///         8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
///     ptxas info    : Used 30 registers, used 1 barriers, 1024 bytes smem
UnitResources parse(std::istream& lines) {
  UnitResources found;
  std::string entry, properties;
  for (std::string line; std::getline(lines, line);) {
    if (const std::size_t at = line.find("Compiling entry function '"); at != std::string::npos) {
      const std::size_t begin = at + 26;
      entry = line.substr(begin, line.find('\'', begin) - begin);
    } else if (const std::size_t at_properties = line.find("Function properties for ");
               at_properties != std::string::npos) {
      properties = line.substr(at_properties + 24);
    } else if (line.find("bytes stack frame") != std::string::npos && properties == entry) {
      KernelResources& r = found[entry];
      std::sscanf(line.c_str(), " %u bytes stack frame, %u bytes spill stores, %u bytes spill loads",
                  &r.stack_bytes, &r.spill_store_bytes, &r.spill_load_bytes);
    } else if (const std::size_t at_used = line.find("Used "); at_used != std::string::npos) {
      KernelResources& r = found[entry];
      r.known = std::sscanf(line.c_str() + at_used, "Used %u registers", &r.registers) == 1;
    }
  }
  return found;
}

UnitResources run_ptxas(const std::string& text, const std::string& kernel) {
  static const std::string& ptxas =
      *new std::string(find_ptxas());  // never destroyed: kernels run among exit handlers
  if (ptxas.empty()) return {};
  std::string folder = (fs::temp_directory_path() / "cuda_emulator_XXXXXX").string();
  if (!mkdtemp(folder.data())) return {};
  UnitResources found;
  {
    std::ofstream(folder + "/unit.ptx") << text;
    // compute_90a texts need their own target.
    const char* target = text.find(".target sm_90a") != std::string::npos ? "sm_90a" : "sm_90";
    // --compile-only: names of other units stay open.
    const std::string command = "'" + ptxas + "' -arch=" + target + " -v --compile-only --entry '" + kernel +
                                "' '" + folder + "/unit.ptx' -o '" + folder + "/unit.cubin' >'" + folder +
                                "/log' 2>&1";
    // The child must not run on this process's emulated libraries.
    if (std::system(("env -u LD_LIBRARY_PATH " + command).c_str()) == 0) {
      std::ifstream log(folder + "/log");
      found = parse(log);
    }
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return found;
}

/// Behind the closing brace of the first { ... } after `at`, or behind the ';' of a declaration; the text's end when there is none.
std::size_t end_of_body(std::string_view text, std::size_t at) {
  std::size_t depth = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      at = std::min(text.find('"', at + 1), text.size() - 1);
    } else if (c == '/' && text.substr(at, 2) == "//") {
      at = std::min(text.find('\n', at), text.size() - 1);
    } else if (c == '/' && text.substr(at, 2) == "/*") {
      at = std::min(text.find("*/", at + 2), text.size() - 2) + 1;
    } else if (c == '{') {
      ++depth;
    } else if ((c == ';' && depth == 0) || (c == '}' && --depth == 0)) {
      return at + 1;
    }
  }
  return text.size();
}

std::uint64_t rounded_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::string without_other_entries(std::string_view text, std::string_view kernel) {
  constexpr std::string_view word = ".entry";
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; };
  std::string kept;
  std::size_t copied = 0;
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string_view::npos;) {
    std::size_t name = at + word.size();
    while (name < text.size() && is_space(text[name])) ++name;
    std::size_t name_end = name;
    while (name_end < text.size() && text[name_end] != '(' && !is_space(text[name_end])) ++name_end;
    const std::size_t line = text.rfind('\n', at) + 1, end = end_of_body(text, name_end);
    if (name > at + word.size() && text.substr(name, name_end - name) != kernel) {
      kept += text.substr(copied, line - copied);
      copied = end;
    }
    at = end;
  }
  kept += text.substr(copied);
  return kept;
}

const KernelResources& resources_of(const Kernel& kernel) {
  static std::mutex mutex;
  static auto& kernels = *new std::map<const Kernel*, KernelResources>;  // never destroyed
  const std::lock_guard lock(mutex);
  auto found = kernels.find(&kernel);
  if (found == kernels.end()) {
    KernelResources resources;
    if (kernel.unit_text) {
      // Units of CUB hold hundreds of entries, and most of ptxas's time goes into reading them.
      resources = run_ptxas(without_other_entries(*kernel.unit_text, kernel.name), kernel.name)[kernel.name];
      if (!resources.known) resources = run_ptxas(*kernel.unit_text, kernel.name)[kernel.name];
    }
    found = kernels.emplace(&kernel, resources).first;
  }
  return found->second;
}

Residency blocks_per_multiprocessor(std::uint32_t threads, std::uint32_t registers,
                                    std::uint64_t shared_bytes) {
  const std::uint32_t warps = (std::max(threads, 1u) + 31) / 32;
  Residency found{32, "32 blocks a multiprocessor"};
  const auto limit = [&](std::uint64_t blocks, const std::string& what) {
    if (blocks < found.blocks) found = {blocks, what};
  };
  limit(64 / warps, std::to_string(threads) + " threads a block");
  const std::uint64_t warp_registers = rounded_up(std::uint64_t{std::max(registers, 1u)} * 32, 256);
  limit(registers > 255 ? 0 : 4 * (16384 / warp_registers) / warps,
        std::to_string(registers) + " registers a thread");
  limit((228u << 10) / rounded_up(shared_bytes + 1024, 128),
        std::to_string(shared_bytes) + " bytes of shared memory a block");
  return found;
}

Residency residency_of(const Launch& launch, std::uint32_t registers) {
  const Kernel& kernel = launch.kernel();
  const ptx::Dim3& block = launch.shape().block;
  Residency found = blocks_per_multiprocessor(
      block.x * block.y * block.z, registers,
      kernel.dynamic_shared_offset - kernel.shared_gap_bytes + launch.shape().dynamic_shared);
  found.blocks = std::max<std::uint64_t>(found.blocks, 1) * h100::multiprocessors;
  return found;
}

}  // namespace emulator
