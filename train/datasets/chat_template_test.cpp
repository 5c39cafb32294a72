#include "train/datasets/chat_template.h"

#include <doctest/doctest.h>

#include "data/datasets/describe.h"
#include "data/json/test_dir.h"
#include "tests/support/paths.h"
#include "train/datasets/recipe_datasets.h"

using namespace nemocube;
using nemocube::testing::slurp;
using nemocube::testing::source_path;
using nemocube::testing::spit;
using nemocube::testing::TestDir;

namespace {

const std::string samples = source_path("data/samples");

/// A copy of the sample tokenizer with two templates.
struct Templated {
  Templated() {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      spit(dir / name, slurp(samples + "/tokenizer/" + name));
    spit(dir / "chat_template.jinja", "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}");
    std::filesystem::create_directory(dir / "additional_chat_templates");
    spit(dir / "additional_chat_templates/loud.jinja", "{{ messages[0].content }}!");
  }
  const TestDir dir;
};

Recipe recipe_with(const std::string& tokenizer, const std::string& dataset) {
  return parse_recipe(cat("dataset: {", dataset, ", tokenizer: ", tokenizer, "}\n"), "r.yaml", {},
                      RecipeUse::data);
}

/// The place of the template of a data set, or nothing. No rows are read.
std::string place(const std::string& tokenizer, const std::string& dataset) {
  const Recipe recipe = recipe_with(tokenizer, cat(dataset, ", path: ", samples, "/train.json"));
  const auto found = recipe_chat_template(recipe, *recipe.dataset);
  return found ? std::filesystem::path(found->name()).filename().string() : "";
}

/// Row 0 as `nemocube inspect` shows it.
std::string shown(const std::string& tokenizer, const std::string& dataset) {
  const Recipe recipe = recipe_with(tokenizer, dataset);
  const auto own = recipe_tokenizer(recipe, *recipe.dataset);
  return describe_supervision(recipe_dataset(recipe, *recipe.dataset, own, nullptr, false)->sample(0), *own);
}

}  // namespace

TEST_CASE("chat templates: which one the rows of a data set get") {
  const Templated with;
  const std::string own = with.dir.path().string(), none = samples + "/tokenizer";
  for (const std::string dataset : {"_target_: squad", "_target_: messages"}) {
    CAPTURE(dataset);
    CHECK(place(own, dataset) == "chat_template.jinja");
    CHECK(place(own + "/tokenizer.json", dataset) == "chat_template.jinja");
    CHECK(place(own, dataset + ", chat_template: null") == "");
    CHECK(place(own, dataset + ", chat_template: loud") == "loud.jinja");
    CHECK(place(own, dataset + ", chat_template: '{{ 1 }}'") == "the given chat template");
    CHECK(place(none, dataset) == "");
    CHECK(place(none, dataset + ", chat_template: " + own + "/chat_template.jinja") == "chat_template.jinja");
    CHECK_THROWS_WITH_AS(place(none, dataset + ", chat_template: loud"),
                         doctest::Contains("dataset.chat_template: "), Error);
  }
  const std::string cut = ", truncation: true, seq_length: 8";
  CHECK(place(own, "_target_: squad" + cut) == "");
  CHECK(place(own, "_target_: squad, truncation: true") == "chat_template.jinja");
  CHECK(place(own, "_target_: squad, chat_template: default" + cut) == "chat_template.jinja");
  CHECK(place(own, "_target_: messages" + cut) == "chat_template.jinja");
  const std::string mapped = "_target_: column_mapped, column_mapping: {question: q, answer: a}";
  CHECK(place(own, mapped) == "");
  CHECK(place(own, mapped + ", use_hf_chat_template: true") == "chat_template.jinja");
  CHECK_THROWS_WITH_AS(place(none, mapped + ", use_hf_chat_template: true"),
                       doctest::Contains("dataset.use_hf_chat_template: "), Error);
  CHECK(place(own, "_target_: hellaswag") == "");
}

TEST_CASE("chat templates: rows of squad and of conversations") {
  const Templated with;
  const std::string own = with.dir.path().string();
  spit(
      with.dir / "q.jsonl",
      R"({"id": "a", "context": "Oslo is big.", "question": "What?", "answers": {"text": ["Oslo"], "answer_start": [0]}})");
  const std::string squad = "_target_: squad, path: " + own + "/q.jsonl";
  CHECK(shown(own, squad) == "user=Context: Oslo is big. Question: What? Answer: ;⟦assistant=Oslo;⟧");
  CHECK(shown(own, squad + ", chat_template: null") ==
        "Context: Oslo is big. Question: What? Answer:⟦ Oslo</s>⟧");
  spit(with.dir / "m.jsonl", R"({"messages": [{"role": "user", "content": " a "},)"
                             R"( {"role": "assistant", "content": "b"}]})");
  const std::string messages = "_target_: messages, path: " + own + "/m.jsonl";
  CHECK(shown(own, messages) == "user= a ;⟦assistant=b;⟧");
  CHECK(shown(own, messages + ", chat_template: null") == "User: a\nAssistant:⟦ b</s>⟧");
  CHECK_THROWS_WITH_AS(shown(own, messages + ", chat_template: null, mask_reasoning_content: true"),
                       doctest::Contains("dataset.mask_reasoning_content: rows without a chat template"),
                       Error);
  CHECK_THROWS_WITH_AS(shown(own, messages + ", chat_template: null, mask_generation_prompt: true"),
                       doctest::Contains("dataset.mask_generation_prompt: rows without a chat template"),
                       Error);
  CHECK_THROWS_WITH_AS(shown(own, messages + ", chat_template: '{{ raise_exception(\"no\") }}'"),
                       doctest::Contains("row 'row 0': "), Error);
}

