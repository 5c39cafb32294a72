#include "data/chat/chat_template.h"

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>

#include "data/chat/chat.h"

using namespace nemocube;

namespace {

Chat hello() {
  Chat chat;
  chat.messages =
      Json::parse(R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}])");
  return chat;
}

std::string text_of(const std::string& source, const Chat& chat = hello()) {
  return ChatTemplate("t.jinja", source).render(chat).text;
}

/// What a template, or a rendering of it, is refused with.
std::string complaint(const std::string& source, const Chat& chat = hello()) {
  try {
    text_of(source, chat);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// The largest resident memory of this process so far, or since it was forgotten.
std::size_t peak_memory(bool forget) {
  if (forget) std::ofstream("/proc/self/clear_refs") << "5";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoull(line.substr(6)) * 1024;
  return 0;
}

TEST_CASE("chat template: messages lose nulls, and reasoning has two names") {
  Chat chat;
  chat.messages = Json::parse(
      R"([{"role": "assistant", "content": null, "reasoning": "r", "name": null}, {"role": "user"}])");
  CHECK(
      text_of("{{ messages | tojson }}", chat) ==
      R"([{"thinking": "r", "role": "assistant", "reasoning": "r", "reasoning_content": "r"}, {"role": "user"}])");
}

TEST_CASE("chat template: tools and documents are none unless given, variables win over special tokens") {
  CHECK(
      text_of("{{ tools }} {{ documents is none }} {{ add_generation_prompt }} {{ eos_token is defined }}") ==
      "None True False False");
  Chat chat = hello();
  chat.tools = Json::array();
  chat.variables = {{"bos_token", "<b>"}, {"wide", 18446744073709551615u}};
  const ChatTemplate with_tokens("t", "{{ tools }}{{ bos_token }}{{ eos_token }}{{ wide + 1 }}",
                                 {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  CHECK(with_tokens.render(chat).text == "[]<b></s>18446744073709551616");
}

TEST_CASE("chat template: integers of 128 bits against floats") {
  CHECK(
      text_of(
          "{{ 2 ** 126 == 2.0 ** 126 }} {{ 2 ** 126 + 1 > 2.0 ** 126 }} {{ {2 ** 126: 'x'}[2.0 ** 126] }}") ==
      "True True x");
  CHECK(text_of("{{ 2 ** 126 < 2.0 ** 127 }} {{ -(2 ** 126) > -1e300 }} {{ 0 < 1e999 - 1e999 }}") ==
        "True True False");
  CHECK(text_of("{{ (-(2.0 ** 127)) | int }}") == "-170141183460469231731687303715884105728");
}

TEST_CASE("chat template: mistakes are told with file, line, column, the wish and the fact") {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a\n{{ 1 + }}", "t.jinja, line 2, column 8: want an expression, got }}"},
      {"{% for x in y %}",
       "t.jinja, line 1, column 17: want {% endfor %} or {% else %} that ends {% for %}, got "
       "the template's end"},
      {"é {{ messages[0].content.nope() }}",
       "t.jinja, line 1, column 30: a text has no attribute or key 'nope'"},
      {"\n\n  {{ 'a' + 1 }}",
       "t.jinja, line 3, column 10: want operands that + knows, got a text and an integer"},
      {"{{ raise_exception('no ' ~ 1) }}",
       "t.jinja, line 1, column 19: the template refuses this conversation: no 1"},
      {"{% include 'x' %}",
       "t.jinja, line 1, column 4: want a statement such as for, if, set or macro, got 'include', "
       "which this build does not have"},
      {"{{ 'x' | urlize }}", "t.jinja, line 1, column 10: the filter 'urlize' is not in this build"},
      {"{{ 'x' | wish }}", "t.jinja, line 1, column 10: the filter 'wish' does not exist"},
      {"{{ 'x' is wish }}", "t.jinja, line 1, column 8: the test 'wish' does not exist"},
      {"{{ messages | map('upper') }}",
       "t.jinja, line 1, column 15: want a value to print, got a generator (filters "
       "such as map and select want '| list' behind them)"},
      {"{{ 2 ** 200 }}",
       "t.jinja, line 1, column 6: an integer of more than 128 bits, which this build does not have"},
      {"{{ ''.__class__.x }}",
       "t.jinja, line 1, column 16: the attribute '__class__' of a text is forbidden in "
       "templates"},
      {"{{ messages.append(1) }}",
       "t.jinja, line 1, column 19: the attribute 'append' of a list is forbidden in "
       "templates"},
      {"{{ 'a'.removesuffix() }}", "t.jinja, line 1, column 20: removesuffix wants the argument 'part'"},
      {"{% break %}", "t.jinja, line 1, column 4: break stands outside of a loop"},
  };
  for (const auto& [source, want] : cases) {
    CAPTURE(source);
    CHECK(complaint(source) == want);
  }
  CHECK(complaint("\xff") == "t.jinja: byte 1 is not UTF-8");
}

TEST_CASE("chat template: conversations of another form are refused") {
  Chat chat;
  CHECK(complaint("x", chat) == "t.jinja: messages: want at least one message, got none");
  chat.messages = Json::parse("[{}, 5]");
  CHECK(complaint("x", chat) == "t.jinja: messages[1]: want an object, got 5");
  chat = hello();
  chat.tools = Json::parse("{}");
  CHECK(complaint("x", chat).starts_with("t.jinja: tools: want a list of objects, got "));
  chat = hello();
  chat.variables = {{"messages", 1}};
  CHECK(complaint("x", chat).starts_with("t.jinja: variables: want names other than messages"));
}

TEST_CASE("chat template: what a template may spend is limited") {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
       "makes a text of more than 67108864 bytes"},
      {"{{ 'ab' * 1000000000000 }}", "makes a text of more than"},
      {"{{ '%1000000000d' % 5 }}", "makes a text of more than"},
      {"{{ 'a'.center(10 ** 15) }}", "makes a text of more than"},
      {"{{ '{:>999999999}'.format(1) }}", "makes a text of more than"},
      {"{{ 'aa' | replace('a', 'b' * 40000000) }}", "makes a text of more than"},
      {"{{ [0] * 1000000000000 }}", "makes a list of more than 1000000 items"},
      {"{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
       "takes more than 20000000 steps"},
      {"{% set ns = namespace(x=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
       "ns.x }}",
       "takes more than 20000000 steps"},
      {"{% set ns = namespace(x=[], y=[]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set "
       "ns.y = [ns.y, "
       "ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
       "takes more than 20000000 steps"},
      {"{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}",
       "lists and mappings are nested more than 150 deep"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested more than 1000 deep"},
      {"{% for n in messages recursive %}{{ loop(messages) }}{% endfor %}", "nested more than 1000 deep"},
      {"{% set ns = namespace(x=messages) %}{% for i in range(5000) %}{% set ns.x = ns.x | map('string') "
       "%}{% endfor "
       "%}{{ ns.x | list }}",
       "nested more than 1000 deep"},
      {"{% set ns = namespace(x=[1]) %}{% for i in range(50000) %}{% set ns.x = ns.x | unique %}{% endfor %}"
       "{{ ns.x | list }}",
       "nested more than 1000 deep"},
      {"{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}", "nested more than 1000 deep"},
      {"{% set x = ' ' * 60000000 %}{% for i in range(1000) %}{{ x.strip() }}{% endfor %}",
       "takes more than"},
      {"{% set x = 'a' * 60000000 %}{% set y = x ~ '' %}{% for i in range(1000) %}{{ x == y }}{% endfor %}",
       "takes more than"},
      {"{% set x = 'a' * 60000000 %}{% for i in range(1000) %}{{ x is lower }}{% endfor %}",
       "takes more than"},
      {"{% set d = dict(range(100000) | map('string') | map('center', 9) | batch(2)) %}{{ (('{' ~ (d | list "
       "| "
       "last) ~ '!s:.0}') * 3000000).format_map(d) }}",
       "takes more than"},
      {"{% set x = 'b' * 60000000 %}{% for i in range(100000) %}{{ 'a'.strip(x) }}{% endfor %}",
       "takes more than"},
      {"{{ ('\t' * 10000000).expandtabs(1000) }}", "makes a text of more than"},
      // Look-ups and comparisons that end at once are steps, too.
      {"{% set n = [none] * 1000000 %}{% for a in range(100000) %}{% set x = n.count(none) %}{% endfor %}",
       "takes more than"},
      {"{% set n = [none] * 1000000 %}{% set m = n + [] %}{% for a in range(100000) %}{% set x = n == m %}"
       "{% endfor %}",
       "takes more than"},
      {"{% set n = ('b',) * 1000000 %}{% for a in range(100000) %}{% set x = 'a'.startswith(n) %}{% endfor "
       "%}",
       "takes more than"},
      {"{% set n = namespace(dict(range(100000) | batch(2)), x=1) %}{% for a in range(100000) %}"
       "{% for b in range(100000) %}{% set y = n.x ~ n.z %}{% endfor %}{% endfor %}",
       "takes more than"},
      {"{% set path = '1.' * 100000 ~ '1' %}{{ range(100000) | map(attribute=path, default=[1]) | list }}",
       "more than"},
      {"{{ ('\x01' * 60000000) | tojson }}", "makes a text of more than"},
      {"{{ ['\x01' * 60000000] }}", "makes a text of more than"},
      {"{{ (\"'\" * 60000000) | e }}", "makes a text of more than"},
      {"{{ ('a,' * 30000000).split(',') }}", "makes a list of more than"},
      {"{{ ('a ' * 30000000).split() }}", "makes a list of more than"},
      {"{{ ('\n' * 60000000).splitlines() }}", "makes a list of more than"},
      {"{{ [1] | sort(attribute=',' * 60000000) }}", "makes a list of more than"},
      {"{% set n = namespace(x=[]) %}{% for a in range(100) %}{% set n.x = [n.x, ('ab' * 400000) | list] %}"
       "{% endfor %}",
       "makes values of more than 536870912 bytes"},
      {"{{ ('Σ' * 1000000) | lower }}", "at most 1 MiB of text with a capital sigma"},
      {"{{ range(10 ** 6) }}", "range wants at most 100000 items"},
      {"{{ strftime_now('%1000000d') }}", "64 KiB"},
      {std::string(200, '(') + "1" + std::string(200, ')'), ""},
      {"{{ " + std::string(200, '(') + "1" + std::string(200, ')') + " }}", "at most 100 levels"},
      {"{{ 1" +
           [] {
             std::string sum;
             for (int i = 0; i < 500; ++i) sum += " + 1";
             return sum;
           }() +
           " }}",
       "at most 200 operations"},
      {"{{ m(" +
           [] {
             std::string names;
             for (int i = 0; i < 2000; ++i) names += cat("a", i, "=1,");
             return names;
           }() +
           ") }}",
       "at most 1000 names"},
      {std::string(2 << 20, 'x'), "a template of 2097152 bytes; want at most 1048576"},
  };
  for (const auto& [source, want] : cases) {
    CAPTURE(source.substr(0, 120));
    const auto begin = std::chrono::steady_clock::now();
    const std::string message = complaint(source);
    CHECK_MESSAGE(message.find(want) != std::string::npos, message);
    CHECK(message.empty() == want.empty());
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));  // far less, unless it hangs
  }
}

