#include "data/json/json.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/utf8.h"
#include "data/json/test_dir.h"

using namespace nemocube;
using nemocube::testing::spit;
using nemocube::testing::TestDir;

namespace {
void check_refused(std::string_view text, const char* part, const JsonLimits& limits = {}) {
  CAPTURE(text.substr(0, 60));
  CHECK_THROWS_WITH_AS(parse_json(text, "x.json", limits), doctest::Contains(part), Error);
}
}  // namespace

TEST_CASE("json: bare non-finite numbers outside strings only") {
  const Json doc = parse_json(
      R"({"a":[Infinity,-Infinity,NaN,1.5],"s":"Infinity NaN","q":"\"Infinity","b\\":NaN,"Infinity":1})",
      "x");
  CHECK(doc["a"][0].get<double>() == INFINITY);
  CHECK(doc["a"][1].get<double>() == -INFINITY);
  CHECK(std::isnan(doc["a"][2].get<double>()));
  CHECK(doc["a"][3] == 1.5);
  CHECK(doc["s"] == "Infinity NaN");
  CHECK(doc["q"] == "\"Infinity");
  CHECK(std::isnan(doc["b\\"].get<double>()));
  CHECK(doc["Infinity"] == 1);
  CHECK(parse_json("Infinity", "x").get<double>() == INFINITY);
  check_refused("[Infinity]", "not valid JSON at byte 2", {.non_finite = false});
  check_refused("[-NaN]", "byte 3");
  check_refused("[Infinity2]", "byte 2");
  check_refused("[infinity]", "byte 2");
  check_refused("{Infinity: 1}", "a key must be a string");
  check_refused("[InfinityNaN]", "byte 2");
}

TEST_CASE("json: damage is refused with its place") {
  check_refused("", "x.json: not valid JSON at byte 1");
  check_refused("{\"a\": }", "byte 7");
  check_refused("[1,]", "byte 4");
  check_refused("{} {}", "byte 4");
  check_refused("[Infinity, x]", "byte 12");
  check_refused("\"\xff\"", "not valid JSON");
  check_refused("\"open", "not valid JSON");
  check_refused("\"open\\", "not valid JSON");
  check_refused("[1e999]", "not valid JSON");
  check_refused(R"({"a": 1, "b": {"c": 1, "c": 2}})", "the key \"c\" appears twice");
  CHECK_NOTHROW(parse_json(R"({"a": {"c": 1}, "b": {"c": 2}})", "x"));
}

