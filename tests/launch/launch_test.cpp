#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "data/json/test_dir.h"
#include "tests/support/mpirun.h"
#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/training/run_support.h"

using namespace nemocube;
using namespace nemocube::testing;

// The scripts of tools/launch.

namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::string tool(const char* name) { return (source_dir() / "tools" / "launch" / name).string(); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

void write_script(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  spit(file, "#!/bin/sh\n" + text);
  fs::permissions(file, fs::perms::owner_all);
}

/// A machine of 4 devices, two on each of 2 NUMA nodes of 6 and 3 CPUs, for bind.sh: what taskset is asked for.
class FakeMachine {
 public:
  FakeMachine() {
    write_script(dir_ / "bin/nvidia-smi",
                 "printf '00000000:0A:00.0\\n00000000:0B:00.0\\n00000000:8A:00.0\\n"
                 "00000000:8B:00.0\\n'\n");
    write_script(dir_ / "bin/taskset", "echo \"$@\"\n");
    for (const auto& [pci, node] : {std::pair{"0a", "0"}, {"0b", "0"}, {"8a", "1"}, {"8b", "1"}})
      write(cat("bus/pci/devices/0000:", pci, ":00.0/numa_node"), node);
    write("devices/system/node/node0/cpulist", "0-3,8-9");
    write("devices/system/node/node1/cpulist", "4-6");
  }
  ProcessResult bind(const Words& variables) const {
    Words words{"env", "-u", "CUDA_VISIBLE_DEVICES"};
    words.insert(words.end(), variables.begin(), variables.end());
    words.insert(words.end(),
                 {"PATH=" + (dir_ / "bin").string() + ":/usr/bin:/bin",
                  "NEMOCUBE_SYS=" + (dir_ / "sys").string(), tool("bind.sh"), "echo", "program"});
    return run_process(words, dir_.path());
  }
  const TestDir& dir() const { return dir_; }

 private:
  void write(const std::string& name, const char* text) const {
    const fs::path file = dir_ / "sys" / name;
    fs::create_directories(file.parent_path());
    spit(file, cat(text, "\n"));
  }
  TestDir dir_;
};

}  // namespace

TEST_CASE("launch: every topology is one that nemocube plan accepts, with the groups of the published runs") {
  struct Topology {
    const char *nodes, *groups;
  };
  for (const Topology& t : {Topology{"1",
                                     "8 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 4 x pp 1, experts: "
                                     "expt_tp 1 x ep 8 x expt_dp 1"},
                            {"9",
                             "64 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 32 x pp 1, experts: "
                             "expt_tp 1 x ep 16 x expt_dp 4"},
                            {"33",
                             "256 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 128 x pp 1, experts: "
                             "expt_tp 1 x ep 8 x expt_dp 32"},
                            {"68",
                             "512 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 256 x pp 1, experts: "
                             "expt_tp 1 x ep 8 x expt_dp 64"},
                            {"100",
                             "768 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 384 x pp 1, experts: "
                             "expt_tp 1 x ep 8 x expt_dp 96"}}) {
    CAPTURE(t.nodes);
    const ProcessResult topology = run_process({tool("topology"), t.nodes}, source_dir());
    REQUIRE(topology.exit_code == 0);
    const auto settings = lines_of(topology.out);
    REQUIRE(settings.size() == 3);
    Words plan{program(),
               "plan",
               "configs/recipes/nemotron_3_nano_nodes.yaml",
               "--ranks",
               settings[0],
               "--set",
               "model.pretrained_model_name_or_path=configs/nemotron_3_nano"};
    for (std::size_t i = 1; i < settings.size(); ++i) plan.insert(plan.end(), {"--set", settings[i]});
    const ProcessResult planned = run_process(plan, source_dir());
    CAPTURE(planned.err);
    REQUIRE(planned.exit_code == 0);
    CHECK(lines_of(planned.out).front().starts_with(t.groups));
    CHECK(planned.out.find("31577940288 parameters in bf16") != std::string::npos);
    CHECK(planned.out.find("of 1 row of 8192 tokens") != std::string::npos);
  }
  CHECK(run_process({tool("topology"), "7"}, source_dir()).exit_code == 2);
}

TEST_CASE("launch: mpirun.sh starts the ranks of a topology, and the caller's settings come last") {
  const Words start{tool("mpirun.sh"), "--dry-run"};
  const auto with = [&](const Words& more) {
    Words words = start;
    words.insert(words.end(), more.begin(), more.end());
    return run_process(words, source_dir());
  };
  const ProcessResult many =
      with({"--nodes", "33", "--hostfile", "HOSTS", "recipe.yaml", "--set", "distributed.ep_size=4"});
  CAPTURE(many.out);
  CHECK(many.exit_code == 0);
  const std::string quiet = open_mpi_release() < 5 ? "--quiet --mca odls_base_sigkill_timeout 300 " : "";
  CHECK(many.out.starts_with(
      cat("mpirun -np 256 --hostfile HOSTS --map-by ppr:8:node --bind-to none ", quiet, tool("bind.sh"))));
  CHECK(many.out.ends_with(
      "bind.sh build/nemocube train recipe.yaml --set step_scheduler.global_batch_size=768 --set "
      "distributed.ep_size=8 --set distributed.ep_size=4\n"));
  CHECK(with({"recipe.yaml"}).out.starts_with("mpirun -np 8 --map-by ppr:8:node "));
  const ProcessResult no_hosts = with({"--nodes", "9", "recipe.yaml"});
  CHECK(no_hosts.exit_code == 2);
  CHECK(no_hosts.err == "mpirun.sh: want --hostfile for more than one node\n");
  CHECK(with({"--nodes", "7", "--hostfile", "HOSTS", "recipe.yaml"}).exit_code == 2);
  CHECK(with({}).exit_code == 2);
}

