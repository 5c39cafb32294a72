#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/decoder.h"

namespace nemocube::tok {

/// Decodes one text, token by token. The returned pieces are valid UTF-8 and together make the whole text.
/// Every token is read once. Text is held back only while later tokens can change it: bytes of an unfinished
/// character, a run of byte-fallback tokens (one bad byte spoils the run), and text at the end that a
/// replacement or a strip may still remove.
class DecoderStream {
 public:
  /// `decoder` must live as long as the stream.
  explicit DecoderStream(const Decoder& decoder);
  ~DecoderStream();

  /// Text that became certain with this token. pre: valid UTF-8
  std::string push(std::string_view token);
  /// The rest. The stream is then used up.
  std::string finish();

  class Stage;

 private:
  std::vector<std::unique_ptr<Stage>> stages_;
  std::string out_;
};

}  // namespace nemocube::tok
