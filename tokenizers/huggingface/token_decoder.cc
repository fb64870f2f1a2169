#include "tokenizers/huggingface/token_decoder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/config_reader.h"
#include "base/status_macros.h"
#include "tokenizers/huggingface/byte_alphabet.h"

namespace mneme {
namespace {

using Json = nlohmann::json;

constexpr int kMaxDecoderDepth = 8;

// Rules of English spelling, each on its own and in this order.
constexpr std::array<std::pair<absl::string_view, absl::string_view>, 11> kTidied = {{
    {" .", "."},
    {" ?", "?"},
    {" !", "!"},
    {" ,", ","},
    {" ' ", "'"},
    {" n't", "n't"},
    {" 'm", "'m"},
    {" do not", " don't"},
    {" 's", "'s"},
    {" 've", "'ve"},
    {" 're", "'re"},
}};

std::string Replaced(std::string text, absl::string_view from, absl::string_view to) {
  if (from.empty()) return text;
  return absl::StrReplaceAll(text, {{from, to}});
}

// The byte that "<0x0A>" spells.
std::optional<char> ByteOf(absl::string_view piece) {
  if (piece.size() != 6 || !absl::ConsumePrefix(&piece, "<0x") ||
      !absl::ConsumeSuffix(&piece, ">")) {
    return std::nullopt;
  }
  unsigned value = 0;
  const auto [end, error] = std::from_chars(piece.data(), piece.data() + piece.size(), value, 16);
  if (error != std::errc() || end != piece.data() + piece.size()) return std::nullopt;
  return static_cast<char>(value);
}

std::string Stripped(absl::string_view text, absl::string_view pattern, int left, int right) {
  while (left-- > 0 && absl::ConsumePrefix(&text, pattern)) continue;
  while (right-- > 0 && absl::ConsumeSuffix(&text, pattern)) continue;
  return std::string(text);
}

absl::Status Unsupported(absl::string_view path, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(path, ": ", what));
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Make(const Json& config, absl::string_view path) {
  TokenDecoder decoder;
  if (config.is_null()) {
    decoder.steps_.push_back({.kind = Step::Kind::kJoin, .pattern = {}, .content = {}});
    return decoder;
  }
  MNEME_RETURN_IF_ERROR(decoder.Add(config, std::string(path), 0));
  return decoder;
}

absl::Status TokenDecoder::Add(const Json& config, const std::string& path, int depth) {
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", Shown(config), ", expected an object with \"type\""));
  }
  ConfigReader reader(config, path);
  const std::string type = reader.String("type", "");
  Step step = {.kind = Step::Kind::kReplace, .pattern = {}, .content = {}};
  if (type == "Sequence") {
    const Json* decoders = reader.Find("decoders");
    if (decoders == nullptr || !decoders->is_array() || depth == kMaxDecoderDepth) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ".decoders is ", decoders == nullptr ? "missing" : Shown(*decoders),
          ", expected a list of decoders, nested at most ", kMaxDecoderDepth, " deep"));
    }
    for (size_t i = 0; i < decoders->size(); ++i) {
      MNEME_RETURN_IF_ERROR(
          Add((*decoders)[i], absl::StrCat(path, ".decoders[", i, "]"), depth + 1));
    }
    return reader.status();
  }
  if (type == "Fuse") {
    is_fused_ = true;
    return reader.status();
  }
  if (type == "Strip") {
    step.kind = Step::Kind::kStrip;
    step.pattern = reader.String("content", "");
    step.left = reader.Int("start", 0, 0, 255);
    step.right = reader.Int("stop", 0, 0, 255);
    MNEME_RETURN_IF_ERROR(reader.status());
    return AddStrip(std::move(step), path);
  }
  if (type == "Replace") {
    const Json* pattern = reader.Find("pattern");
    if (pattern == nullptr || !pattern->is_object() || !pattern->contains("String") ||
        !(*pattern)["String"].is_string()) {
      return Unsupported(
          path, absl::StrCat("pattern is ", pattern == nullptr ? "missing" : Shown(*pattern),
                             "; decoders replace strings only, expected {\"String\": "
                             "\"...\"}"));
    }
    step.pattern = (*pattern)["String"].get<std::string>();
    step.content = reader.String("content", "");
    if (is_fused_ && step.pattern.size() > 1 && step.pattern != Tokenizer::kSpaceSymbol) {
      return Unsupported(path, absl::StrCat("replaces ", Shown((*pattern)["String"]),
                                            " behind Fuse, where it may lie in several tokens"));
    }
  } else if (type == "ByteFallback") {
    step.kind = Step::Kind::kByteFallback;
    has_byte_fallback_ = true;
  } else if (type == "ByteLevel") {
    step.kind = Step::Kind::kByteLevel;
  } else if (type == "Metaspace") {
    step.kind = Step::Kind::kMetaspace;
    step.pattern = reader.String("replacement", Tokenizer::kSpaceSymbol);
    const bool adds_prefix = reader.Bool("add_prefix_space", true);
    step.flag = reader.String("prepend_scheme", adds_prefix ? "always" : "never") != "never";
  } else if (type == "WordPiece") {
    step.kind = Step::Kind::kWordPiece;
    step.pattern = reader.String("prefix", "##");
    step.flag = reader.Bool("cleanup", true);
  } else if (type == "BPEDecoder") {
    step.kind = Step::Kind::kWordEnd;
    step.pattern = reader.String("suffix", "</w>");
    has_word_ends_ = true;
  } else {
    return Unsupported(path,
                       absl::StrCat("type is \"", type,
                                    "\", which is not supported; expected ByteLevel, "
                                    "ByteFallback, Fuse, Metaspace, Replace, Sequence, Strip, "
                                    "WordPiece or BPEDecoder"));
  }
  MNEME_RETURN_IF_ERROR(reader.status());
  if (is_fused_ && step.kind != Step::Kind::kReplace) {
    return Unsupported(path, absl::StrCat(type, " behind Fuse is not supported"));
  }
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddStrip(Step step, const std::string& path) {
  if (step.left == 0 && step.right == 0) return absl::OkStatus();
  if (!is_fused_) {
    steps_.push_back(std::move(step));
    return absl::OkStatus();
  }
  if (step.left != 1 || step.right != 0 || step.pattern.size() != 1 ||
      start_ == DecodeRules::Start::kStripOneFromText) {
    return Unsupported(
        path, absl::StrCat("strips ", step.left, " and ", step.right, " of \"", step.pattern,
                           "\" from a whole text; expected one ASCII "
                           "character at its start"));
  }
  start_ = DecodeRules::Start::kStripOneFromText;
  stripped_ = step.pattern[0];
  return absl::OkStatus();
}