TEST_CASE("chat template: a long text read backwards takes the memory of its result") {
  const std::size_t before = peak_memory(true);
  CHECK(text_of("{{ ('a' * 60000000)[::-1] | length }} {{ ('é' * 10000000)[::-2] | length }}") ==
        "60000000 5000000");
  CHECK(peak_memory(false) - before < std::size_t{300} << 20);
}

TEST_CASE("chat template: characters of a text backwards and in steps") {
  CHECK(
      text_of(
          "{% set x = 'aé€🙂z' %}{{ x[::-1] }} {{ x[::2] }} {{ x[3::-2] }} {{ x[1:4:2] }} {{ x[9::-3] }}"
          "{{ x[4:4:-1] }}") == "z🙂€éa a€z 🙂é é🙂 zé");
}

TEST_CASE("chat template: a NUL byte ends a format of times, as in Python") {
  Chat chat = hello();
  chat.variables = {{"nul", std::string("\0", 1)}};
  CHECK(
      text_of(
          "{{ strftime_now('a' ~ nul ~ 'b') }}|{{ strftime_now(nul) }}|{{ strftime_now('a%' ~ nul ~ 'b') }}|"
          "{{ strftime_now('%%' ~ nul) }}|{{ strftime_now('é' ~ nul) }}",
          chat) == "a||a%|%|é");
}

