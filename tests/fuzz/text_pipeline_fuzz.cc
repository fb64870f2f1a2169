// Normalizers and pre-tokenizers of tokenizer.json: what a file asks for, and what a client sends.
//
// An input is lines; the first byte chooses what the first line is, and the rest is the text, made
// valid UTF-8.
//   0  a normalizer, as JSON
//   1  a pre-tokenizer, as JSON
//   2  a pattern
//   3  no line: the text goes through each of a list of known pipelines
// Fails (aborts) if pieces are empty, if a result is not UTF-8 where text was asked for, if pieces
// that are all of a text are not the text, if a scanner and its pattern differ, or if one input
// takes long; crashes and sanitizer reports count too.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "tests/fuzz/bounds.h"
#include "tokenizers/huggingface/normalizer.h"
#include "tokenizers/huggingface/pre_tokenizer.h"
#include "tokenizers/huggingface/split_pattern.h"
#include "tokenizers/huggingface/word_scanner.h"
#include "tokenizers/regex/program.h"

namespace mneme {
namespace {

void CheckNormalizer(const nlohmann::json& config, absl::string_view text) {
  const auto normalizer = MakeNormalizer(config, "tokenizer.json");
  if (!normalizer.ok()) return;
  for (const bool continuation : {false, true}) {
    WorkMeter meter;
    std::string storage;
    const auto result =
        (*normalizer)->Normalize(text, {!continuation, continuation}, meter, storage);
    Require(!result.ok() || IsValidUtf8(*result), "a normal form is UTF-8");
  }
}

void CheckPreTokenizer(const nlohmann::json& config, absl::string_view text, bool keeps_text) {
  const auto made = MakePreTokenizer(config, "tokenizer.json");
  if (!made.ok() || made->pre_tokenizer == nullptr || text.empty()) return;
  for (const bool continuation : {false, true}) {
    WorkMeter meter;
    std::string joined;
    const absl::Status status = made->pre_tokenizer->Split(
        text, {!continuation, continuation}, meter, [&](absl::string_view piece, SectionContext) {
          Require(!piece.empty(), "a piece is not empty");
          Require(made->alphabet == PieceAlphabet::kBytes || IsValidUtf8(piece),
                  "a piece is UTF-8");
          joined.append(piece.data(), piece.size());
          return absl::OkStatus();
        });
    Require(!keeps_text || !status.ok() || joined == text, "the pieces are the text");
  }
}

std::vector<size_t> Ends(const SplitPattern& pattern, absl::string_view text) {
  std::vector<size_t> ends;
  WorkMeter meter;
  const absl::Status status = pattern.FindAll(text, meter, [&](size_t begin, size_t end) {
    Require(begin <= end && end <= text.size(), "a match lies in the text");
    Require(ends.empty() || begin >= ends.back(), "matches do not overlap");
    ends.push_back(end);
    return absl::OkStatus();
  });
  if (!status.ok()) ends.clear();
  return ends;
}

void CheckPattern(const std::string& pattern, absl::string_view text) {
  const auto compiled = CompileSplitPattern(pattern);
  if (!compiled.ok()) return;
  const std::vector<size_t> ends = Ends(**compiled, text);
  if (MakeWordScanner(pattern) == nullptr) return;
  const auto general = CompileSplitPattern("(?:" + pattern + ")");
  Require(general.ok(), "a pattern is one in a group, too");
  Require(ends == Ends(**general, text), "a scanner finds what its pattern finds");
}

void CheckKnown(absl::string_view text) {
  for (const char* const type :
       {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"}) {
    CheckNormalizer({{"type", type}}, text);
  }
  CheckNormalizer({{"type", "BertNormalizer"},
                   {"clean_text", true},
                   {"handle_chinese_chars", true},
                   {"lowercase", true}},
                  text);
  for (const char* const type :
       {"Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts"}) {
    CheckPreTokenizer({{"type", type}}, text, /*keeps_text=*/false);
  }
  CheckPreTokenizer({{"type", "Digits"}, {"individual_digits", true}}, text, /*keeps_text=*/true);
  CheckPreTokenizer({{"type", "Punctuation"}}, text, /*keeps_text=*/true);
  CheckPreTokenizer({{"type", "ByteLevel"}, {"add_prefix_space", false}}, text,
                    /*keeps_text=*/true);
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const mneme::TimeLimit limit(60);
  const absl::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const int kind = data[0] % 4;
  if (kind == 3) {
    mneme::CheckKnown(mneme::SanitizeUtf8(input));
    return 0;
  }
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string line(input.substr(0, end));
  const std::string text = mneme::SanitizeUtf8(input.substr(std::min(end + 1, input.size())));
  if (kind == 2) {
    mneme::CheckPattern(line, text);
    return 0;
  }
  const auto config = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (config.is_discarded()) return 0;
  if (kind == 0) {
    mneme::CheckNormalizer(config, text);
  } else {
    mneme::CheckPreTokenizer(config, text, /*keeps_text=*/false);
  }
  return 0;
}
