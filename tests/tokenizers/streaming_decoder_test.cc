#include "tokenizers/streaming_decoder.h"

#include <random>

#include "base/utf8.h"
#include "gmock/gmock.h"
#include "tests/tokenizers/tokenizer_golden.h"
#include "tokenizers/byte_tokenizer.h"

namespace mneme {
namespace {

using Ids = std::vector<int32_t>;

class StreamingDecoderTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tokenizer_ = GetParam() == std::string("bytes") ? *MakeByteTokenizer(260, 256, 257)
                                                    : LoadGoldenTokenizer(GetParam());
    ASSERT_NE(tokenizer_, nullptr);
  }

  // Byte pieces are frequent, as in text of a script that the vocabulary lacks.
  Ids RandomIds(std::mt19937_64& random) const {
    std::vector<int32_t> bytes;
    for (int id = 0; id < tokenizer_->vocab_size(); ++id) {
      if (tokenizer_->entry(id).kind == TokenKind::kBytes) bytes.push_back(id);
    }
    const std::vector<uint8_t> likely = {0x20, 0x61, 0x80, 0x82, 0x8F, 0x90, 0x9F,
                                         0xA0, 0xAC, 0xBF, 0xC0, 0xC3, 0xE0, 0xE2,
                                         0xED, 0xEF, 0xF0, 0xF4, 0xF5, 0xFF};
    Ids ids(random() % 40);
    for (int32_t& id : ids) {
      const uint64_t choice = random() % 4;
      id = choice == 0 || bytes.empty() ? static_cast<int32_t>(random() % tokenizer_->vocab_size())
           : choice == 1                ? bytes[random() % bytes.size()]
                                        : bytes[likely[random() % likely.size()]];
    }
    return ids;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

class StreamingDecoderGoldenTest : public StreamingDecoderTest {};
TEST_P(StreamingDecoderGoldenTest, EmitsWhatTheGoldensEmitAfterEachId) {
  const auto golden_file = ReadGolden(GetParam());
  for (const char* list : {"cases", "decode_only"}) {
    for (const auto& golden : golden_file[list]) {
      StreamingDecoder decoder(*tokenizer_);
      const Ids ids = golden["ids"];
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(decoder.Push(ids[i]), golden["incremental"][i].get<std::string>())
            << golden["ids"] << " at " << i;
      }
      EXPECT_EQ(decoder.Flush(), golden["flush"].get<std::string>()) << golden["ids"];
    }
  }
}

TEST_P(StreamingDecoderTest, PiecesOfRandomStreamsAreValidAndJoinToTheWhole) {
  constexpr uint64_t kSeed = 20;
  std::mt19937_64 random(kSeed);
  for (int stream = 0; stream < 5000; ++stream) {
    const Ids ids = RandomIds(random);
    const DecodeOptions options = {.skip_special_tokens = random() % 2 == 0,
                                   .at_sequence_start = random() % 2 == 0};
    StreamingDecoder decoder(*tokenizer_, options);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string text = decoder.Push(id);
      ASSERT_TRUE(IsValidUtf8(text)) << "stream " << stream << " seed " << kSeed;
      ASSERT_LE(decoder.held_bytes(), 3);
      joined += text;
    }
    joined += decoder.Flush();
    ASSERT_EQ(decoder.held_bytes(), 0);
    ASSERT_EQ(joined, *tokenizer_->Decode(ids, options))
        << "stream " << stream << " seed " << kSeed;
  }
}

// The decoder works byte by byte; the same is done here on a whole run of bytes at once.
class ByteRunTest : public StreamingDecoderTest {};
TEST_P(ByteRunTest, RandomByteRunsDecodeAsOneReplacementPerStrayByte) {
  std::vector<int32_t> byte_ids(256, -1);
  for (int id = 0; id < tokenizer_->vocab_size(); ++id) {
    const TokenEntry& entry = tokenizer_->entry(id);
    if (entry.kind == TokenKind::kBytes) byte_ids[static_cast<uint8_t>(entry.text[0])] = id;
  }
  constexpr uint64_t kSeed = 21;
  std::mt19937_64 random(kSeed);
  for (int run = 0; run < 5000; ++run) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 2 ? random() : 0x80 + random() % 0x50);
    std::string want;
    for (absl::string_view rest = bytes; !rest.empty();) {
      const size_t valid = FirstInvalidUtf8(rest);
      want += std::string(rest.substr(0, valid));
      rest.remove_prefix(valid);
      if (!rest.empty()) {
        want += "\xEF\xBF\xBD";
        rest.remove_prefix(1);
      }
    }
    Ids ids;
    for (const char c : bytes) ids.push_back(byte_ids[static_cast<uint8_t>(c)]);
    ASSERT_EQ(*tokenizer_->Decode(ids), want) << "run " << run << " seed " << kSeed;
  }
}

TEST_P(StreamingDecoderTest, CopiesGoOnIndependently) {
  constexpr uint64_t kSeed = 22;
  std::mt19937_64 random(kSeed);
  for (int stream = 0; stream < 500; ++stream) {
    const Ids common = RandomIds(random), left = RandomIds(random), right = RandomIds(random);
    StreamingDecoder parent(*tokenizer_);
    std::string begin;
    for (const int32_t id : common) parent.Push(id, begin);
    StreamingDecoder child = parent;
    for (const auto& [decoder, rest] : {std::pair(&parent, &left), std::pair(&child, &right)}) {
      std::string text = begin;
      Ids all = common;
      for (const int32_t id : *rest) {
        decoder->Push(id, text);
        all.push_back(id);
      }
      decoder->Flush(text);
      ASSERT_EQ(text, *tokenizer_->Decode(all)) << "stream " << stream << " seed " << kSeed;
    }
  }
}

const auto kName = [](const auto& info) { return std::string(info.param); };
INSTANTIATE_TEST_SUITE_P(Kinds, StreamingDecoderTest, testing::Values("bpe", "unigram", "bytes"),
                         kName);
INSTANTIATE_TEST_SUITE_P(Kinds, StreamingDecoderGoldenTest, testing::Values("bpe", "unigram"),
                         kName);
INSTANTIATE_TEST_SUITE_P(Kinds, ByteRunTest, testing::Values("bpe", "bytes"), kName);

TEST(StreamingDecoderSpaceTest, LeadingSpaceIsRemovedAtTheStartOfASequenceOnly) {
  for (const char* kind : {"bpe", "unigram"}) {
    const auto tokenizer = LoadGoldenTokenizer(kind);
    const Ids ids = *tokenizer->Encode("the state");
    EXPECT_EQ(*tokenizer->Decode(ids, {.at_sequence_start = true}), "the state") << kind;
    EXPECT_EQ(*tokenizer->Decode(ids, {.at_sequence_start = false}), " the state") << kind;
  }
}

TEST(StreamingDecoderSpaceTest, StateIsSmallEnoughForThousandsOfStreams) {
  EXPECT_LE(sizeof(StreamingDecoder), 24u);
}

}  // namespace
}  // namespace mneme