std::string TokenDecoder::Apply(absl::string_view piece, Place place, bool& is_bytes) const {
  std::string text(piece);
  const bool is_first = place == Place::kInitial;
  for (const Step& step : steps_) {
    switch (step.kind) {
      case Step::Kind::kJoin:
        if (!is_first) text.insert(0, " ");
        break;
      case Step::Kind::kByteLevel:
        if (auto bytes = FromByteAlphabet(text)) text = *std::move(bytes);
        is_bytes = true;
        break;
      case Step::Kind::kByteFallback:
        if (const auto byte = ByteOf(text)) {
          text = std::string(1, *byte);
          is_bytes = true;
        }
        break;
      case Step::Kind::kMetaspace:
        text = Replaced(std::move(text), step.pattern, is_first && step.flag ? "" : " ");
        break;
      case Step::Kind::kReplace:
        text = Replaced(std::move(text), step.pattern, step.content);
        break;
      case Step::Kind::kStrip:
        text = Stripped(text, step.pattern, step.left, step.right);
        break;
      case Step::Kind::kWordEnd:
        text = Replaced(std::move(text), step.pattern, place == Place::kLast ? "" : " ");
        break;
      case Step::Kind::kWordPiece:
        if (!is_first && !step.pattern.empty() && absl::StartsWith(text, step.pattern)) {
          text.erase(0, step.pattern.size());
        } else if (!is_first) {
          text.insert(0, " ");
        }
        if (!step.flag) break;
        for (const auto& [from, to] : kTidied) text = Replaced(std::move(text), from, to);
        break;
    }
  }
  return text;
}

TokenDecoder::Text TokenDecoder::Decode(absl::string_view piece) const {
  Text text;
  text.within = Apply(piece, Place::kWithin, text.is_bytes);
  text.initial = Apply(piece, Place::kInitial, text.is_bytes);
  if (has_word_ends_) {
    const std::string last = Apply(piece, Place::kLast, text.is_bytes);
    // A word ends at the end of its last token, or the space belongs to no end of a text.
    if (absl::StartsWith(text.within, last)) {
      text.bytes_before_next =
          static_cast<uint8_t>(std::min<size_t>(text.within.size() - last.size(), UINT8_MAX));
    }
  }
  return text;
}

}  // namespace mneme
