// Bytes as a tokenizer.model, and bytes as ids.
//
// The first byte of an input chooses what the rest is:
//   even  a model file. If it passes, the whole tokenizer is made of it, SentencePiece included;
//         it has to encode a few texts and decode what came of them.
//   odd   16-bit ids for the golden models and the byte tokenizer, decoded whole and as a stream.
// Fails (aborts) if a decoded text is not UTF-8, if the stream and the whole differ, or if text and
// its ids do not survive; crashes and sanitizer reports count too.
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/utf8.h"
#include "tokenizers/byte_tokenizer.h"
#include "tokenizers/sentencepiece/model_file.h"
#include "tokenizers/sentencepiece/tokenizer.h"
#include "tokenizers/streaming_decoder.h"

namespace mneme {
namespace {

std::unique_ptr<Tokenizer> TokenizerFrom(absl::string_view bytes) {
  const auto file = ParseSentencePieceModel(bytes);
  if (!file.ok()) return nullptr;
  auto encoder = SentencePieceEncoder::Load(bytes, *file);
  if (!encoder.ok()) return nullptr;
  Tokenizer::Vocabulary vocabulary = SentencePieceVocabulary(*file, **encoder);
  return MakeSentencePieceTokenizer(*std::move(encoder), std::move(vocabulary),
                                    /*prefix_after_special=*/true);
}

void CheckDecode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                 DecodeOptions options) {
  const auto whole = tokenizer.Decode(ids, options);
  CHECK_OK(whole.status());
  CHECK(IsValidUtf8(*whole));
  StreamingDecoder decoder(tokenizer, options);
  std::string joined;
  for (const int32_t id : ids) {
    const std::string text = decoder.Push(id);
    CHECK(IsValidUtf8(text));
    joined += text;
  }
  joined += decoder.Flush();
  CHECK_EQ(joined, *whole);
}

void CheckModel(absl::string_view bytes) {
  const auto tokenizer = TokenizerFrom(bytes);
  if (tokenizer == nullptr) return;
  std::string own;  // a text of the vocabulary's own pieces
  for (int id = 0; id < tokenizer->vocab_size() && own.size() < 2000; id += 7) {
    own += tokenizer->entry(id).text;
  }
  for (const std::string& text :
       {std::string("the state of a \xE4\xB8\x96\xE7\x95\x8C \xF0\x9F\x98\x80\n\t  caf\xC3\xA9"),
        std::string(" \0\x01 <s></s>", 12), std::string(300, 'a'),
        std::string("\xEF\xBC\xA1\xEF\xAC\x81\xC2\xBD\xE3\x80\x80\xE2\x80\x8B"), own}) {
    for (const bool continuation : {false, true}) {
      const auto ids = tokenizer->Encode(text, {.continuation = continuation});
      if (ids.ok()) {
        CheckDecode(*tokenizer, *ids, {.at_sequence_start = !continuation});
      }
    }
  }
}

const std::vector<std::unique_ptr<Tokenizer>>& Tokenizers() {
  static const auto* const tokenizers = [] {
    auto* list = new std::vector<std::unique_ptr<Tokenizer>>();
    for (const char* kind : {"bpe", "unigram"}) {
      std::ifstream file(std::string(MNEME_GOLDEN_FOLDER "/tokenizer_sp/") + kind + ".model",
                         std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(file), {}};
      list->push_back(TokenizerFrom(bytes));
      CHECK(list->back() != nullptr) << kind;
    }
    auto bytes = MakeByteTokenizer(300, 256, 257);
    CHECK_OK(bytes.status());
    list->push_back(*std::move(bytes));
    return list;
  }();
  return *tokenizers;
}

void CheckIds(const uint8_t* data, size_t size) {
  for (const auto& tokenizer : Tokenizers()) {
    std::vector<int32_t> ids;
    for (size_t i = 0; i + 1 < size; i += 2) ids.push_back(data[i] << 8 | data[i + 1]);
    if (!tokenizer->Decode(ids).ok()) {  // as is: mostly outside the vocabulary
      for (int32_t& id : ids) id %= tokenizer->vocab_size();
    }
    CheckDecode(*tokenizer, ids, {});
    CheckDecode(*tokenizer, ids, {.skip_special_tokens = false, .at_sequence_start = false});
  }
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    // 0x0A, the tag of a model's first piece, is part of the model: a model file is an input.
    mneme::CheckModel({reinterpret_cast<const char*>(data), size});
  } else {
    mneme::CheckIds(data + 1, size - 1);
  }
  return 0;
}
