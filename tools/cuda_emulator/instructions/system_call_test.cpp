#include "instructions/system_call.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "tests/harness.h"

using namespace emulator;
using namespace emulator::test;

namespace {

/// What f() writes to a file descriptor.
template <class F>
std::string output_of(int descriptor, F f) {
  std::fflush(nullptr);
  const int saved = dup(descriptor);
  std::FILE* file = std::tmpfile();
  dup2(fileno(file), descriptor);
  f();
  std::fflush(nullptr);
  dup2(saved, descriptor);
  close(saved);
  std::string text(static_cast<std::size_t>(std::ftell(file) < 0 ? 0 : lseek(fileno(file), 0, SEEK_END)),
                   '\0');
  if (pread(fileno(file), text.data(), text.size(), 0) < 0) text.clear();
  std::fclose(file);
  return text;
}

std::string bytes_of(const std::string& name, const std::string& text) {
  std::string out = ".global .align 1 .b8 " + name + "[" + std::to_string(text.size() + 1) + "] = {";
  for (const char c : text) out += std::to_string(static_cast<int>(c)) + ", ";
  return out + "0};\n";
}

constexpr const char* declarations =
    ".extern .func (.param .b32 func_retval0) vprintf (.param .b64 v0, .param .b64 v1);\n"
    ".extern .func (.param .b64 func_retval0) malloc (.param .b64 m0);\n"
    ".extern .func free (.param .b64 f0);\n"
    ".extern .func __assertfail (.param .b64 a0, .param .b64 a1, .param .b32 a2, .param .b64 a3, .param .b64 "
    "a4);\n";

std::string call_printf(const std::string& format) {
  return "{ .param .b64 param0; .param .b64 param1; .param .b32 retval0; mov.u64 %rd1, " + format +
         "; cvta.global.u64 %rd1, %rd1; st.param.b64 [param0], %rd1; st.param.b64 [param1], %rd2;"
         "call.uni (retval0), vprintf, (param0, param1); ld.param.b32 %r1, [retval0]; }";
}

int run_text(const std::string& body, const std::string& strings, std::uint64_t argument,
             std::uint32_t threads) {
  take_reports();
  Module module({kernel_text(1, body, declarations + strings)}, 0);
  LaunchShape shape;
  shape.block = {threads, 1, 1};
  return run(module, shape, Arguments().add(argument));
}

}  // namespace

TEST_CASE("vprintf formats from a local buffer and prints when asked to") {
  const std::string body =
      ".local .align 8 .b8 l[64]; mov.u64 %rd2, l; cvta.local.u64 %rd2, %rd2;"
      "st.u32 [%rd2], %t; st.u32 [%rd2+4], -2; st.u64 [%rd2+8], 123456789012345; st.f64 [%rd2+16], "
      "0d3FF8000000000000;"
      "mov.u64 %rd3, name; cvta.global.u64 %rd3, %rd3; st.u64 [%rd2+24], %rd3;" +
      call_printf("format") + "setp.eq.u32 %q1, %t, 0; @%q1 st.global.u32 [%p0], %r1;";
  Buffer count(4);
  int error = -1;
  const std::string text = output_of(1, [&] {
    error = run_text(body, bytes_of("format", "%d %hhd %llu %6.2f <%s> 100%%\n") + bytes_of("name", "abc"),
                     count.address(), 2);
    std::fputs("host\n", stdout);
    flush_printf();
  });
  CHECK(error == 0);
  CHECK(text == "host\n0 -2 123456789012345   1.50 <abc> 100%\n1 -2 123456789012345   1.50 <abc> 100%\n");
  CHECK(count.values<std::uint32_t>(1)[0] == 5);
  CHECK(output_of(1, [] { flush_printf(); }).empty());
}

