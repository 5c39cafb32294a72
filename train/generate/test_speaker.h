#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "model/test_models.h"
#include "tests/support/paths.h"

/// A model that says the text that a test wants.
namespace nemocube::testing {

inline constexpr std::int64_t eos = 2;  ///< of the tokenizer

inline const Tokenizer& tokenizer() {
  static const Tokenizer t = Tokenizer::load(source_path("data/samples/tokenizer"));
  return t;
}

inline ModelConfig speaker_config() {
  ModelConfig c = tiny_config("-");
  c.vocab_size = tokenizer().vocab_size();
  return c;
}

/// A model that generates `text` and EOS after any prompt. The k-th token of the text has
/// the unit vector k + 1 as its embedding, all other tokens have the unit vector 0, and the
/// head maps unit vector k to the k-th token.
struct Says : Stack {
  explicit Says(const std::string& text) : Stack(speaker_config(), DType::f32, Device::cpu) {
    randomise(*this, 5);
    const Tensor embeddings = parameters().get("backbone.embeddings.weight").value;
    const Tensor head = parameters().get("lm_head.weight").value;
    parameters().get("backbone.layers.0.mixer.down_proj.weight").value.zero();
    embeddings.zero();
    head.zero();
    std::vector<std::int64_t> script = tokenizer().encode(text, false);
    script.push_back(eos);
    REQUIRE(script.size() < 12);
    REQUIRE(std::set<std::int64_t>(script.begin(), script.end()).size() == script.size());
    for (std::int64_t id = 0; id < embeddings.dim(0); ++id) {
      const auto said = std::ranges::find(script, id);
      embeddings.row<float>(id)[said == script.end() ? 0 : said - script.begin() + 1] = 1;
    }
    for (std::size_t k = 0; k < script.size(); ++k) head.row<float>(script[k])[k] = 1;
  }
};

}  // namespace nemocube::testing
