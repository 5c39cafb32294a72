#include "data/datasets/messages.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <atomic>
#include <thread>

#include "data/datasets/describe.h"
#include "data/datasets/streamed_rows.h"
#include "data/datasets/test_rows.h"

using namespace nemocube;
using testing::complaint_about;
using testing::rows_of_file;
using testing::sample_tokenizer;
using testing::spit;
using testing::TestDir;

namespace {

const Conversation talk{"t",
                        {{Role::system, "Be kind."},
                         {Role::user, "Hi"},
                         {Role::assistant, "Hello there."},
                         {Role::user, "2 + 2?"},
                         {Role::assistant, "4"}}};

std::string shown(const Conversation& conversation, const MessagesOptions& options) {
  const TokenRow row = conversation_row(conversation, sample_tokenizer(), options);
  return describe_supervision(finish_row(row, {}, 0), sample_tokenizer());
}

std::string complaint(const std::string& text) {
  return complaint_about(text,
                         [](const std::filesystem::path& path) { rows_of_file(path, read_conversation); });
}

}  // namespace

TEST_CASE("messages: what is written and what is a target") {
  CHECK(shown(talk, {}) ==
        "System: Be kind.\nUser: Hi\nAssistant:⟦ Hello there.</s>⟧\nUser: 2 + 2?\nAssistant: ⟦4</s>⟧");
  CHECK(shown(talk, {.chat = {.mask_history = true}}) ==
        "System: Be kind.\nUser: Hi\nAssistant: Hello there.</s>\nUser: 2 + 2?\nAssistant: ⟦4</s>⟧");
  CHECK(shown(talk, {.rows = {.append_eos = false}}) ==
        "System: Be kind.\nUser: Hi\nAssistant:⟦ Hello there.⟧\nUser: 2 + 2?\nAssistant: ⟦4⟧");
  Conversation open = talk;
  open.turns.push_back({Role::user, "Thanks"});
  CHECK(shown(open, {.chat = {.mask_history = true}}) == shown(talk, {.chat = {.mask_history = true}}));
  CHECK(conversation_row({"t", {{Role::user, "Hi"}}}, sample_tokenizer(), {}).size() == 0);
}

TEST_CASE("messages: turns of weight 0 are no target") {
  Conversation weighed = talk;
  weighed.turns[2].trained = false;
  CHECK(shown(weighed, {}) ==
        "System: Be kind.\nUser: Hi\nAssistant: Hello there.</s>\nUser: 2 + 2?\nAssistant: ⟦4</s>⟧");
  weighed.turns[2].trained = true;
  weighed.turns[4].trained = false;
  CHECK(shown(weighed, {}) ==
        "System: Be kind.\nUser: Hi\nAssistant:⟦ Hello there.</s>⟧\nUser: 2 + 2?\nAssistant: 4");
  CHECK(conversation_row(weighed, sample_tokenizer(), {.chat = {.mask_history = true}}).label_tokens() == 0);
  const TestDir dir;
  spit(
      dir / "f.jsonl",
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0},)"
      R"( {"role": "assistant", "content": "c", "loss_mask": true, "reasoning_content": "r"}]})");
  const testing::Warnings warnings;
  const auto read = rows_of_file(dir / "f.jsonl", read_conversation);
  CHECK_FALSE(read.at(0).turns.at(1).trained);
  CHECK(read[0].turns.at(2).trained);
  REQUIRE(warnings.texts.size() == 1);
  CHECK(warnings.texts[0].find("messages[2].reasoning_content' is left out, here and in other turns") !=
        std::string::npos);
}

TEST_CASE("messages: both spellings of rows") {
  const TestDir dir;
  spit(dir / "a.jsonl",
       R"({"id": "t", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]},)"
       R"( {"role": "assistant", "content": " c "}, {"role": "tool", "content": null}]})"
       "\n");
  spit(dir / "b.json",
       R"([{"id": "t", "conversations": [{"from": "human", "value": "a b"}, {"from": "gpt", "value": "c"},)"
       R"( {"from": "tool", "value": ""}]}])");
  for (const char* name : {"a.jsonl", "b.json"}) {
    CAPTURE(name);
    const auto read = rows_of_file(dir / name, read_conversation);
    REQUIRE(read.size() == 1);
    CHECK(read[0].id == "t");
    REQUIRE(read[0].turns.size() == 3);
    CHECK(read[0].turns[0].content == "a b");
    CHECK(read[0].turns[1].role == Role::assistant);
    CHECK(read[0].turns[1].content == "c");
    CHECK(read[0].turns[2].role == Role::tool);
  }
}