TEST_CASE("chat template: mappings find their keys, few and many") {
  CHECK(text_of("{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = n.x + [(i * 8, i), (i * "
                "8, -i)] "
                "%}{% endfor %}{% set d = dict(n.x) %}{{ d | length }} {{ d[0] }} {{ d[8] }} {{ d[7992.0] }} "
                "{{ d[4] is undefined }} {{ d[true] is undefined }} {{ d == dict(n.x) }}") ==
        "1000 0 -1 -999 True True True");
}

TEST_CASE("chat template: searches in long texts take time in proportion to the text") {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(
      text_of("{% set x = 'a' * 6000000 %}{% set y = 'a' * 3000000 ~ 'b' %}{% set z = 'b' ~ 'a' * 3000000 %}"
              "{{ x.find(y) }} {{ x.rfind(z) }} {{ y in x }} {{ x.count(y) }} {{ x.split(y) | length }} "
              "{{ x.rsplit(z) | length }} {{ x.replace(y, '') | length }} {{ (x ~ y).find(y) }} "
              "{{ (z ~ x).rfind(z) }} {{ (x ~ 'c').strip(y ~ 'd') }}") ==
      "-1 -1 False 0 1 1 6000000 6000000 0 c");
  CHECK(std::chrono::steady_clock::now() - begin <
        std::chrono::seconds(60));  // hours, where it is the product
}

