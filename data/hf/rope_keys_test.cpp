#include "data/hf/rope_keys.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/support/message_of.h"
#include "tests/support/paths.h"

using namespace nemocube;
using namespace nemocube::testing;

namespace {

RopeConfig parse(const Json& config) { return read_rope(JsonView(config, "config.json"), 10000, 128); }
std::string fault(const Json& config) {
  return message_of([&] { (void)parse(config); });
}
bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

const Json llama3 = {{"factor", 8.0},
                     {"low_freq_factor", 1.0},
                     {"high_freq_factor", 4.0},
                     {"original_max_position_embeddings", 64},
                     {"rope_type", "llama3"}};

}  // namespace

TEST_CASE("rope keys: frequencies of every type are those of transformers") {
  const Json cases = read_json_file(source_dir() / "tests" / "goldens" / "rope" / "frequencies.json");
  REQUIRE(cases.size() >= 16);
  for (const Json& c : cases) {
    CAPTURE(c.dump());
    const Json config = {{"rope_parameters", c.at("rope_parameters")}};
    const RopeConfig rope = parse(config);
    validate_rope(rope, c.at("head_dim"));
    const RotaryFrequencies got = rotary_frequencies(rope, c.at("head_dim"), c.at("longest"));
    CHECK(got.attention_factor == doctest::Approx(c.at("attention_factor").get<double>()).epsilon(1e-14));
    REQUIRE(got.inverse.size() == c.at("inverse").size());
    for (std::size_t i = 0; i < got.inverse.size(); ++i)
      CHECK(got.inverse[i] == doctest::Approx(c.at("inverse")[i].get<double>()).epsilon(1e-13));
    Json written = Json::object();
    write_rope(rope, written);
    CHECK(parse(written) == rope);
  }
}

TEST_CASE("rope keys: both spellings, and where a value stands") {
  const RopeConfig usual{.type = RopeType::standard};
  CHECK(parse(Json::object()) == usual);
  CHECK(parse({{"rope_scaling", nullptr}}) == usual);
  CHECK(parse({{"rope_scaling", Json::object()}, {"rope_theta", 500}}).rope_theta == 500);
  CHECK(parse({{"rope_parameters", {{"rope_theta", 7.0}}}, {"rope_theta", 500}}).rope_theta == 7);
  const RopeConfig want{.type = RopeType::llama3,
                        .rope_theta = 5e5,
                        .factor = 8,
                        .original_max_position_embeddings = 64,
                        .low_freq_factor = 1,
                        .high_freq_factor = 4};
  Json old_type = llama3, with_theta = llama3;
  old_type.erase("rope_type");
  old_type["type"] = "llama3";
  with_theta["rope_theta"] = 5e5;
  CHECK(parse({{"rope_scaling", llama3}, {"rope_theta", 5e5}}) == want);
  CHECK(parse({{"rope_scaling", old_type}, {"rope_theta", 5e5}}) == want);
  CHECK(parse({{"rope_parameters", with_theta}}) == want);
  CHECK(parse({{"rope_parameters", with_theta}, {"rope_scaling", llama3}}) == want);
  // The top-level value wins; without any it is that of the model.
  Json without = with_theta;
  without.erase("original_max_position_embeddings");
  CHECK(parse({{"rope_parameters", with_theta}, {"original_max_position_embeddings", 32}})
            .original_max_position_embeddings == 32);
  CHECK(parse({{"rope_parameters", without}}).original_max_position_embeddings == 128);
  const RopeConfig yarn = parse({{"rope_scaling",
                                  {{"type", "yarn"},
                                   {"factor", nullptr},
                                   {"beta_fast", 0},
                                   {"beta_slow", nullptr},
                                   {"original_max_position_embeddings", 32}}}});
  CHECK(yarn.factor == 4);
  CHECK(yarn.beta_fast == 32);
  CHECK(yarn.beta_slow == 1);
}