TEST_CASE("messages: errors name file and row") {
  CHECK(complaint("[1]") == ": 'line 1': want an object, got a list of 1");
  CHECK(complaint(R"({"messages": [{"content": "x"}]})") ==
        ": 'line 1.messages[0]': want a turn with the keys role and content, got one with the keys "
        "\"content\"");
  CHECK(complaint(R"({"messages": [{"from": "human", "value": "x"}]})")
            .ends_with("the keys \"from\", \"value\""));
  CHECK(complaint(R"({"messages": [3]})") == ": 'line 1.messages[0]': want an object, got 3");
  CHECK(complaint(R"({"messages": [{"role": "robot", "content": "x"}]})") ==
        ": 'line 1.messages[0].role': want system, user, assistant or tool, got \"robot\"");
  CHECK(complaint(R"({"messages": [{"role": "user"}]})") ==
        ": 'line 1.messages[0]': want a turn with the keys role and content, got one with the keys \"role\"");
  CHECK(complaint(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})") ==
        ": 'line 1.messages[0].content[0].type': want text, got \"image\"");
  CHECK(complaint(R"({"messages": [{"role": "assistant", "tool_calls": [1]}]})").find("tool_calls") !=
        std::string::npos);
  CHECK(complaint("\n") == ": holds no rows");
}

TEST_CASE("messages: rows of another form are refused with the accepted ones and what reads them") {
  const auto refused = [](const std::string& row, const std::string& advice) {
    CAPTURE(row);
    const std::string text = complaint("\n" + row);
    CHECK(text.starts_with(": 'line 2': want a row for data set class messages, got one with "));
    CHECK(text.find(R"(messages reads {"messages": [{"role": "user", "content": ...})") != text.npos);
    CHECK(text.find(R"({"conversations": [{"from": "human")") != text.npos);
    CHECK(text.find(advice) != text.npos);
  };
  refused(R"({"prompt": "a", "completion": "b"})", R"(the keys "prompt", "completion")");
  refused(R"({"prompt": "a", "completion": "b"})",
          "set _target_: column_mapped and column_mapping: {question: prompt, answer: completion}");
  refused(R"({"instruction": "a", "input": "", "output": "b"})", "Alpaca's form");
  refused(R"({"id": "a", "context": "c", "question": "q", "answers": {}})", "set _target_: squad");
  refused(R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "preference pairs");
  refused(R"({"text": "a"})", "no data set class of this build reads plain text");
  refused("{}", "got one with no keys\n");
  std::string wide = "{\"a\": 1";
  for (int i = 0; i < 20; ++i) wide += cat(", \"k", i, "\": 1");
  refused(wide + "}", "\"k8\" and 11 more\n");
}

TEST_CASE("messages: a turn without tokens gets its EOS") {
  // A vocabulary of one letter: nothing that is written out becomes a token.
  const TestDir dir;
  spit(dir / "tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"q": 0, "</s>": 1}, "merges": []},
    "added_tokens": [{"id": 1, "content": "</s>", "special": true, "single_word": false, "lstrip": false,
      "rstrip": false, "normalized": false}]})");
  spit(dir / "tokenizer_config.json", R"({"eos_token": "</s>"})");
  const Tokenizer tokenizer = Tokenizer::load(dir.path());
  const TokenRow row = conversation_row({"t", {{Role::assistant, ""}}}, tokenizer, {});
  CHECK(row.ids == std::vector<std::int32_t>{1});
  CHECK(row.label_tokens() == 0);
}

TEST_CASE("messages: data set") {
  const TestDir dir;
  std::string lines;
  for (int i = 0; i < 6; ++i)
    lines += cat(R"({"messages": [{"role": "user", "content": "q"}, {"role": ")",
                 i == 2 ? "user" : "assistant", R"(", "content": ")", i, "\"}]}\n");
  spit(dir / "f.jsonl", lines);
  MessagesOptions options{.files = {dir / "f.jsonl"}};
  const auto data = rows_in_memory(messages_rows(sample_tokenizer(), options));
  CHECK(data->size() == 5);  // one row has no assistant
  CHECK(data->sample(2).id == "row 3");
  options.selection.shuffle_seed = 5;
  options.selection.split = "train[:4]";
  const auto some = rows_in_memory(messages_rows(sample_tokenizer(), options));
  CHECK(some->size() <= 4);
  options.rows = {.seq_length = 8, .truncation = Truncation::context};
  CHECK_THROWS_AS(rows_in_memory(messages_rows(sample_tokenizer(), options)), Error);

  spit(dir / "g.jsonl", lines + "{\"messages\": 1}\n");
  CHECK_THROWS_AS(rows_of_file(dir / "g.jsonl", read_conversation), Error);
  CHECK(rows_of_file(dir / "g.jsonl", read_conversation, true).size() == 6);
  spit(dir / "h.jsonl", "{\"prompt\": 1}\n");
  options = {.files = {dir / "h.jsonl"}, .skip_invalid_samples = true};
  CHECK_THROWS_WITH_AS(rows_in_memory(messages_rows(sample_tokenizer(), options)),
                       doctest::Contains("holds no conversations; skipped 1 of 1 rows; the first: "), Error);
}

