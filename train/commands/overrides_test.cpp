#include "train/commands/overrides.h"

#include <doctest/doctest.h>

using namespace nemocube;

TEST_CASE("overrides in AutoModel's spelling are those of --set") {
  using Words = std::vector<std::string>;
  const auto spelled = [](const Words& words) { return spell_out_overrides(words); };
  const Words lr{"train", "r.yaml", "--set", "optimizer.lr=1e-4"};
  CHECK(spelled({"train", "r.yaml", "--optimizer.lr", "1e-4"}) == lr);
  CHECK(spelled({"train", "r.yaml", "--optimizer.lr=1e-4"}) == lr);
  CHECK(spelled({"--log-level", "debug", "eval", "--a.b", "-1", "r.yaml"}) ==
        Words{"--log-level", "debug", "eval", "--set", "a.b=-1", "r.yaml"});
  CHECK(spelled({"train", "--seed", "5", "--check"}) == Words{"train", "--set", "seed=5", "--check"});
  CHECK(spelled({"inspect", "--a.b", "--c.d=x=y"}) ==
        Words{"inspect", "--set", "a.b=true", "--set", "c.d=x=y"});
  CHECK(spelled({"train", "--a.b"}) == Words{"train", "--set", "a.b=true"});
  for (const Words& kept :
       {Words{}, Words{"--log-level"}, Words{"generate", "--seed", "5"},
        Words{"--log-level", "train", "generate", "--seed", "5"}, Words{"train", "--foo", "1"},
        Words{"train", "--"}, Words{"train", "--.x"}, Words{"train", "-a.b", "1"},
        Words{"train", "--set", "a.b=1"}, Words{"inspect", "--recipe", "a.yaml"}})
    CHECK(spelled(kept) == kept);
}
