// The "decoder" of tokenizer.json: what text a token stands for.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

// A decoder maps a list of tokens to a text. All that are in use treat tokens one by one, but for
// the first (no space in front), the last (no space behind) and bytes, which are joined; so the
// text of each token is known when a model is loaded.
class TokenDecoder {
 public:
  // From the value of "decoder"; null: none, which puts a space between tokens. `path` names it in
  // errors, which say the key, what it holds and what was expected. UNIMPLEMENTED: a type, an
  // option or an order that is not supported, such as CTC.
  //
  // ByteLevel, ByteFallback, Fuse, Metaspace, Replace (of strings), Sequence, Strip, WordPiece,
  // BPEDecoder.
  static absl::StatusOr<TokenDecoder> Make(const nlohmann::json& config, absl::string_view path);

  struct Text {
    std::string within;   // behind other tokens
    std::string initial;  // as the first of a text
    // At the end of `within` and no part of a text's last token.
    uint8_t bytes_before_next = 0;
    bool is_bytes = false;  // joined with bytes on either side
  };
  Text Decode(absl::string_view piece) const;

  // Rules for texts of Decode, less the list of them.
  DecodeRules::Start start() const { return start_; }
  char stripped() const { return stripped_; }
  bool replaces_each_byte() const { return has_byte_fallback_; }
  bool has_bytes_before_next() const { return has_word_ends_; }

 private:
  struct Step {
    enum class Kind : uint8_t {
      kByteLevel,
      kByteFallback,
      kJoin,  // no decoder
      kMetaspace,
      kReplace,
      kStrip,
      kWordEnd,
      kWordPiece,
    };
    Kind kind;
    std::string pattern;  // what is replaced or stripped, a prefix, a suffix
    std::string content;  // what stands there instead
    int left = 0;         // kStrip: how many at most
    int right = 0;
    bool flag = false;  // kMetaspace: the first token has no space; kWordPiece: tidies spaces
  };
  enum class Place { kWithin, kInitial, kLast };

  absl::Status Add(const nlohmann::json& config, const std::string& path, int depth);
  absl::Status AddStrip(Step step, const std::string& path);
  std::string Apply(absl::string_view piece, Place place, bool& is_bytes) const;

  std::vector<Step> steps_;
  DecodeRules::Start start_ = DecodeRules::Start::kInitialTexts;
  char stripped_ = ' ';
  bool is_fused_ = false;  // while it is made: what follows sees one text
  bool has_byte_fallback_ = false;
  bool has_word_ends_ = false;
};

}  // namespace mneme
