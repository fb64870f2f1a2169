// tokenizer.json from a stranger, and what its model makes of pieces.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz/bounds.h"
#include "tokenizers/huggingface/byte_alphabet.h"
#include "tokenizers/huggingface/subword_model.h"
#include "tokenizers/huggingface/tokenizer_json.h"
#include "tokenizers/huggingface/vocabulary_files.h"

namespace {

using mneme::PieceAlphabet;
using mneme::Require;

constexpr absl::string_view kFile = "tokenizer.json";
constexpr size_t kLongestMessage = 1000;

void TryModel(absl::string_view text, PieceAlphabet alphabet) {
  auto parsed = mneme::ParseTokenizerJson(text, kFile);
  if (!parsed.ok()) {
    Require(parsed.status().message().size() < kLongestMessage, "a message is for people");
    return;
  }
  const auto model = mneme::MakeSubwordModel(std::move(parsed->model), alphabet, kFile);
  if (!model.ok()) {
    Require(model.status().message().size() < kLongestMessage, "a message is for people");
    return;
  }
  // All tokens, one by one and in a row; and characters that few vocabularies have.
  std::vector<std::string> pieces = {"a", "é", "中", "😀 x", std::string(200, 'a')};
  std::string all;
  for (const std::string& token : (*model)->tokens()) {
    if (token.empty() || all.size() > 4096) continue;
    pieces.push_back(token);
    all += token;
  }
  if (!all.empty()) pieces.push_back(all);
  if (alphabet == PieceAlphabet::kBytes) {
    for (std::string& piece : pieces) {
      if (auto bytes = mneme::FromByteAlphabet(piece)) piece = *std::move(bytes);
    }
    pieces.emplace_back("\xFF\x00\xC3", 3);
  }
  mneme::WorkMeter meter;
  std::vector<int32_t> ids, again;
  for (const std::string& piece : pieces) {
    ids.clear();
    again.clear();
    const absl::Status status = (*model)->Append(piece, meter, ids);
    Require(status.message().size() < kLongestMessage, "a message is for people");
    Require((*model)->Append(piece, meter, again).ok() == status.ok() && again == ids,
            "a piece has the same ids every time");
    for (const int32_t id : ids) {
      Require(id >= 0 && id < static_cast<int64_t>((*model)->tokens().size()),
              "an id is a token's");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const mneme::TimeLimit limit(20);
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  TryModel(text, PieceAlphabet::kText);
  TryModel(text, PieceAlphabet::kBytes);
  (void)mneme::ParseVocabText(text, "vocab.txt");
  const size_t half = size / 2;
  (void)mneme::ParseVocabAndMerges(text.substr(0, half), "vocab.json", text.substr(half),
                                   "merges.txt");
  return 0;
}
