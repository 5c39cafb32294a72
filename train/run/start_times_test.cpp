#include "train/run/start_times.h"

#include <doctest/doctest.h>

#include <string>

#include "core/profile.h"

using namespace nemocube;

TEST_CASE("start: the parts that took time are named in their order, after the whole") {
  reset_zones();
  static Zone weights("start/weights"), mpi("start/mpi"), groups("start/groups"), step("training step");
  weights.add(1'250'000'000);
  mpi.add(500'000'000);
  groups.add(4'000'000);
  step.add(3'000'000'000);
  const std::string text = start_text(nullptr);
  CAPTURE(text);
  CHECK(text.starts_with("the start took "));
  CHECK(text.ends_with(" s: MPI 0.50, weights 1.25"));
  reset_zones();
  CHECK(start_text(nullptr).ends_with(" s"));
}
