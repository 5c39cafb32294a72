#include <doctest/doctest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

/// Every check on a planted fault and on its clean twin (faults.cu), through the start script.
namespace {

struct Outcome {
  int status = -1;
  std::string text;  ///< standard output and error
};

Outcome run(const std::string& arguments, int seed, const std::string& options = "") {
  const std::string command = std::string("'") + CUDA_EMULATOR_RUN + "' --seed " + std::to_string(seed) +
                              " " + options + " '" + CUDA_EMULATOR_FAULTS + "' " + arguments + " 2>&1";
  Outcome outcome;
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.text.append(buffer.data(), n);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

struct Fault {
  const char* name;
  const char* severity;            ///< "error", "warning", "note"
  std::vector<const char*> texts;  ///< what the report has to say
  const char* options = "";        ///< of `run`
};

const Fault faults[] = {
    {"write_past_end",
     "error",
     {"[out-of-bounds]", "write of 4 bytes", "0 bytes past the end of allocation", "cudaMalloc, 400 bytes",
      "kernel", "fill(int*, int, int)", "block (3,0,0) thread (4,0,0)",
      "faults.cu:", "cudaErrorIllegalAddress"}},
    {"read_past_end",
     "error",
     {"[out-of-bounds]", "read of 4 bytes", "past the end of allocation", "block (3,0,0)"}},
    {"write_before_begin", "error", {"[out-of-bounds]", "thread (0,0,0)"}},
    {"null_pointer", "error", {"[out-of-bounds]"}},
    {"host_pointer", "error", {"[out-of-bounds]"}},
    {"shared_past_end", "error", {"[out-of-bounds]", "shared", "thread (31,0,0)"}},
    {"misaligned", "error", {"[misaligned]", "cudaErrorMisalignedAddress"}},
    {"use_after_free", "error", {"[use-after-free]", "cudaMalloc, 128 bytes"}},
    {"use_after_stream_free", "error", {"[use-after-free]"}},
    {"free_before_other_stream", "error", {"cudaMallocAsync, 128 bytes"}},
    {"other_device_without_peer_access",
     "error",
     {"[peer-access]", "write of 4 bytes on device 1 by device 0", "cudaDeviceEnablePeerAccess",
      "cudaErrorIllegalAddress"},
     "--devices 2"},
    {"pool_of_another_device", "error", {"[peer-access]", "cudaMemPoolSetAccess"}, "--devices 2"},
    {"global_never_written",
     "error",
     {"[uninitialised-global]", "never written", "cudaMalloc, 256 bytes", "add_up"}},
    {"shared_never_written", "error", {"[uninitialised-shared]", "never written", "partly_written"}},
    {"unwritten_item_used",
     "error",
     {"[uninitialised-shared]", "never written: offset 252, by thread (63,0,0) at",
      "faults.cu:", "the value is used here", "one_behind", "st.global"}},
    {"unwritten_branch", "error", {"[uninitialised-shared]", "branch_on_item", "used here"}},
    {"unwritten_index", "error", {"[uninitialised-shared]", "index_by_item"}},
    {"unwritten_mask", "error", {"[uninitialised-shared]", "masked_item"}},
    {"unwritten_through_local_array", "error", {"[uninitialised-shared]", "local_array"}},
    {"unwritten_through_function", "error", {"[uninitialised-shared]", "through_function"}},
    {"unwritten_printed", "error", {"[uninitialised-shared]", "print_item"}},
    {"unwritten_padding_read", "error", {"[uninitialised-global]", "sum_words", "cudaMalloc, 512 bytes"}},
    {"unwritten_copy", "note", {"[host-copy-of-unwritten]"}},
    {"missing_syncthreads", "error", {"[shared-race]", "reversed"}},
    {"tile_overwritten", "error", {"[shared-race]", "tiles"}},
    {"missing_syncwarp", "error", {"[shared-race]", "warp_sum"}},
    {"only_a_shuffle_between", "error", {"[shared-race]", "shuffled_sum"}},
    {"double_buffer_without_barrier", "error", {"[shared-race]", "double_buffer"}},
    {"buffer_filled_again_too_early", "error", {"[shared-race]", "producer_and_consumer"}},
    {"flag_without_fence", "error", {"[shared-race]", "shared_behind_global_flag"}},
    {"race_in_inlined_code", "error", {"[shared-race]", "uses_a_library", ", called from ", "faults.cu:"}},
    {"histogram_without_atomics", "error", {"[shared-race]"}},
    {"neighbours_in_a_word", "error", {"[shared-race]", "halves"}},
    {"equal_values", "note", {"[shared-race-equal]"}},
    {"async_copy_not_waited", "error", {"[copy-in-flight]", "async_copy"}},
    {"async_copy_without_barrier", "error", {"[shared-race]"}},
    {"blocks_write_one_place", "error", {"[global-race]", "one_place"}},
    {"blocks_read_neighbours", "error", {"[global-race]", "neighbours"}},
    {"global_histogram_without_atomics", "error", {"[global-race]"}},
    {"last_block_without_fence", "warning", {"[missing-fence]"}},
    {"plain_flag", "error", {"[global-race]"}},
    {"lock_not_taken", "error", {"[global-race]", "locked"}},
    {"missing_grid_sync", "error", {"[global-race]", "smooth"}},
    {"read_only_overwritten", "error", {"[read-only-race]", "read_only_path"}},
    {"kernels_of_two_streams", "error", {"[stream-race]", "add_up"}},
    {"copy_in_another_stream", "error", {"[stream-race]"}},
    {"memset_beside_non_blocking_stream", "error", {"[stream-race]"}},
    {"divergent_barrier", "error", {"[divergent-barrier]", "half_a_barrier"}},
    {"warps_at_different_barriers",
     "warning",
     {"[barrier-place]", "barriers_in_branches", "this warp waits here, another one at ", "faults.cu:"}},
    {"barrier_never_complete", "error", {"[unmatched-barrier]"}},
    {"barrier_counts_differ", "error", {"[barrier-count]"}},
    {"shuffle_waits_for_ever", "error", {"[divergent-warp-operation]", "0xffffffff"}},
    {"syncwarp_waits_for_ever", "error", {"[divergent-barrier]", "bar.warp.sync", "for lanes 0xffffffff"}},
    {"shuffle_from_outside", "error", {"[shuffle-source]"}},
    {"shuffle_outside_its_mask", "error", {"[member-mask]"}},
    {"stack_overflow", "error", {"[stack-overflow]"}},
    {"trapped", "error", {"[trap]"}},
    {"unknown_instruction", "error", {"[unknown-instruction]", "pm0", "faults.cu:"}},
    {"leak", "note", {"never freed"}},
};

TEST_CASE("planted faults are reported, their clean twins are not") {
  for (const Fault& fault : faults) {
    const std::string name = fault.name;
    CAPTURE(name);
    for (const int seed : {1, 2, 3}) {
      CAPTURE(seed);
      const Outcome faulty = run(name, seed, fault.options);
      CAPTURE(faulty.text);
      CHECK(faulty.text.find("cuda_emulator: " + std::string(fault.severity)) != std::string::npos);
      for (const std::string text : fault.texts) {
        CAPTURE(text);
        CHECK(faulty.text.find(text) != std::string::npos);
      }
      CHECK(faulty.status == (fault.severity == std::string("error") ? 99 : 0));
      const Outcome twin = run(name + " clean", seed, fault.options);
      CAPTURE(twin.text);
      CHECK(twin.text == "");
      CHECK(twin.status == 0);
    }
  }
}

TEST_CASE("without checks a race and memory never written pass, an access out of bounds does not") {
  CHECK(run("missing_syncthreads", 1, "--no-check").status == 0);
  CHECK(run("global_never_written", 1, "--no-check").status == 0);
  CHECK(run("write_past_end", 1, "--no-check").status == 99);
}

TEST_CASE("what CUDA leaves open differs from seed to seed") {
  std::set<std::string> results;
  for (int seed = 1; seed <= 8; ++seed) {
    const Outcome outcome = run("order", seed, "--threads 1");
    const std::size_t at = outcome.text.find("block ");
    REQUIRE(at != std::string::npos);
    results.insert(outcome.text.substr(at, outcome.text.find('\n', at) - at));
    CHECK(run("order", seed, "--threads 1").text == outcome.text);
  }
  CHECK(results.size() >= 4);
}

}  // namespace