TEST_CASE("a full FIFO loses the oldest output") {
  const std::size_t limit = printf_limit();
  set_printf_limit(12);
  int error = -1;
  const std::string text = output_of(1, [&] {
    error =
        run_text(".local .align 8 .b8 l[8]; mov.u64 %rd2, l; cvta.local.u64 %rd2, %rd2; st.u32 [%rd2], %t;" +
                     call_printf("format"),
                 bytes_of("format", "%03d\n"), 0, 8);
    flush_printf();
  });
  set_printf_limit(limit);
  CHECK(error == 0);
  CHECK(text == "005\n006\n007\n");
}

TEST_CASE("a format that is none is an error") {
  CHECK(run_text("mov.u64 %rd2, 0;" + call_printf("format"), bytes_of("format", "%d"), 0, 1) == 0);
  CHECK(take_reports() == std::vector<std::string>{"printf"});
}

TEST_CASE("a failed assertion names the thread and ends the kernel with error 710") {
  const auto string = [](const std::string& param, const std::string& name) {
    return "mov.u64 %rd1, " + name + "; cvta.global.u64 %rd1, %rd1; st.param.b64 [" + param + "], %rd1;";
  };
  const std::string body =
      "setp.ne.u32 %q1, %t, 3; @%q1 bra fine; { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; "
      ".param .b64 e;" +
      string("a", "expression") + string("b", "file") + "st.param.b32 [c], 42;" + string("d", "function") +
      "st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); } fine:";
  int error = -1;
  const std::string text = output_of(2, [&] {
    error = run_text(
        body, bytes_of("expression", "x > 0") + bytes_of("file", "a.cu") + bytes_of("function", "void f()"),
        0, 8);
  });
  CHECK(error == 710);
  CHECK(text.starts_with("a.cu:42: void f(): block: [0,0,0], thread: [3,0,0] Assertion `x > 0` failed.\n"));
  CHECK(take_reports() == std::vector<std::string>{"assert"});
}

TEST_CASE("memory of the device heap") {
  const auto allocate = [](const std::string& bytes, const std::string& result) {
    return "{ .param .b64 m; .param .b64 r; mov.u64 %rd9, " + bytes +
           "; st.param.b64 [m], %rd9; call.uni (r), malloc, (m); ld.param.b64 " + result + ", [r]; }";
  };
  const auto release = [](const std::string& pointer) {
    return "{ .param .b64 f; st.param.b64 [f], " + pointer + "; call.uni free, (f); }";
  };
  Buffer out(16);
  const std::string use = allocate("64", "%rd1") + "st.u32 [%rd1+60], %t; ld.u32 %r1, [%rd1+60];";
  CHECK(run_text(use + release("%rd1"), "", out.address(), 64) == 0);
  CHECK(take_reports().empty());
  CHECK(run_text(use + release("%rd1") + "ld.u32 %r2, [%rd1+60];", "", out.address(), 1) == 700);
  CHECK(take_reports() == std::vector<std::string>{"use-after-free"});
  CHECK(run_text(use + release("%p0"), "", out.address(), 1) == 700);
  CHECK(take_reports() == std::vector<std::string>{"bad-free"});
  CHECK(run_text(allocate("64", "%rd1") + "st.u32 [%rd1+64], %t;", "", out.address(), 1) == 700);
  CHECK(take_reports() == std::vector<std::string>{"out-of-bounds"});
  // The heap ends at its limit; free makes room again.
  const std::size_t limit = heap_limit();
  set_heap_limit(1 << 20);
  CHECK(run_text(allocate("1048576", "%rd1") + allocate("900000", "%rd2") + "st.global.u64 [%p0], %rd1;" +
                     allocate("100000", "%rd3") + release("%rd2") + allocate("900000", "%rd3") +
                     "st.global.u64 [%p0+8], %rd3;" + release("%rd3"),
                 "", out.address(), 1) == 0);
  set_heap_limit(limit);
  const auto pointers = out.values<std::uint64_t>(2);
  CHECK(pointers[0] == 0);  // what earlier kernels hold counts too
  CHECK(pointers[1] != 0);
}
