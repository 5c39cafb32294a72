#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/support/paths.h"
#include "tests/support/terminal_process.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

namespace fs = std::filesystem;

ProcessResult watch(const RunDir& dir, const std::vector<std::string>& more = {"--once"}) {
  std::vector<std::string> command{program(), "watch", "straight"};
  command.insert(command.end(), more.begin(), more.end());
  return run_process(command, dir.path());
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// The logs of a run that goes on.
void write_logs(const RunDir& dir) {
  fs::create_directories(dir / "straight");
  spit(dir / "straight" / "history.jsonl", "{\"step\": 0, \"event\": \"start\", \"total_steps\": 50}\n");
  spit(dir / "straight" / "training.jsonl", "{\"step\": 0, \"loss\": 7.5}\n");
}

bool canonical_and_echo(const termios& settings) {
  return (settings.c_lflag & ICANON) != 0 && (settings.c_lflag & ECHO) != 0;
}

constexpr const char *screen_taken = "\033[?1049h", *screen_given_back = "\033[?25h\033[?1049l";

}  // namespace

TEST_CASE("watch: before a run, while it goes on, after a signal, and after it has gone on to its end") {
  const RunDir dir;
  const ProcessResult before = watch(dir);
  CHECK(before.exit_code == 0);
  CHECK(before.out.find("waiting: no such directory yet") != std::string::npos);
  CHECK_FALSE(fs::exists(dir / "straight"));
  CHECK(before.out.find("nearest") == std::string::npos);
  fs::create_directories(dir / "stairght");
  CHECK(watch(dir).out.find("\nthe nearest name that is there: stairght\n") != std::string::npos);
  fs::remove(dir / "stairght");

  Process running(RunDir::train_command(endless), dir.path());
  wait_for_steps(dir);
  const ProcessResult during = watch(dir);
  CAPTURE(during.out);
  CHECK(during.exit_code == 0);
  CHECK(during.err.empty());
  CHECK(first_line(during.out).find(" running, last step ") != std::string::npos);
  CHECK(during.out.find(" of 100000 steps (0 %)") != std::string::npos);
  CHECK(during.out.find("\nloss ") != std::string::npos);
  CHECK(during.out.find('\033') == std::string::npos);
  running.signal(SIGTERM);
  CHECK(running.wait().exit_code == 128 + SIGTERM);
  const auto files = files_below(dir / "straight");
  const ProcessResult stopped = watch(dir, {});  // without a terminal as with --once
  CHECK(first_line(stopped.out).ends_with(" stopped by signal 15"));
  CHECK(stopped.out.find("checkpoint    epoch_") != std::string::npos);
  CHECK(stopped.out.find("\nstopped by signal 15 (Terminated): ") != std::string::npos);

  const std::size_t done = read_jsonl(dir / "straight" / "training.jsonl").size();
  std::vector<std::string> to_the_end = endless;
  to_the_end[0] = cat("step_scheduler.max_steps=", done + 2);
  to_the_end[2] = "step_scheduler.ckpt_every_steps=1";
  CHECK(files == files_below(dir / "straight"));  // watching has written nothing
  REQUIRE(dir.train(to_the_end).exit_code == 0);
  const ProcessResult after = watch(dir);
  CAPTURE(after.out);
  CHECK(first_line(after.out).ends_with(" done"));
  CHECK(after.out.find(cat("\n", done + 2, " of ", done + 2, " steps (100 %)")) != std::string::npos);
}

TEST_CASE("watch: the history of a run has its failure") {
  const RunDir dir;
  const ProcessResult run =
      dir.train({"optimizer.lr=100", "lr_scheduler=null", "clip_grad_norm.max_norm=null",
                 "step_scheduler.max_nonfinite_steps=1"});
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 2);
  const auto history = read_jsonl(dir / "straight" / "history.jsonl");
  REQUIRE(history.size() >= 2);
  CHECK(history.front().at("event") == "start");
  CHECK(history.front().at("total_steps") == 12);
  CHECK(history.back().at("event") == "error");
  CHECK(run.err.find("error: " + history.back().at("text").get<std::string>()) != std::string::npos);
  CHECK(first_line(watch(dir).out).ends_with(" failed"));
}