TEST_CASE(
    "launch: mpirun.sh leaves the last word to the rank that failed, and says which signal killed one") {
  const TestDir dir;
  const auto start = [&](const std::string& mpirun, const std::string& release = "4.1.4") {
    write_script(dir / "mpirun", cat("[ \"$1\" != --version ] || { echo 'mpirun (Open MPI) ", release,
                                     "'; exit; }\n", mpirun));
    return Words{"sh", "-c", cat("PATH='", dir.path().string(), "':$PATH exec \"$0\" recipe.yaml"),
                 tool("mpirun.sh")};
  };
  const auto ended = [&](const std::string& mpirun) { return run_process(start(mpirun), source_dir()); };
  const ProcessResult failed = ended("echo error: ours >&2; exit 2");
  CHECK(failed.exit_code == 2);
  CHECK(failed.err == "error: ours\n");
  const ProcessResult killed = ended("exit 137");
  CHECK(killed.exit_code == 137);
  CHECK(killed.err == "mpirun.sh: signal 9 killed a rank; exit code 137\n");
  CHECK(ended("exit 0").exit_code == 0);

  // What ends a run reaches mpirun as what lets ranks save: as it is with Open MPI 4, as SIGUSR1 with Open MPI 5.
  struct Stop {
    const char* release;
    int sent;
    const char* received;
    int exit_code;
  };
  for (const Stop& stop : {Stop{"4.1.4", SIGTERM, "TERM", 143}, Stop{"4.1.4", SIGHUP, "HUP", 129},
                           Stop{"5.0.7", SIGTERM, "USR1", 138}, Stop{"5.0.7", SIGINT, "USR1", 138}}) {
    CAPTURE(stop.release);
    CAPTURE(stop.sent);
    fs::remove(dir / "ready");
    Process stopped(start(cat("trap 'echo saved >&2; exit ", stop.exit_code, "' ", stop.received, "; : >'",
                              (dir / "ready").string(), "'; while :; do sleep 0.1; done"),
                          stop.release),
                    source_dir());
    for (int i = 0; i < 3000 && !fs::exists(dir / "ready"); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    stopped.signal(stop.sent);
    const ProcessResult saved = stopped.wait();
    CHECK(saved.exit_code == stop.exit_code);
    CHECK(saved.err == "saved\n");
  }
}

TEST_CASE("launch: bind.sh gives each rank its share of the CPUs beside its device") {
  const FakeMachine machine;
  const auto cpus = [&](const Words& variables) {
    const ProcessResult bound = machine.bind(variables);
    CHECK(bound.err.empty());
    return bound.out;
  };
  CHECK(cpus({"OMPI_COMM_WORLD_LOCAL_RANK=0"}) == "-c 0,1,8 echo program\n");
  CHECK(cpus({"OMPI_COMM_WORLD_LOCAL_RANK=1"}) == "-c 2,3,9 echo program\n");
  CHECK(cpus({"SLURM_LOCALID=2"}) == "-c 4 echo program\n");
  CHECK(cpus({"SLURM_LOCALID=3"}) == "-c 5,6 echo program\n");
  CHECK(cpus({"CUDA_VISIBLE_DEVICES=3", "SLURM_LOCALID=0"}) == "-c 4,5,6 echo program\n");
}

TEST_CASE("launch: bind.sh starts the program unbound, and says so, where it cannot know") {
  const FakeMachine machine;
  const auto why = [&](const Words& variables) {
    const ProcessResult started = machine.bind(variables);
    CHECK(started.out == "program\n");
    return started.err;
  };
  CHECK(why({"-u", "OMPI_COMM_WORLD_LOCAL_RANK", "-u", "SLURM_LOCALID", "-u", "MPI_LOCALRANKID"}) ==
        "bind.sh: no launcher says which rank of the machine this is: not bound\n");
  fs::remove(machine.dir() / "sys/devices/system/node/node0/cpulist");
  CHECK(why({"OMPI_COMM_WORLD_LOCAL_RANK=1"}) ==
        "bind.sh: the machine does not say which CPUs lie beside device 1: not bound\n");
  write_script(machine.dir() / "bin/nvidia-smi", "exit 9\n");
  CHECK(why({"OMPI_COMM_WORLD_LOCAL_RANK=1"}) == "bind.sh: nvidia-smi lists no device: not bound\n");
}
