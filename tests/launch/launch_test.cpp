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
#include "tests/support/script.h"
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

/// A machine of 4 devices, two on each of 2 NUMA nodes of 6 and 3 CPUs, for bind.sh: what taskset is asked
/// for.
class FakeMachine {
 public:
  FakeMachine() {
    write_script(dir_ / "bin/nvidia-smi",
                 "[ \"$1\" != --list-gpus ] || { printf 'GPU %s: H100\\n' 0 1 2 3; exit; }\n"
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

TEST_CASE(
    "launch: the published topologies are ones that nemocube plan accepts, with the groups of the published "
    "runs") {
  struct Topology {
    const char *name, *nodes, *groups;
  };
  for (const Topology& t : {Topology{"9", "8",
                                     "64 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 32 x pp 1, experts: "
                                     "expt_tp 1 x ep 16 x expt_dp 4"},
                            {"33", "32",
                             "256 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 128 x pp 1, experts: "
                             "expt_tp 1 x ep 8 x expt_dp 32"},
                            {"68", "64",
                             "512 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 256 x pp 1, experts: "
                             "expt_tp 1 x ep 8 x expt_dp 64"},
                            {"100", "96",
                             "768 ranks: megatron_fsdp (ZeRO-1), tp 2 x cp 1 x dp 384 x pp 1, experts: "
                             "expt_tp 1 x ep 8 x expt_dp 96"}}) {
    CAPTURE(t.name);
    const ProcessResult topology = run_process({tool("topology"), t.name}, source_dir());
    REQUIRE(topology.exit_code == 0);
    const auto settings = lines_of(topology.out);
    REQUIRE(settings.size() == 3);
    CHECK(settings[0] == t.nodes);
    Words plan{program(),
               "plan",
               "configs/recipes/nemotron_3_nano_nodes.yaml",
               "--ranks",
               std::to_string(8 * std::stoi(settings[0])),
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
  for (const char* name : {"1", "7", "32", ""}) {
    CAPTURE(name);
    CHECK(run_process({tool("topology"), name}, source_dir()).exit_code == 2);
  }
}

TEST_CASE(
    "launch: mpirun.sh starts a recipe as it is on the nodes and GPUs of a hostfile, of a Slurm job or of "
    "this machine") {
  const FakeMachine machine;  // 4 GPUs
  spit(machine.dir() / "hosts",
       "# all\nnode1 slots=8\nnode2   slots = 4 max_slots=9 # half\n\nnode1 slots=8\n");
  spit(machine.dir() / "names", "node1\nnode2\nnode3\n");
  const std::string release = open_mpi_release() < 5 ? "--mca" : "--prtemca";
  const std::string option = open_mpi_release() < 5 ? "--mca" : "--prtemca";
  const std::string common = cat(" --bind-to none ", release, " oob_tcp_keepalive_time 10 ", option,
                                 " oob_tcp_keepalive_intvl 5 ", option, " oob_tcp_keepalive_probes 3 ");
  const std::string rest = cat(" ", tool("bind.sh"), " PROGRAM train recipe.yaml");
  const auto run = [&](const Words& variables, const Words& words) {
    Words command{"env",
                  "-u",
                  "CUDA_VISIBLE_DEVICES",
                  "-u",
                  "SLURM_JOB_NUM_NODES",
                  "NEMOCUBE=PROGRAM",
                  cat("PATH=", (machine.dir() / "bin").string(), ":/usr/bin:/bin")};
    command.insert(command.end(), variables.begin(), variables.end());
    command.insert(command.end(), {tool("mpirun.sh"), "--dry-run"});
    command.insert(command.end(), words.begin(), words.end());
    return run_process(command, machine.dir().path());
  };
  const auto line = [&](const Words& variables, const Words& words) {
    const ProcessResult said = run(variables, words);
    CAPTURE(said.err);
    CHECK(said.exit_code == 0);
    CHECK(said.err.empty());
    return said.out;
  };
  CHECK(line({}, {"recipe.yaml", "--set", "seed=1"}) ==
        cat("mpirun -np 4", common, "--host localhost:4", rest, " --set seed=1\n"));
  CHECK(line({"CUDA_VISIBLE_DEVICES=2,3"}, {"recipe.yaml"}) ==
        cat("mpirun -np 2", common, "--host localhost:2", rest, "\n"));
  CHECK(line({}, {"--per-node", "3", "recipe.yaml"}) ==
        cat("mpirun -np 3", common, "--host localhost:3", rest, "\n"));
  CHECK(line({}, {"--hostfile", "hosts", "recipe.yaml"}) ==
        cat("mpirun -np 20", common, "--hostfile hosts --map-by slot", rest, "\n"));
  CHECK(line({}, {"--hostfile", "names", "--per-node", "5", "recipe.yaml"}) ==
        cat("mpirun -np 15", common, "--hostfile names --map-by ppr:5:node", rest, "\n"));
  CHECK(line({"SLURM_JOB_NUM_NODES=7", "SLURM_GPUS_ON_NODE=4"}, {"recipe.yaml"}) ==
        cat("mpirun -np 28", common, "--map-by ppr:4:node:OVERSUBSCRIBE", rest, "\n"));

  CHECK(line({"SLURM_JOB_NUM_NODES=2", "SLURM_GPUS_PER_NODE=h100:6,a100:2"}, {"recipe.yaml"}) ==
        cat("mpirun -np 16", common, "--map-by ppr:8:node:OVERSUBSCRIBE", rest, "\n"));

  // A published topology only by name, and not in silence.
  spit(machine.dir() / "eight", [] {
    std::string hosts;
    for (int i = 0; i < 8; ++i) hosts += cat("node", i, " slots=8\n");
    return hosts;
  }());
  const ProcessResult published =
      run({}, {"--topology", "9", "--hostfile", "eight", "recipe.yaml", "--set", "distributed.ep_size=4"});
  CHECK(published.err ==
        "mpirun.sh: topology 9, 8 nodes of 8 GPUs, sets distributed.ep_size=16 "
        "step_scheduler.global_batch_size=192\n");
  CHECK(published.out.ends_with(
      " train recipe.yaml --set step_scheduler.global_batch_size=192 --set distributed.ep_size=16 --set "
      "distributed.ep_size=4\n"));

  const auto refused = [&](const Words& words) {
    const ProcessResult said = run({}, words);
    CHECK(said.exit_code == 2);
    CHECK(said.out.empty());
    return lines_of(said.err).back();
  };
  CHECK(refused({}) == "mpirun.sh: want a recipe (--help says more)");
  CHECK(refused({"--nodes", "33", "recipe.yaml"}) == "mpirun.sh: no option --nodes (--help lists them)");
  CHECK(refused({"--per-node", "0", "recipe.yaml"}) ==
        "mpirun.sh: --per-node: want a number from 1 on, got '0'");
  CHECK(refused({"--hostfile", "none", "recipe.yaml"}) == "mpirun.sh: --hostfile: cannot read 'none'");
  CHECK(refused({"--hostfile", "names", "recipe.yaml"}) ==
        "mpirun.sh: --hostfile: 'names' does not say how many GPUs node3 has (\"node3 slots=8\"), nor does "
        "--per-node");
  CHECK(refused({"--topology", "33", "recipe.yaml"}) ==
        "mpirun.sh: topology 33 wants 32 nodes of 8 GPUs, 256 ranks; this machine has 4");
  CHECK(refused({"--topology", "32", "recipe.yaml"}) == "topology: NAME is 9, 33, 68 or 100, not '32'");
  write_script(machine.dir() / "bin/nvidia-smi", "exit 9\n");
  CHECK(refused({"recipe.yaml"}) ==
        "mpirun.sh: nvidia-smi lists no GPU here: want --per-node, the ranks of this machine, or --hostfile");
}

TEST_CASE("launch: slurm.sbatch starts a rank for each GPU of the job, by the scripts beside it") {
  const auto run = [&](const Words& variables, const Words& words) {
    Words command{"env", "-u", "SLURM_JOB_NUM_NODES", "-u", "SLURM_NTASKS_PER_NODE", "NEMOCUBE=PROGRAM"};
    command.insert(command.end(), variables.begin(), variables.end());
    command.insert(command.end(), {"sh", tool("slurm.sbatch"), "--dry-run"});
    command.insert(command.end(), words.begin(), words.end());
    return run_process(command, source_dir());
  };
  const auto line = [&](const Words& variables, const Words& words) {
    const ProcessResult said = run(variables, words);
    CAPTURE(said.err);
    CHECK(said.exit_code == 0);
    return said.out;
  };
  const std::string rest =
      cat(" --cpu-bind=none --kill-on-bad-exit=1 ", tool("bind.sh"), " PROGRAM train recipe.yaml\n");
  CHECK(line({"SLURM_JOB_NUM_NODES=3", "SLURM_GPUS_ON_NODE=4"}, {"recipe.yaml"}) ==
        cat("srun --mpi=pmix --ntasks=12 --ntasks-per-node=4", rest));
  CHECK(line({"SLURM_JOB_NUM_NODES=2", "SLURM_GPUS_ON_NODE=4", "SLURM_NTASKS_PER_NODE=1"}, {"recipe.yaml"}) ==
        cat("srun --mpi=pmix --ntasks=2 --ntasks-per-node=1", rest));
  const ProcessResult few =
      run({"SLURM_JOB_NUM_NODES=33", "SLURM_GPUS_ON_NODE=8"}, {"--topology", "33", "recipe.yaml"});
  CHECK(few.exit_code == 2);
  CHECK(lines_of(few.err).back() ==
        "slurm.sbatch: topology 33 wants 32 nodes of 8 GPUs, 256 ranks; the job has 33 nodes, with 8 ranks "
        "each");
  CHECK(run({}, {"recipe.yaml"}).err ==
        "slurm.sbatch: this is no Slurm job: start it by sbatch (--help says how)\n");
  CHECK(run({"SLURM_JOB_NUM_NODES=2"}, {"recipe.yaml"}).err ==
        "slurm.sbatch: the job has no GPUs: sbatch --gpus-per-node=N, or --ntasks-per-node=N for ranks "
        "without\n");

  // srun itself, in place of the real one, and the batch script when all is over.
  const TestDir dir;
  write_script(dir / "srun", "exit ${SRUN_EXIT}\n");
  write_script(dir / "scontrol", "echo \"scontrol $*\"\n");
  const auto ended = [&](const char* code) {
    return run_process({"env", cat("PATH=", dir.path().string(), ":/usr/bin:/bin"), cat("SRUN_EXIT=", code),
                        "NEMOCUBE=x", "SLURM_JOB_ID=77", "SLURM_JOB_NUM_NODES=1", "SLURM_GPUS_ON_NODE=1",
                        tool("slurm.sbatch"), "recipe.yaml"},
                       source_dir());
  };
  CHECK(ended("143").out == "scontrol requeue 77\n");
  CHECK(ended("143").exit_code == 143);
  CHECK(ended("2").out.empty());
  CHECK(ended("2").exit_code == 2);
  // Slurm runs a copy of the script, and knows where it comes from.
  write_script(dir / "scontrol",
               cat("printf '%s\\n' 'JobId=77' '   Command=", tool("slurm.sbatch"), " a/slurm.sbatch b'\n"));
  fs::copy(tool("slurm.sbatch"), dir / "copy");
  const ProcessResult copied = run_process(
      {"env", cat("PATH=", dir.path().string(), ":/usr/bin:/bin"), "NEMOCUBE=x", "SLURM_JOB_ID=77",
       "SLURM_JOB_NUM_NODES=1", "SLURM_GPUS_ON_NODE=1", (dir / "copy").string(), "--dry-run", "recipe.yaml"},
      dir.path());
  CHECK(copied.out.find(cat(" ", tool("bind.sh"), " x train recipe.yaml")) != std::string::npos);
}

TEST_CASE(
    "launch: the lines of --dry-run can be pasted, and paths may have spaces, quotes, dollars and new "
    "lines") {
  const TestDir dir;
  const fs::path odd = dir / "it's \"a\" $HOME\nfolder";
  fs::create_directories(odd);
  for (const char* name : {"mpirun.sh", "bind.sh", "common.sh", "topology", "slurm.sbatch"})
    fs::copy(tool(name), odd / name);
  write_script(odd / "program", "for word; do printf '[%s]' \"$word\"; done; echo\n");
  const Words start{"env", "-u", "SLURM_JOB_NUM_NODES", cat("NEMOCUBE=", (odd / "program").string())};
  const Words recipe{(odd / "re cipe.yaml").string(), "--set", "a='b c'", "--set", "d=$HOME \\ `date`", ""};
  const std::string want = cat("[train][", recipe[0], "][--set][a='b c'][--set][d=$HOME \\ `date`][]\n");
  const auto dry = [&](const Words& more) {
    const ProcessResult said = run_process(plus(plus(start, more), recipe), dir.path());
    CAPTURE(said.err);
    CHECK(said.exit_code == 0);
    return said.out;
  };
  mpirun(1, {});  // sets the variables by which mpirun runs as root
  const std::string line = dry({(odd / "mpirun.sh").string(), "--per-node", "1", "--dry-run"});
  const ProcessResult pasted = run_process({"sh", "-c", line}, dir.path());
  CAPTURE(line);
  CAPTURE(pasted.err);
  CHECK(pasted.exit_code == 0);
  CHECK(pasted.out == want);
  CHECK(run_process(plus(plus(start, {(odd / "mpirun.sh").string(), "--per-node", "1"}), recipe), dir.path())
            .out == want);

  write_script(dir / "bin/srun", "while [ \"${1#--}\" != \"$1\" ]; do shift; done; exec \"$@\"\n");
  const std::string job =
      dry({"SLURM_JOB_NUM_NODES=1", "SLURM_GPUS_ON_NODE=1", (odd / "slurm.sbatch").string(), "--dry-run"});
  const ProcessResult slurm = run_process(
      {"env", cat("PATH=", (dir / "bin").string(), ":/usr/bin:/bin"), "sh", "-c", job}, dir.path());
  CAPTURE(job);
  CAPTURE(slurm.err);
  CHECK(slurm.out == want);
}

TEST_CASE("launch: each script explains itself") {
  for (const char* name : {"mpirun.sh", "slurm.sbatch", "topology", "bind.sh"}) {
    CAPTURE(name);
    const ProcessResult help = run_process({tool(name), "--help"});
    CHECK(help.exit_code == 0);
    CHECK(help.out.find(name) != std::string::npos);
    CHECK(help.err.empty());
  }
}

TEST_CASE(
    "launch: mpirun.sh leaves the last word to the rank that failed, and says which signal killed one") {
  const TestDir dir;
  const auto start = [&](const std::string& mpirun, const std::string& release = "4.1.4") {
    write_script(dir / "mpirun", cat("[ \"$1\" != --version ] || { echo 'mpirun (Open MPI) ", release,
                                     "'; exit; }\n", mpirun));
    return Words{
        "sh", "-c",
        cat("PATH='", dir.path().string(), "':$PATH NEMOCUBE=x exec \"$0\" --per-node 1 recipe.yaml"),
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

  // What mpirun says behind a rank's message is left out; what it says of itself and of nodes is not.
  const std::string rule(74, '-');
  const auto block = [&](const char* text) { return cat(rule, "\\n", text, "\\n\\nmore\\n", rule, "\\n"); };
  const ProcessResult echoed = ended(
      cat("printf -- '[rank 1] error: ours\\n", block("MPI_ABORT was invoked on rank 1 in communicator"),
          block("Primary job  terminated normally, but 1 process returned"), "' >&2; exit 2"));
  CHECK(echoed.err == "[rank 1] error: ours\n");
  CHECK(echoed.exit_code == 2);
  const ProcessResult lost = ended(cat(
      "printf -- '", block("ORTE has lost communication with a remote daemon."), rule, "' >&2; exit 205"));
  CHECK(lost.err ==
        cat(rule, "\nORTE has lost communication with a remote daemon.\n\nmore\n", rule, "\n", rule, "\n"));
  CHECK(lost.exit_code == 205);
  // That of Open MPI 5 then ends with 0.
  const ProcessResult lost5 =
      ended(cat("printf -- '", block("PRTE has lost communication with a remote daemon."), "' >&2; exit 0"));
  CHECK(lost5.err == cat(rule, "\nPRTE has lost communication with a remote daemon.\n\nmore\n", rule, "\n"));
  CHECK(lost5.exit_code == 1);

  // What ends a run reaches mpirun as SIGUSR1, which mpirun passes on to ranks that save. The script ends as
  // if it had reached the run as it was.
  struct Stop {
    const char* release;
    int sent, exit_code;
  };
  for (const Stop& stop : {Stop{"4.1.4", SIGTERM, 143}, Stop{"4.1.4", SIGHUP, 129},
                           Stop{"5.0.7", SIGTERM, 143}, Stop{"5.0.7", SIGINT, 130}}) {
    CAPTURE(stop.release);
    CAPTURE(stop.sent);
    fs::remove(dir / "ready");
    Process stopped(start(cat("trap 'echo saved >&2; exit 138' USR1; : >'", (dir / "ready").string(),
                              "'; while :; do sleep 0.1; done"),
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
