#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ptx/syntax.h"

namespace emulator {

class Warp;
struct Function;
struct Instruction;

enum class Severity : std::uint8_t { error, warning, note };

/// Whether CUDA_EMULATOR_STRICT is set and not 0: report() makes errors of warnings then.
bool strict();
/// Of what harms no result, as leaks: a note, or an error when strict.
inline Severity note_unless_strict() { return strict() ? Severity::error : Severity::note; }

/// Where a report comes from, as far as it is known: each part is printed when it is set.
struct ReportPlace {
  const Warp* warp = nullptr;  ///< kernel, block and (with lane >= 0) thread
  int lane = -1;
  const Instruction* instruction = nullptr;  ///< PTX line and text, source file and line
};

/// Prints a report to standard error at once:
///     cuda_emulator: error: out-of-bounds read of 4 bytes at 0x7f..: 12 bytes past the end of allocation 3 (cudaMalloc, 1024 bytes) [out-of-bounds]
///         kernel saxpy(int, float*) block (3,0,0) thread (17,0,0)
///         saxpy.cu:14  ld.global.f32 %f1, [%rd4];  (PTX line 57)
/// Code of an inlined function is named with the outermost call of it: "block_scan.cuh:345, called from saxpy.cu:14".
/// The same kind at the same instruction of the same kernel (without an instruction: the same message) is printed once and counted; the
/// total appears at exit. At most 200 reports are printed. `kind` is a short stable name ("out-of-bounds", "shared-race").
/// Any error makes the process exit with status 99 unless its own status is not 0: see exit_status. Thread-safe; calls nothing
/// that takes other locks.
/// `details`: whole lines that follow.
void report(Severity severity, std::string_view kind, std::string_view message, const ReportPlace& place = {},
            std::string_view details = {});

/// Whether report() would only count: the kind was printed for the instruction before. Counts it in this case, so that callers
/// that find one fault a million times need not build a million messages:
///     if (!repeated(kind, place)) report(severity, kind, message(), place);
bool repeated(std::string_view kind, const ReportPlace& place);
/// The same question without counting.
bool was_reported(std::string_view kind, const ReportPlace& place);

/// "saxpy.cu:14  ld.global.f32 %f1, [%rd4];  (PTX line 57)"
std::string describe_statement(const ReportPlace& place);

/// "saxpy.cu:14", or "block_scan.cuh:345, called from saxpy.cu:14" for code of inlined functions. "" without a source line.
std::string describe_source(const ptx::Module& module, const ptx::Place& place);

/// "saxpy.cu:14, PTX line 57, 'st.shared.u32 [%r1], %r2'" of a statement of the kernel or of a function that the kernel calls.
std::string describe_line(const Function& function, std::uint32_t line);

std::uint64_t reported_errors();
/// Prints how often repeated reports were seen, and one line with the numbers of errors, warnings and notes if there were any.
void print_report_summary();
/// What the process should exit with when the program's own status is `own`: 99 if that is 0 and errors were reported.
int exit_status(int own);
/// Kinds of all reports since the last call, in order and with repetitions, for tests (at most 10,000 are kept).
std::vector<std::string> take_report_kinds();

}  // namespace emulator
