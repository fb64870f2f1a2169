// Prints what a folder's tokenizer makes of texts and ids, for compare_with_packages.py: JSON lines
// in, one line out for each.
//
//   {"text": T, "add_special_tokens": false, "parse_special": true}       {"ids": [...]}
//   {"text": T, "pair": P, ...}                                           {"ids", "type_ids"}
//   {"bytes_hex": H, ...}                 T as bytes, which need not be UTF-8
//   {"ids": [...], "skip_special_tokens": true}                           {"text": T}
//   {"stream": [...], "skip_special_tokens": true}     {"pieces": [...]}, the last of the flush
//
// Each may give {"error": message} instead; so does the first line of all, which is for loading,
// and otherwise says {"kind": K, "notes": [...]}.
//
// usage: tokenize_lines FOLDER VOCAB_SIZE [MODEL_TYPE]
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/status_macros.h"
#include "base/work_meter.h"
#include "tokenizers/streaming_decoder.h"
#include "tokenizers/tokenizer_loader.h"

namespace mneme {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

absl::StatusOr<Json> Encode(const Tokenizer& tokenizer, const Json& line, const std::string& text) {
  const bool adds = line.value("add_special_tokens", false);
  const EncodeOptions options{
      .add_bos = adds, .add_eos = adds, .parse_special = line.value("parse_special", true)};
  WorkMeter meter;
  if (line.contains("pair")) {
    MNEME_ASSIGN_OR_RETURN(
        const Tokenizer::Pair pair,
        tokenizer.EncodePair(text, line["pair"].get<std::string>(), options, meter));
    return Json{{"ids", pair.ids}, {"type_ids", pair.type_ids}};
  }
  MNEME_ASSIGN_OR_RETURN(const Ids ids, tokenizer.Encode(text, options, meter));
  return Json{{"ids", ids}};
}

Json Stream(const Tokenizer& tokenizer, const Ids& ids, const DecodeOptions& options) {
  StreamingDecoder decoder(tokenizer, options);
  Json pieces = Json::array();
  for (const int32_t id : ids) pieces.push_back(decoder.Push(id));
  pieces.push_back(decoder.Flush());
  return {{"pieces", std::move(pieces)}};
}

absl::StatusOr<Json> Answer(const Tokenizer& tokenizer, const Json& line) {
  if (line.contains("text")) return Encode(tokenizer, line, line["text"].get<std::string>());
  if (line.contains("bytes_hex")) {
    return Encode(tokenizer, line, absl::HexStringToBytes(line["bytes_hex"].get<std::string>()));
  }
  const DecodeOptions options{.skip_special_tokens = line.value("skip_special_tokens", true)};
  if (line.contains("stream")) {
    const Ids ids = line["stream"];
    for (size_t i = 0; i < ids.size(); ++i) {
      MNEME_RETURN_IF_ERROR(tokenizer.CheckId(ids[i], static_cast<int64_t>(i)));
    }
    return Stream(tokenizer, ids, options);
  }
  MNEME_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode(line["ids"].get<Ids>(), options));
  return Json{{"text", std::move(text)}};
}

void Print(const absl::StatusOr<Json>& answer) {
  std::string line;
  try {
    line = (answer.ok() ? *answer : Json{{"error", std::string(answer.status().message())}}).dump();
  } catch (const Json::exception& e) {  // a text that is not UTF-8, which is a fault of ours
    line = Json{{"error", e.what()}}.dump();
  }
  std::cout << line << std::endl;  // NOLINT(performance-avoid-endl): somebody waits for it
}

int Run(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: tokenize_lines FOLDER VOCAB_SIZE [MODEL_TYPE]\n");
    return 2;
  }
  TokenizerFacts facts;
  facts.vocab_size = std::atoll(argv[2]);
  if (argc == 4) facts.model_type = argv[3];
  const auto tokenizer = LoadTokenizer(argv[1], facts);
  if (!tokenizer.ok()) {
    Print(tokenizer.status());
    return 1;
  }
  Print(Json{{"kind", std::string((*tokenizer)->kind())}, {"notes", (*tokenizer)->notes()}});
  std::string line;
  while (std::getline(std::cin, line)) Print(Answer(**tokenizer, Json::parse(line)));
  return 0;
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Run(argc, argv); }