TEST_CASE("watch: on a terminal it redraws, follows the size, and gives the terminal back") {
  const RunDir dir;
  write_logs(dir);
  struct Way {
    const char* keys;
    int signal, exit_code;
  };
  for (const Way& way : {Way{"q", 0, 0}, Way{"\003", 0, 0}, Way{"\034", 0, 128 + SIGQUIT},
                         Way{"", SIGTERM, 128 + SIGTERM}, Way{"", SIGHUP, 128 + SIGHUP}}) {
    CAPTURE(way.keys);
    CAPTURE(way.signal);
    TerminalProcess watching({program(), "watch", "straight", "--interval", "0.1"}, 70, 20, dir.path());
    const termios before = watching.settings();
    CHECK(canonical_and_echo(before));
    std::string screen = watching.wait_for("1 of 50 steps (2 %)");
    CHECK(screen.find(screen_taken) != std::string::npos);
    CHECK(screen.find(screen_given_back) == std::string::npos);
    CHECK_FALSE(canonical_and_echo(watching.settings()));
    std::ofstream(dir / "straight" / "training.jsonl", std::ios::app) << "{\"step\": 1, \"loss\": 3.25}\n";
    CHECK(watching.wait_for("loss 3.25").find("2 of 50 steps") != std::string::npos);
    const std::size_t seen = watching.wait_for("").size();
    watching.resize(40, 10);
    CHECK(watching.wait_for("loss 3.2500, lowest 3.2500 at step 1...\033[K", seen).size() > seen);
    if (*way.keys != '\0') watching.type(way.keys);
    if (way.signal != 0) watching.signal(way.signal);
    CHECK(watching.wait() == way.exit_code);
    screen = watching.wait_for("");
    const std::size_t given_back = screen.rfind(screen_given_back);
    REQUIRE(given_back != std::string::npos);
    CHECK(screen.find("2 of 50 steps", given_back) != std::string::npos);  // the last view stays
    const termios after = watching.settings();
    CHECK(after.c_lflag == before.c_lflag);
    CHECK(after.c_iflag == before.c_iflag);
    CHECK(after.c_oflag == before.c_oflag);
    write_logs(dir);
  }
}

TEST_CASE("watch: Ctrl-Z gives the terminal back until the process goes on") {
  const RunDir dir;
  write_logs(dir);
  TerminalProcess watching({program(), "watch", "straight", "--interval", "0.1"}, 80, 24, dir.path());
  const std::size_t seen = watching.wait_for("1 of 50 steps").size();
  watching.type("\032");
  const std::size_t left = watching.wait_for(screen_given_back, seen).find(screen_given_back, seen);
  REQUIRE(left != std::string::npos);
  // One that comes before the process has stopped has no effect.
  for (int i = 0; i < 600 && watching.wait_for("").find(screen_taken, left) == std::string::npos; ++i) {
    watching.signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  CHECK(watching.wait_for("1 of 50 steps", left).find("1 of 50 steps", left) != std::string::npos);
  watching.type("q");
  CHECK(watching.wait() == 0);
}

TEST_CASE("watch: on a terminal it ends with the run, and goes on with --keep") {
  const RunDir dir;
  write_logs(dir);
  TerminalProcess watching({program(), "watch", "straight", "--interval", "0.1"}, 80, 24, dir.path());
  TerminalProcess keeping({program(), "watch", "straight", "--interval", "0.1", "--keep"}, 80, 24,
                          dir.path());
  watching.wait_for("1 of 50 steps");
  std::ofstream(dir / "straight" / "history.jsonl", std::ios::app)
      << "{\"step\": 1, \"event\": \"end\", \"signal\": 0, \"text\": \"done: all of it\"}\n";
  CHECK(watching.wait() == 0);
  CHECK(watching.wait_for("").rfind("done: all of it") > watching.wait_for("").rfind(screen_given_back));
  CHECK(keeping.wait_for("done: all of it").find(screen_given_back) == std::string::npos);
  keeping.type("q");
  CHECK(keeping.wait() == 0);
}

TEST_CASE("watch: wrong arguments") {
  const RunDir dir;
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& text) {
    std::vector<std::string> command{program(), "watch"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const ProcessResult run = run_process(command, dir.path());
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(run.err.find(text) != std::string::npos);
  };
  refused({}, "run is required");
  refused({""}, "is empty");
  refused({"recipe.yaml"}, "recipe.yaml: want the directory of a run");
  write_logs(dir);
  refused({"."}, "is no run, but holds 1 run: ./straight; want one of them");
  refused({"straight", "--interval", "0"}, "--interval: want 0.1 to 3600 seconds, got 0");
  refused({"straight", "--interval", "soon"}, "--interval");
  refused({"straight", "--steps", "1"}, "--steps");
}
