#include <doctest/doctest.h>

#include <cstdlib>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "tests/outcome.h"

/// Every check on a planted fault and on its clean twin (faults.cu), through the start script.
namespace {

Outcome run(const std::string& arguments, int seed, const std::string& options = "") {
  return outcome_of(std::string("'") + CUDA_EMULATOR_RUN + "' --seed " + std::to_string(seed) + " " +
                    options + " '" + CUDA_EMULATOR_FAULTS + "' " + arguments);
}

struct Fault {
  const char* name;
  const char* severity;            ///< "error", "warning", "note"
  std::vector<const char*> texts;  ///< what the report has to say
  const char* options = "";        ///< of `run`
  const char* twin = "";           ///< the note that the twin gets; "": it is silent
};

const Fault faults[] = {
    {"write_past_end",
     "error",
     {"[out-of-bounds]", "write of 4 bytes", "0 bytes past the end of allocation", "cudaMalloc, 400 bytes",
      "kernel", "fill(int*, int, int)", "block (3,0,0) thread (4,0,0)",
      "faults.h:", "cudaErrorIllegalAddress"}},
    {"read_past_end",
     "error",
     {"[out-of-bounds]", "read of 4 bytes", "past the end of allocation", "block (3,0,0)"}},
    {"write_before_begin", "error", {"[out-of-bounds]", "thread (0,0,0)"}},
    {"null_pointer", "error", {"[out-of-bounds]"}},
    {"host_pointer", "error", {"[out-of-bounds]"}},
    {"shared_past_end", "error", {"[out-of-bounds]", "shared", "thread (31,0,0)"}},
    {"shared_variable_past_end",
     "error",
     {"[out-of-bounds]", "write of 4 bytes", "offset 128 of the variable",
      "first_of_two(int*, int)::", "which has 128 bytes", "thread (31,0,0)"}},
    {"shared_variable_into_dynamic",
     "error",
     {"[out-of-bounds]", "read of 4 bytes", "static_and_dynamic(int*, int)::fixed", "thread (31,0,0)"}},
    {"shared_variable_of_function_past_end",
     "error",
     {"[out-of-bounds]", "read of 4 bytes", "shared_of_a_function()::kept", "thread (31,0,0)"}},
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
      "memory.cu:", "the value is used here", "one_behind", "st.global"}},
    {"unwritten_branch", "error", {"[uninitialised-shared]", "branch_on_item", "used here"}},
    {"unwritten_index", "error", {"[uninitialised-shared]", "index_by_item"}},
    {"unwritten_mask", "error", {"[uninitialised-shared]", "masked_item"}},
    {"unwritten_through_local_array", "error", {"[uninitialised-shared]", "local_array"}},
    {"local_never_written",
     "error",
     {"[uninitialised-local]", "local memory never written: offset", "partly_written_local", "memory.cu:"}},
    {"local_of_an_earlier_call", "error", {"[uninitialised-local]", "calls_twice", "memory.cu:"}},
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
    {"race_in_inlined_code",
     "error",
     {"[shared-race]", "uses_a_library", ", called from ", "shared_races.cu:"}},
    {"histogram_without_atomics", "error", {"[shared-race]"}},
    {"neighbours_in_a_word", "error", {"[shared-race]", "halves"}},
    {"equal_values", "note", {"[shared-race-equal]"}},
    {"async_copy_not_waited", "error", {"[copy-in-flight]", "async_copy"}},
    {"async_copy_without_barrier", "error", {"[shared-race]"}},
    {"bulk_store_without_proxy_fence",
     "error",
     {"[proxy-fence]", "shared memory, offset 0", "shared_races.cu:", "no fence.proxy.async between",
      "bulk_store"}},
    {"bulk_load_without_proxy_fence", "error", {"[proxy-fence]", "cudaMalloc, 256 bytes", "bulk_load"}},
    {"blocks_write_one_place", "error", {"[global-race]", "one_place"}},
    {"blocks_read_neighbours", "error", {"[global-race]", "neighbours"}},
    {"global_histogram_without_atomics", "error", {"[global-race]"}},
    {"last_block_without_fence", "error", {"[missing-fence]"}},
    {"last_block_of_atomics_without_fence", "error", {"[missing-fence]", "sum_of_atomics", "__threadfence"}},
    {"volatile_data_without_fence", "error", {"[missing-fence]", "volatile_handover"}},
    {"plain_flag", "error", {"[global-race]"}},
    {"lock_not_taken", "error", {"[global-race]", "locked"}},
    {"missing_grid_sync", "error", {"[global-race]", "smooth"}},
    {"global_scratch_without_barrier",
     "error",
     {"[global-race]", "of the same block wrote (", "thread_races.cu:", "st.global", "shifted"}},
    {"global_scratch_without_syncwarp", "error", {"[global-race]", "within_warps"}},
    {"global_counter_without_atomics", "error", {"[global-race]", "counted"}},
    {"lanes_write_one_place", "error", {"[global-race]", "one_of_all"}},
    {"atomic_sum_read_too_early", "error", {"[global-race]", "added_up"}},
    {"overwritten_while_read", "error", {"[global-race]", "of the same block read", "halved"}},
    {"odd_rows_of_halves", "error", {"[global-race]", "odd_rows"}},
    {"vectors_read_as_words", "error", {"[global-race]", "vectors"}},
    {"wrong_named_barrier", "error", {"[global-race]", "halves_of_a_block"}},
    {"flag_in_block_without_fence", "error", {"[global-race]", "flag_in_block"}},
    {"global_equal_values", "note", {"[global-race-equal]", "of the same block wrote", "same value"}},
    {"too_many_threads",
     "error",
     {"[launch-error-unread]", "wide(int*) was refused (cudaErrorInvalidConfiguration)"},
     "",
     "[launch-refused]"},
    {"too_much_shared_memory",
     "error",
     {"[launch-error-unread]", "cudaErrorInvalidValue", "cudaGetLastError"},
     "",
     "[launch-refused]"},
    {"status_of_launch_is_seen", "error", {"[launch-error-unread]"}, "", "[launch-refused]"},
    {"cluster_of_two_blocks",
     "error",
     {"[not-supported]", "ranks_in_cluster", "a cluster of several blocks"}},
    {"static_shared_above_48_kib",
     "error",
     {"[launch-error-unread]", "cudaErrorInvalidValue",
      "50176 bytes of static shared memory, 49152 allowed"}},
    {"static_and_dynamic_above_48_kib",
     "error",
     {"[launch-error-unread]", "cudaErrorInvalidValue", "9216 bytes of dynamic shared memory, 8192 allowed"}},
    {"unwritten_copy", "error", {"[host-copy-of-unwritten]"}, "--strict"},
    {"warps_at_different_barriers", "error", {"[barrier-place]"}, "--strict"},
    {"leak", "error", {"never freed"}, "--strict"},
    {"read_only_overwritten", "error", {"[read-only-race]", "read_only_path"}},
    {"kernels_of_two_streams", "error", {"[stream-race]", "add_up"}},
    {"copy_in_another_stream", "error", {"[stream-race]"}},
    {"memset_beside_non_blocking_stream", "error", {"[stream-race]"}},
    {"divergent_barrier", "error", {"[divergent-barrier]", "half_a_barrier"}},
    {"warps_at_different_barriers",
     "warning",
     {"[barrier-place]", "barriers_in_branches", "this warp waits here, another one at ", "execution.cu:"}},
    {"barrier_never_complete", "error", {"[unmatched-barrier]"}},
    {"barrier_counts_differ", "error", {"[barrier-count]"}},
    {"shuffle_waits_for_ever", "error", {"[divergent-warp-operation]", "0xffffffff"}},
    {"syncwarp_waits_for_ever", "error", {"[divergent-barrier]", "bar.warp.sync", "for lanes 0xffffffff"}},
    {"shuffle_from_outside", "error", {"[shuffle-source]"}},
    {"shuffle_outside_its_mask", "error", {"[member-mask]"}},
    {"stack_overflow", "error", {"[stack-overflow]"}},
    {"trapped", "error", {"[trap]"}},
    {"unknown_instruction", "error", {"[unknown-instruction]", "pm0", "execution.cu:"}},
    {"leak", "note", {"never freed"}},
    {"dependent_launch_without_wait",
     "error",
     {"[stream-race]", "consume(int const*, int*, int, bool), before griddepcontrol.wait, in stream",
      "produce"}},
    {"flag_never_raised",
     "error",
     {"[no-progress]", "kernel", "wait_for_flag", "of 2 blocks 2 have begun and 1 have ended",
      "8 warps of 1 block (first: block (0,0,0) warp 0): in a loop that reads 0x0 at",
      "byte 1024 of allocation", "cudaMalloc, 1028 bytes", "waiting.cu:", "ld.volatile.global.u32",
      "cudaErrorLaunchTimeout"},
     "--hang-after 1000000"},
    {"lock_never_released",
     "error",
     {"[no-progress]", "39 warps of 39 blocks (first", "reads 0x1 at", "atom.", ".cas.b32"},
     "--hang-after 1000000"},
    {"flag_polled_between_barriers",
     "error",
     {"[no-progress]", "atom.", "waiting.cu:"},
     "--hang-after 1000000"},
    {"flag_of_the_own_warp",
     "error",
     {"[no-progress]", "1 warp of 1 block", "wait_for_lane", "in a loop that reads 0x0 at"},
     "--hang-after 1000000"},
    {"wrong_expect_tx",
     "error",
     {"[no-progress]", "waiting for the end of a phase of parity 0 of the barrier object at byte",
      "a phase of parity 0, where 0 of 1 arrivals are missing and 256 bytes of copies",
      "mbarrier.try_wait.parity", "2 warps of 1 block"},
     "--hang-after 1000000"},
    {"more_blocks_than_fit",
     "error",
     {"[not-resident]", "grid_barrier", "of 265 blocks", "264 fit on the device at one time",
      "bytes of shared memory a block", "reads 0x108 at", "cudaErrorLaunchTimeout"},
     "--hang-after 1000000"},
    {"waits_for_the_last_block",
     "error",
     {"[not-resident]", "of 400 blocks", "264 fit on the device at one time (limit: 1024 threads a block)"},
     "--hang-after 1000000"},
};

int setting(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

TEST_CASE("planted faults are reported, their clean twins are not") {
  const int seeds = setting("CUDA_EMULATOR_FAULT_SEEDS", 3);  // 1 to this
  const int every = setting("CUDA_EMULATOR_FAULT_EVERY", 1);  // which faults of the list
  REQUIRE(seeds >= 1);
  REQUIRE(every >= 1);
  for (std::size_t at = 0; at < std::size(faults); at += static_cast<std::size_t>(every)) {
    const Fault& fault = faults[at];
    const std::string name = fault.name;
    CAPTURE(name);
    for (int seed = 1; seed <= seeds; ++seed) {
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
      if (*fault.twin) {
        CHECK(twin.text.find(fault.twin) != std::string::npos);
        CHECK(twin.text.find("0 errors, 0 warnings, 1 notes") != std::string::npos);
      } else {
        CHECK(twin.text == "");
      }
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