TEST_CASE("json: messages about damage are printable, whatever the bytes") {
  for (const std::string text :
       {"\"\xff\"", "\"caf\xe9\"", "[1, \xfe\xff]", "{\"a\x80\": 1}", "{\"\\n\": 1, \"\\n\": 2}"}) {
    try {
      parse_json(text, "x.json");
      FAIL("not refused");
    } catch (const Error& error) {
      const std::string message = error.what();
      CAPTURE(message);
      CHECK(is_valid_utf8(message));
      CHECK(message.find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("json: limits") {
  const std::string bomb(1000000, '[');
  check_refused(bomb, "nested deeper than 100 levels");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  check_refused(objects, "nested deeper than 100 levels");
  check_refused("[1, 2, 3]", "want at most 4 bytes of JSON, got 9", {.max_bytes = 4});
  CHECK_NOTHROW(parse_json("[[1]]", "x", {.max_depth = 2}));
  check_refused("[[[1]]]", "nested deeper than 2 levels", {.max_depth = 2});
}

TEST_CASE("json: dump keeps order and non-finite numbers, and parses back") {
  const std::string text =
      R"({"z": 1, "a": [0.0, Infinity, -Infinity], "e": {}, "l": [], "x": 1e-05, "n": null})";
  const Json doc = parse_json(text, "x");
  CHECK(dump_json(doc, -1) == R"({"z":1,"a":[0.0,Infinity,-Infinity],"e":{},"l":[],"x":1e-05,"n":null})");
  CHECK(
      dump_json(doc, 2) ==
      "{\n  \"z\": 1,\n  \"a\": [\n    0.0,\n    Infinity,\n    -Infinity\n  ],\n  \"e\": {},\n  \"l\": [],\n"
      "  \"x\": 1e-05,\n  \"n\": null\n}");
  CHECK(parse_json(dump_json(doc), "x") == doc);
  CHECK(dump_json(Json(NAN)) == "NaN");
  CHECK(dump_json(Json("\xff")) == "\"\xef\xbf\xbd\"");
}

TEST_CASE("json: large objects keep their order") {
  std::string text = "{";
  for (int i = 0; i < 20000; ++i) text += cat(i ? "," : "", "\"k", (i * 7919) % 20000, "\":[", i, "]");
  const Json doc = parse_json(text + "}", "x");
  REQUIRE(doc.size() == 20000);
  int i = 0;
  for (const auto& item : doc.items()) {
    if (item.key() != cat("k", (i * 7919) % 20000) || item.value()[0] != i) FAIL("entry ", i, " is wrong");
    ++i;
  }
}

TEST_CASE("json view: typed values and complaints") {
  const Json doc = parse_json(
      R"({"n": 3, "f": 1.5, "s": "t", "b": true, "o": {"l": [1, "x"]}, "none": null,
          "inf": {"__float__": "-Infinity"}, "big": 18446744073709551615})",
      "c.json");
  const JsonView view(doc, "c.json");
  CHECK(view.at("n").integer() == 3);
  CHECK(view.at("n").number() == 3.0);
  CHECK(view.at("f").number() == 1.5);
  CHECK(view.at("s").string() == "t");
  CHECK(view.at("b").boolean());
  CHECK(view.at("inf").number() == -INFINITY);
  CHECK(view.at("o").at("l").elements()[0].integer() == 1);
  CHECK_FALSE(view.has("none"));
  CHECK(view.has_null("none"));
  CHECK_FALSE(view.has_null("absent"));
  const auto refused = [&](auto&& call, const char* text) { CHECK_THROWS_WITH_AS(call(), text, Error); };
  refused([&] { view.at("s").integer(); }, "c.json: 's': want an integer, got \"t\"");
  refused([&] { view.at("f").integer(); }, "c.json: 'f': want an integer, got 1.5");
  refused([&] { view.at("b").integer(); }, "c.json: 'b': want an integer, got true");
  refused([&] { view.at("big").integer(); },
          "c.json: 'big': want an integer below 2^62, got 18446744073709551615");
  refused([&] { view.at("s").number(); }, "c.json: 's': want a number, got \"t\"");
  refused([&] { view.at("n").boolean(); }, "c.json: 'n': want true or false, got 3");
  refused([&] { view.at("n").string(); }, "c.json: 'n': want a string, got 3");
  refused([&] { view.at("n").elements(); }, "c.json: 'n': want a list, got 3");
  refused([&] { view.at("n").find("x"); }, "c.json: 'n': want an object, got 3");
  refused([&] { view.at("o").at("l").elements()[1].number(); }, "c.json: 'o.l[1]': want a number, got \"x\"");
  refused([&] { view.at("none"); }, "c.json: 'none': want a value, got none");
  refused([&] { view.at("o").at("x"); }, "c.json: 'o.x': want a value, got none");
  refused([&] { view.integer(); }, "c.json: want an integer, got an object");
}

TEST_CASE("json: files") {
  const TestDir dir;
  spit(dir / "a.json", "{\"x\": [1, 2]}\n");
  CHECK(read_json_file(dir / "a.json")["x"][1] == 2);
  CHECK_THROWS_WITH_AS(read_json_file(dir / "a.json", {.max_bytes = 4}),
                       doctest::Contains("a.json: want at most 4 bytes, got 14"), Error);
  CHECK_THROWS_WITH_AS(read_json_file(dir / "b.json"), doctest::Contains("b.json: cannot open: No such file"),
                       Error);
  CHECK_THROWS_WITH_AS(read_json_file(dir.path()), doctest::Contains("want a regular file"), Error);
  spit(dir / "c.json", "{\"x\": [1, 2}");
  CHECK_THROWS_WITH_AS(read_json_file(dir / "c.json"), doctest::Contains("c.json: not valid JSON at byte 12"),
                       Error);
}