TEST_CASE("chat templates: chat_template_kwargs of recipe and row are variables, those of the row win") {
  const Templated with;
  const std::string own = with.dir.path().string();
  spit(with.dir / "chat_template.jinja",
       "{{ greeting }}{{ 'T' if deep is defined and deep.a[1] == 2 else 'F' }}{% for m in messages %}{{ "
       "m.role }}={{ m.content "
       "}};{% endfor %}");
  const std::string talk =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  spit(with.dir / "plain.jsonl", talk + "}");
  spit(with.dir / "own.jsonl", talk + R"(, "chat_template_kwargs": {"greeting": "Row "}})");
  const std::string given = ", chat_template_kwargs: {greeting: 'Hi ', deep: {a: [1, 2]}}";
  const auto messages = [&](const std::string& file) {
    return cat("_target_: messages, path: ", own, "/", file);
  };
  CHECK(shown(own, messages("plain.jsonl")) == "Fuser=a;⟦assistant=b;⟧");
  CHECK(shown(own, messages("plain.jsonl") + given) == "Hi Tuser=a;⟦assistant=b;⟧");
  CHECK(shown(own, messages("own.jsonl") + given) == "Row Tuser=a;⟦assistant=b;⟧");
  spit(with.dir / "q.jsonl", R"({"id": "a", "context": "c", "question": "q", "answers": {"text": ["c"]}})");
  const std::string squad = cat("_target_: squad, path: ", own, "/q.jsonl", given);
  CHECK(shown(own, squad) == "Hi Tuser=Context: c Question: q Answer: ;⟦assistant=c;⟧");
  const Recipe recipe = recipe_with(own, squad);  // as evaluation asks
  CHECK(squad_prompt({"a", "c", "q", {}}, recipe_chat_template(recipe, *recipe.dataset))
            .starts_with("Hi Tuser="));
  CHECK_THROWS_WITH_AS(recipe_with(own, messages("plain.jsonl") + ", chat_template_kwargs: {tools: []}"),
                       doctest::Contains("dataset.chat_template_kwargs.tools: comes from the conversation"),
                       Error);
  CHECK_THROWS_WITH_AS(recipe_with(own, messages("plain.jsonl") + ", chat_template_kwargs: 1"),
                       doctest::Contains("dataset.chat_template_kwargs: want a section of variables"), Error);
}

TEST_CASE("chat templates: the one that the recipe names is saved with the model") {
  const Templated with;
  const auto saved = [&](const std::string& dataset) {
    const Recipe recipe =
        recipe_with(with.dir.path().string(), cat(dataset, ", path: ", samples, "/train.json"));
    return tokenizer_files(recipe, *recipe.dataset).at("chat_template.jinja");
  };
  CHECK(saved("_target_: squad") == slurp(with.dir / "chat_template.jinja"));
  CHECK(saved("_target_: squad, chat_template: null") == slurp(with.dir / "chat_template.jinja"));
  CHECK(saved("_target_: squad, chat_template: loud") == "{{ messages[0].content }}!");
  CHECK(saved("_target_: squad, chat_template: '{{ 1 }}'") == "{{ 1 }}");
}

TEST_CASE("chat templates: preserve_tool_argument_mappings says how arguments of tool calls are seen") {
  const Templated with;
  const std::string own = with.dir.path().string();
  spit(with.dir / "chat_template.jinja",
       "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}{{ 'object' if "
       "call.function.arguments is mapping else 'text' }}{% endfor %}|{% endfor %}");
  spit(with.dir / "m.jsonl",
       R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", )"
       R"("tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}]})");
  const auto seen = [&](const std::string& keys) {
    return shown(own, cat("_target_: messages, path: ", own, "/m.jsonl", keys));
  };
  CHECK(seen("") == "a|⟦bobject|⟧");
  CHECK(seen(", preserve_tool_argument_mappings: true") == "a|⟦bobject|⟧");
  CHECK(seen(", preserve_tool_argument_mappings: false") == "a|⟦btext|⟧");
  CHECK(seen(", preserve_tool_argument_mappings: false, tool_call_arguments: text") == "a|⟦btext|⟧");
  CHECK_THROWS_WITH_AS(seen(", preserve_tool_argument_mappings: false, tool_call_arguments: as_given"),
                       doctest::Contains("dataset.preserve_tool_argument_mappings: is false, but "
                                         "dataset.tool_call_arguments is as_given; want one of them"),
                       Error);
}