TEST_CASE("rope keys: proportional") {
  const RopeConfig want{
      .type = RopeType::proportional, .rope_theta = 1e6, .partial_rotary_factor = 0.25, .factor = 8};
  const Json object = {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}};
  Json stretched = object, without = object;
  stretched["factor"] = 8;
  without.erase("partial_rotary_factor");
  CHECK(parse({{"rope_parameters", stretched}}) == want);
  CHECK(parse({{"rope_scaling", stretched}, {"rope_theta", 5.0}}) == want);
  CHECK(parse({{"rope_parameters", object}}).factor == 1);
  // The object's share wins; without any it is the whole head.
  CHECK(parse({{"rope_parameters", object}, {"partial_rotary_factor", 0.5}}).partial_rotary_factor == 0.25);
  CHECK(parse({{"rope_parameters", without}, {"partial_rotary_factor", 0.5}}).partial_rotary_factor == 0.5);
  CHECK(parse({{"rope_parameters", without}}).partial_rotary_factor == 1);
  const Json whole = {{"partial_rotary_factor", 0.5}};
  CHECK(read_rope_object(JsonView(stretched, "config.json"), JsonView(whole, "config.json"), 10000, 128) ==
        want);
  // Written in the object alone, a factor of 1 not at all.
  Json written = Json::object();
  write_rope(want, written);
  CHECK_FALSE(written.contains("partial_rotary_factor"));
  CHECK(parse(written) == want);
  const Json all = {
      {"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}, {"factor", 8.0}, {"rope_theta", 1e6}};
  CHECK(rope_object(want) == all);
  CHECK_FALSE(rope_object(parse({{"rope_parameters", object}})).contains("factor"));

  Json unknown = object;
  unknown["proportion"] = 2;
  CHECK(has(fault({{"rope_parameters", unknown}}),
            "'rope_parameters.proportion': this key of a rotary embedding is not known here"));

  const RotaryFrequencies made = rotary_frequencies(want, 512, 1);
  REQUIRE(made.inverse.size() == 256);
  CHECK(made.attention_factor == 1);
  for (std::size_t i = 0; i < 256; ++i) CHECK((made.inverse[i] > 0) == (i < 64));
  CHECK(rotary_width(want, 512) == 512);
}

TEST_CASE("rope keys: what is not known, missing or contradictory") {
  CHECK(has(fault({{"rope_scaling", {{"type", "mrope"}}}}),
            "'rope_scaling.type': want default, linear, dynamic, llama3, yarn, longrope or proportional, got "
            "\"mrope\""));
  CHECK(has(fault({{"rope_scaling", {{"type", "linear"}}}}), "factor"));
  CHECK(has(fault({{"rope_scaling", {{"type", "yarn"}}}}), "factor"));
  CHECK(has(fault({{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"llama_4_scaling_beta", 0.1}}}}),
            "'rope_scaling.llama_4_scaling_beta': this key of a rotary embedding is not known here"));
  CHECK(has(fault({{"rope_parameters", {{"full_attention", Json::object()}}}}), "full_attention"));
  CHECK(has(fault({{"rope_scaling", 3}}), "'rope_scaling': want an object"));
  CHECK(has(fault({{"rope_scaling", llama3}, {"partial_rotary_factor", 0.5}}),
            "'partial_rotary_factor': want 1"));
  CHECK(has(fault({{"rope_scaling", llama3}, {"rope_parameters", {{"rope_type", "linear"}, {"factor", 8}}}}),
            "'rope_parameters' and 'rope_scaling' mean the same and differ"));
  const auto bad = [](RopeConfig rope, std::int64_t head_dim = 16) {
    return message_of([&] { validate_rope(rope, head_dim); });
  };
  CHECK(has(bad({.type = RopeType::standard}, 15), "head_dim: want an even number"));
  CHECK(has(bad({.type = RopeType::standard, .rope_theta = 1}), "rope_theta: want a number above 1"));
  CHECK(has(bad({.type = RopeType::linear, .factor = 0}), "rope factor"));
  CHECK(
      has(bad({.type = RopeType::dynamic, .factor = 0.5, .max_position_embeddings = 8}), "want at least 1"));
  CHECK(has(bad({.type = RopeType::llama3,
                 .factor = 2,
                 .original_max_position_embeddings = 8,
                 .low_freq_factor = 4,
                 .high_freq_factor = 4}),
            "high_freq_factor: want a number above low_freq_factor"));
  CHECK(bad({.type = RopeType::proportional, .partial_rotary_factor = 0.125}) == "no error");
  CHECK(
      has(bad({.type = RopeType::proportional, .partial_rotary_factor = 0.124}),
          "partial_rotary_factor: want at least one pair of channels that turns, got 0.124 of head_dim 16"));
  CHECK(has(bad({.type = RopeType::proportional}, 15), "head_dim: want an even number"));
  CHECK(has(bad({.type = RopeType::proportional, .factor = 0}), "rope factor"));
  CHECK(has(bad({.type = RopeType::longrope, .original_max_position_embeddings = 8, .short_factor = {1, 2}}),
            "short_factor: want head_dim / 2 = 8 numbers, got 2"));
}
