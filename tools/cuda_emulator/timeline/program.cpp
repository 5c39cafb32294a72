#include "timeline/program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <system_error>

namespace emulator::timeline {
namespace {

[[noreturn]] void become(char** words, const sigset_t& mask) {
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  execvp(words[0], words);
  const int error = errno;
  std::cerr << "cuda_emulator: cannot start " << words[0] << ": " << std::strerror(error) << '\n';
  _exit(error == ENOENT ? 127 : 126);
}

}  // namespace

int run_program(char** words) {
  std::signal(SIGCHLD, SIG_DFL);  // one that is ignored would not be told
  sigset_t wanted, before;
  sigemptyset(&wanted);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&wanted, signal);
  sigprocmask(SIG_BLOCK, &wanted, &before);
  const pid_t program = fork();
  if (program < 0) throw std::system_error(errno, std::generic_category(), "cannot start a process");
  if (program == 0) become(words, before);
  for (;;) {
    int status = 0;
    if (waitpid(program, &status, WNOHANG) == program)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    siginfo_t signal;
    const bool from_process = sigwaitinfo(&wanted, &signal) > 0 && signal.si_code <= 0;
    if (from_process && signal.si_signo != SIGCHLD) kill(program, signal.si_signo);
  }
}

}  // namespace emulator::timeline
