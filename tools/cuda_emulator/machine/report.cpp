#include "machine/report.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>

#include "machine/block.h"
#include "machine/launch.h"
#include "machine/warp.h"
#include "memory/address_space.h"

namespace emulator {
namespace {

constexpr std::uint64_t printed_at_most = 200;
constexpr std::size_t kept_kinds = 10'000;

struct Seen {
  Severity severity;
  std::string kind, where;  ///< kernel and statement
  std::uint64_t count = 0;
};

struct State {
  std::mutex mutex;
  std::map<std::string, Seen, std::less<>> seen;
  std::uint64_t printed = 0, errors = 0, warnings = 0, notes = 0;
  std::vector<std::string> kinds;

  void count(Severity severity, std::string_view kind) {
    ++(severity == Severity::error ? errors : severity == Severity::warning ? warnings : notes);
    if (kinds.size() < kept_kinds) kinds.emplace_back(kind);
  }
};

State& state() {
  static State* const s = new State;  // never destroyed: reports are made until the process ends
  return *s;
}

const char* name_of(Severity severity) {
  return severity == Severity::error ? "error" : severity == Severity::warning ? "warning" : "note";
}

std::string position(const ptx::Dim3& p) {
  return "(" + std::to_string(p.x) + "," + std::to_string(p.y) + "," + std::to_string(p.z) + ")";
}

std::string readable_kernel(const Warp& warp) {
  const Kernel& kernel = warp.block().launch().kernel();
  return kernel.readable.empty() ? kernel.name : kernel.readable;
}

/// "kernel saxpy(int, float*) block (3,0,0) thread (17,0,0)"
std::string describe_thread(const ReportPlace& place) {
  const Block& block = place.warp->block();
  std::string text = "kernel " + readable_kernel(*place.warp) + " block " + position(block.position());
  if (place.lane >= 0) {
    const ptx::Dim3& shape = block.launch().shape().block;
    const std::uint32_t thread = place.warp->thread(place.lane);
    text += " thread " + position({thread % shape.x, thread / shape.x % shape.y, thread / shape.x / shape.y});
  }
  return text;
}

/// Empty without an instruction.
std::string key_of(std::string_view kind, const ReportPlace& place) {
  if (!place.instruction) return "";
  std::string key(kind);
  if (place.warp) (key += '\0') += place.warp->block().launch().kernel().name;
  const auto identity = reinterpret_cast<std::uintptr_t>(place.instruction);
  key += '\0';
  return key.append(reinterpret_cast<const char*>(&identity), sizeof identity);
}

}  // namespace

std::string describe_statement(const ReportPlace& place) {
  if (!place.instruction->statement) return "";
  const ptx::Statement& s = *place.instruction->statement;
  std::string text;
  const ptx::Module* module = nullptr;
  if (place.warp) module = place.warp->block().launch().kernel().function->module;
  if (module) text = describe_source(*module, s.place);
  if (!text.empty()) text += "  ";
  return text + s.text + "  (PTX line " + std::to_string(s.place.line) + ")";
}

std::string describe_source(const ptx::Module& module, const ptx::Place& place) {
  const auto line = [&](std::uint32_t file, std::uint32_t number) {
    return number && file < module.files.size() ? module.files[file] + ":" + std::to_string(number) : "";
  };
  std::string text = line(place.file, place.source_line);
  if (text.empty() || !place.inlining) return text;
  const ptx::Inlining* outermost = &module.inlinings.at(place.inlining);
  while (outermost->inlining) outermost = &module.inlinings.at(outermost->inlining);
  return text + ", called from " + line(outermost->file, outermost->source_line);
}

std::string describe_line(const Function& function, std::uint32_t line) {
  std::string text = "PTX line " + std::to_string(line);
  if (!function.module) return text;
  for (const ptx::Function& f : function.module->functions)
    for (const ptx::Statement& s : f.statements)
      if (s.place.line == line) {
        if (const std::string source = describe_source(*function.module, s.place); !source.empty())
          text = source + ", " + text;
        return text + ", '" + s.text + "'";
      }
  return text;
}

bool strict() {
  static const bool set = [] {
    const char* const text = std::getenv("CUDA_EMULATOR_STRICT");
    return text && *text && std::string_view(text) != "0";
  }();
  return set;
}

void report(Severity severity, std::string_view kind, std::string_view message, const ReportPlace& place,
            std::string_view details) {
  if (severity == Severity::warning && strict()) severity = Severity::error;
  std::string key = key_of(kind, place);
  if (key.empty()) key = std::string(kind) + '\1' + std::string(message);
  State& s = state();
  std::lock_guard lock(s.mutex);
  s.count(severity, kind);
  Seen& seen = s.seen[key];
  if (seen.count++) return;
  seen.severity = severity;
  seen.kind = kind;
  std::string text = std::string("cuda_emulator: ") + name_of(severity) + ": " + std::string(message) + " [" +
                     std::string(kind) + "]\n";
  if (place.warp) {
    text += "    " + describe_thread(place) + "\n";
    seen.where = readable_kernel(*place.warp);
  }
  if (place.instruction) {
    const std::string statement = describe_statement(place);
    text += "    " + statement + "\n";
    seen.where += (seen.where.empty() ? "" : ", ") + statement;
  }
  text += details;
  if (++s.printed > printed_at_most) return;
  if (s.printed == printed_at_most) text += "cuda_emulator: further reports are counted, but not printed\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

bool repeated(std::string_view kind, const ReportPlace& place) {
  const std::string key = key_of(kind, place);
  if (key.empty()) return false;
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto it = s.seen.find(key);
  if (it == s.seen.end()) return false;
  ++it->second.count;
  s.count(it->second.severity, kind);
  return true;
}

bool was_reported(std::string_view kind, const ReportPlace& place) {
  const std::string key = key_of(kind, place);
  State& s = state();
  std::lock_guard lock(s.mutex);
  return !key.empty() && s.seen.contains(key);
}

void report_no_addresses(const char* why) {
  report(Severity::error, "device-memory",
         std::string("the emulator cannot reserve addresses for a device's memory (") + why +
             "); CUDA_EMULATOR_MEMORY sets its size in bytes");
}

std::uint64_t reported_errors() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  return s.errors;
}

void print_report_summary() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (s.errors + s.warnings + s.notes == 0) return;
  std::string text;
  for (const auto& [key, seen] : s.seen) {
    if (seen.count < 2) continue;
    text += std::string("cuda_emulator: ") + name_of(seen.severity) + ": " + seen.kind + ": " +
            std::to_string(seen.count) + " times" + (seen.where.empty() ? "" : " in " + seen.where) + "\n";
  }
  text += "cuda_emulator: " + std::to_string(s.errors) + " errors, " + std::to_string(s.warnings) +
          " warnings, " + std::to_string(s.notes) + " notes\n";
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

int exit_status(int own) { return own == 0 && reported_errors() ? 99 : own; }

std::vector<std::string> take_report_kinds() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  return std::exchange(s.kinds, {});
}

}  // namespace emulator
