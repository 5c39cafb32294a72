#include "train/recipe/variables.h"

#include <doctest/doctest.h>
#include <stdlib.h>

#include "core/error.h"
#include "tests/support/message_of.h"
#include "train/recipe/recipe.h"

using namespace nemocube;
using nemocube::testing::message_of;
using namespace nemocube::recipe;

namespace {

std::string expanded(const std::string& text) {
  Value value;
  value.kind = Value::Kind::scalar;
  value.text = text;
  value.quoted = true;
  const auto scalar = resolve_scalar(value, "here");
  return scalar ? scalar->text : "(null)";
}

}  // namespace

TEST_CASE("variables expand, with defaults, in text and alone") {
  ::setenv("NEMOCUBE_TEST_A", "alpha", 1);
  ::setenv("NEMOCUBE_TEST.B", "beta", 1);
  ::unsetenv("NEMOCUBE_TEST_NONE");
  CHECK(expanded("${NEMOCUBE_TEST_A}") == "alpha");
  CHECK(expanded("$NEMOCUBE_TEST_A/x") == "alpha/x");
  CHECK(expanded("a ${ NEMOCUBE_TEST_A } b") == "a alpha b");
  CHECK(expanded("$NEMOCUBE_TEST.B.") == "beta.");
  CHECK(expanded("${oc.env:NEMOCUBE_TEST_A}") == "alpha");
  CHECK(expanded("${oc.env:NEMOCUBE_TEST_NONE, x y}") == "x y");
  CHECK(expanded("${NEMOCUBE_TEST_NONE,}") == "");
  CHECK(expanded("${NEMOCUBE_TEST_NONE,none}") == "(null)");
  CHECK(expanded("a$ $1 $$ ${open") == "a$ $1 $$ ${open");
  CHECK(expanded("$$NEMOCUBE_TEST_A $${x}") == "$NEMOCUBE_TEST_A ${x}");
  CHECK(message_of([] { expanded("${NEMOCUBE_TEST_NONE}"); }) ==
        "here: environment variable 'NEMOCUBE_TEST_NONE' is not set (wanted by ${NEMOCUBE_TEST_NONE})");
  CHECK(message_of([] { expanded("x$NEMOCUBE_TEST_NONE-y"); }) ==
        "here: environment variable 'NEMOCUBE_TEST_NONE' is not set (wanted by $NEMOCUBE_TEST_NONE)");
  for (const char* text : {"$a", "$$a", "$$$a", "${a}", "$", "$$", "a$1", "x$", "${", "a$b$c ${d,e}"})
    CHECK(expanded(escape_variables(text)) == text);
}

TEST_CASE("what came out of variables is written to files as the recipe has it") {
  ::setenv("NEMOCUBE_TEST_SECRET", "hunter2", 1);
  const auto read = [](const std::string& path) {
    return parse_recipe(cat("dataset: {_target_: mock}\nstep_scheduler: {max_steps: 3}\n", path), "r", {},
                        RecipeUse::data);
  };
  const Recipe recipe = read(
      "checkpoint: {checkpoint_dir: '/runs/${oc.env:NEMOCUBE_TEST_SECRET}/$$a', best_metric_key: "
      "$NEMOCUBE_TEST_SECRET}\nseed: ${NEMOCUBE_TEST_NONE,7}\ntokenizer: {pretrained_model_name_or_path: "
      "'${NEMOCUBE_TEST_SECRET}'}\ndist_env: {runtime_env: {A_TOKEN: '${oc.env:NEMOCUBE_TEST_SECRET}', B: "
      "x}}");
  CHECK(describe(recipe).find("hunter2") != std::string::npos);
  const std::string file = describe_for_file(recipe);
  CHECK(file.find("hunter2") == std::string::npos);
  CHECK(file.find("checkpoint_dir: \"/runs/${oc.env:NEMOCUBE_TEST_SECRET}/$$a\"") != std::string::npos);
  CHECK(file.find("seed: 7") != std::string::npos);
  CHECK(describe(read("")) == describe_for_file(read("")));
  const Recipe again = parse_recipe(file, "file", {}, RecipeUse::data);
  CHECK(describe(again) == describe(recipe));
  const std::string rewritten = describe_for_file(again);
  CHECK(rewritten.substr(0, rewritten.find('#')) == file.substr(0, file.find('#')));
  CHECK(message_for_file("/runs/hunter2/$a/training.jsonl: full; no hunter2, hunter22 or xhunter2: 'hunter2'",
                         recipe.interpolated) ==
        "/runs/${oc.env:NEMOCUBE_TEST_SECRET}/$$a/training.jsonl: full; no ${oc.env:NEMOCUBE_TEST_SECRET}, "
        "hunter22 or "
        "xhunter2: '${oc.env:NEMOCUBE_TEST_SECRET}'");
  // Where a run's directory has given way to the model in it.
  Recipe moved = recipe;
  moved.checkpoint.checkpoint_dir = "/runs/hunter2/b/model";
  CHECK(describe_for_file(moved).find("hunter2") == std::string::npos);
  ::unsetenv("NEMOCUBE_TEST_SECRET");
}

TEST_CASE("null has several spellings, and quotes keep them as text, except none") {
  const auto null_of = [](const std::string& yaml) {
    return !resolve_scalar(*parse_yaml(cat("a: ", yaml), "t").find("a"), "t");
  };
  for (const char* text : {"null", "~", "", "none", "None", "'none'", "\"None\"", "NULL"})
    CHECK(null_of(text));
  for (const char* text : {"'null'", "''", "'~'", "no", "0", "NONE"}) CHECK_FALSE(null_of(text));
}

TEST_CASE("text that variables make too long is refused") {
  ::setenv("NEMOCUBE_TEST_LONG", std::string(60'000, 'x').c_str(), 1);
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "${NEMOCUBE_TEST_LONG}";
  CHECK(message_of([&] { expanded(text); }) ==
        "here: more than 1048576 bytes once its variables are expanded");
  ::unsetenv("NEMOCUBE_TEST_LONG");
}