TEST_CASE("chat template: the last of long parts is found") {
  // 300 bytes are more than what is searched for without a table.
  CHECK(text_of("{% set x = 'ab' * 150 %}{{ (x ~ 'c' ~ x ~ 'ab').rfind(x) }} {{ ('b' ~ x ~ 'cc').rfind(x) }} "
                "{{ (x ~ x ~ x).rsplit(x) }} {{ (x[1:] ~ x).rfind(x) }} {{ x[1:].rfind(x) }}") ==
        "303 1 ['', '', '', ''] 299 -1");
}

TEST_CASE("chat template: namespaces in circles and macros that outlive their scope are given back") {
  CHECK(text_of("{% set ns = namespace() %}{% set ns.me = ns %}{% for i in range(2000) %}{% set ns.me = "
                "namespace(up=ns.me) "
                "%}{% endfor %}{% macro outer(x) %}{% macro inner() %}{{ x }}{% endmacro %}{% set ns.kept = "
                "inner %}{% "
                "endmacro %}{{ outer(5) }}{{ outer(6) }}{{ ns.kept() }}") == "6");
  CHECK(text_of("{% set ns = namespace() %}{% macro m() %}{% for x in [1, 2] recursive %}{{ x }}{% set ns.l "
                "= loop %}{% "
                "endfor %}{% endmacro %}{{ m() }}-{{ ns.l([7, 8]) }}") == "12-78");
}

}  // namespace