TEST_CASE("messages: an error of a template names file and line, those of the first row that has one") {
  const TestDir dir;
  const std::string path = (dir / "f.jsonl").string();
  std::string lines;
  for (int i = 1; i <= 200; ++i)
    lines += cat("\n{\"messages\": [{\"role\": \"user\", \"content\": \"", i > 150 ? "bad" : "q", "\"}, ",
                 R"({"role": "assistant", "content": "a"}]})");
  spit(path, lines);
  const ChatTemplate picky("t",
                           "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% "
                           "endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  MessagesOptions options{.files = {path}};
  options.chat_templates = ChatTemplates{picky, picky};
  const int threads = omp_get_max_threads();
  for (const int many : {1, 2, 5}) {
    omp_set_num_threads(many);
    CHECK_THROWS_WITH_AS(rows_in_memory(messages_rows(sample_tokenizer(), options)),
                         doctest::Contains((path + ": 'line 152': row 'row 150': ").c_str()), Error);
  }
  omp_set_num_threads(threads);
}

TEST_CASE("messages: the lowest row's error wins") {
  // Two slices fail; the first of them fails last.
  const int threads = omp_get_max_threads();
  omp_set_num_threads(2);
  std::atomic<bool> second = false;
  const auto make = [&](std::int64_t i) -> TokenRow {
    if (i == 3) {
      while (!second) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (i == 40) second = true;
    if (i == 3 || i == 40) fail("row ", i);
    return {};
  };
  CHECK_THROWS_WITH_AS(make_rows(64, make), "row 3", Error);
  omp_set_num_threads(threads);
}

TEST_CASE("messages: rows that a template refuses can be skipped, in memory and streamed") {
  const TestDir dir;
  const std::string path = (dir / "f.jsonl").string();
  std::string lines;
  for (int i = 0; i < 6; ++i)
    lines += cat(R"({"messages": [{"role": "user", "content": ")", i % 3 == 1 ? "bad" : "q",
                 R"("}, {"role": "assistant", )", R"("content": ")", i == 3 ? "" : "a", "\"}]}\n");
  spit(path, lines);
  const ChatTemplate picky(
      "t",
      "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}"
      "{% if m.role == 'user' %}{{ m.content }} {% else %}{% generation %}{{ m.content }}{% "
      "endgeneration %}{% endif %}{% endfor %}");
  MessagesOptions options{.files = {path}};
  options.chat_templates = ChatTemplates{picky, picky};
  options.selection.limit_dataset_samples = 5;
  const std::string refusal = path + ": 'line 2': row 'row 1': t";
  CHECK_THROWS_WITH_AS(rows_in_memory(messages_rows(sample_tokenizer(), options)),
                       doctest::Contains(refusal.c_str()), Error);
  CHECK_THROWS_WITH_AS(StreamedRows(messages_rows(sample_tokenizer(), options)),
                       doctest::Contains(refusal.c_str()), Error);
  options.skip_invalid_samples = true;
  for (const bool streamed : {false, true}) {
    CAPTURE(streamed);
    const testing::Warnings warnings;
    const RowSource source = messages_rows(sample_tokenizer(), options);
    std::shared_ptr<const Dataset> rows = rows_in_memory(source);
    if (streamed) rows = std::make_shared<StreamedRows>(source);
    CHECK(rows->size() == 2);
    CHECK(rows->sample(0).id == "row 0");
    CHECK(rows->sample(1).id == "row 2");
    const std::size_t first = streamed ? 2 : 0;
    REQUIRE(warnings.texts.size() == first + 2);
    CHECK(warnings.texts[first].starts_with(path + ": skipped 2 of 5 rows; the first: " + refusal));
    CHECK(warnings.texts[first + 1].find("1 of 3 rows has no label") != std::string::npos);
  }
  options.selection.split = "train[1:2]";
  options.selection.limit_dataset_samples.reset();
  CHECK_THROWS_WITH_AS(StreamedRows(messages_rows(sample_tokenizer(), options)),
                       doctest::Contains("holds no conversations; skipped 1 of 1 rows; the first: "), Error);
  CHECK_THROWS_WITH_AS(rows_in_memory(messages_rows(sample_tokenizer(), options)),
                       doctest::Contains("holds no conversations; skipped 1 of 1 rows; the first: "), Error);
}

TEST_CASE("messages: rows without a message are invalid where a template writes them") {
  const TestDir dir;
  spit(dir / "f.jsonl",
       R"({"messages": []})"
       "\n"
       R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})");
  const ChatTemplate plain("t", "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}");
  MessagesOptions options{.files = {dir / "f.jsonl"}};
  options.chat_templates = ChatTemplates{plain, plain};
  CHECK_THROWS_WITH_AS(rows_in_memory(messages_rows(sample_tokenizer(), options)),
                       doctest::Contains("'line 1.messages': want a message or more"), Error);
  options.skip_invalid_samples = true;
  CHECK(rows_in_memory(messages_rows(sample_tokenizer(), options))->size() == 1);
}
