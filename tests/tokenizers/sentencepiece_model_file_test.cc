#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tokenizers/sentencepiece/charsmap.h"
#include "tokenizers/sentencepiece/library.h"
#include "tokenizers/sentencepiece/model_file.h"
#include "tokenizers/sentencepiece/tokenizer.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;
using PieceType = SentencePieceModelFile::PieceType;

// Protocol buffers, written by hand so that wrong ones can be written too.
std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string Message(int field, const std::string& payload) {
  return Varint(field << 3 | 2) + Varint(payload.size()) + payload;
}
std::string Int(int field, uint64_t value) { return Varint(field << 3) + Varint(value); }
std::string Float(int field, float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return Varint(field << 3 | 5) + bytes;
}
std::string Piece(const std::string& text, PieceType type = PieceType::kNormal, float score = 0) {
  return Message(1, Message(1, text) + Float(2, score) + Int(3, static_cast<uint64_t>(type)));
}
std::string Units(const std::vector<uint32_t>& units) {
  std::string bytes(units.size() * 4, '\0');
  std::memcpy(bytes.data(), units.data(), bytes.size());
  return bytes;
}
std::string Charsmap(const std::vector<uint32_t>& units, const std::string& replacements) {
  return Units({static_cast<uint32_t>(units.size() * 4)}) + Units(units) + replacements;
}

const std::string kUnk = Piece("<unk>", PieceType::kUnknown);
const std::string kSmall = kUnk + Piece("\xE2\x96\x81") + Piece("a") + Piece("b");

std::string Refusal(const std::string& bytes) {
  const auto file = ParseSentencePieceModel(bytes);
  EXPECT_FALSE(file.ok());
  return std::string(file.status().message());
}

TEST(SentencePieceModelFileTest, ReadsPiecesAndFlags) {
  const auto file = ParseSentencePieceModel(kSmall + Message(2, Message(44, "??")) +
                                            Message(3, Int(3, 0) + Int(4, 0)) + Int(200, 7));
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_EQ(file->pieces.size(), 4u);
  EXPECT_EQ(file->pieces[0].type, PieceType::kUnknown);
  EXPECT_EQ(file->pieces[2].text, "a");
  EXPECT_EQ(file->unk_surface, "??");
  EXPECT_FALSE(file->add_dummy_prefix);
  EXPECT_FALSE(file->remove_extra_whitespaces);
}

TEST(SentencePieceModelFileTest, FlagsDefaultToOn) {
  const auto file = ParseSentencePieceModel(kSmall);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_TRUE(file->add_dummy_prefix);
  EXPECT_TRUE(file->remove_extra_whitespaces);
}

TEST(SentencePieceModelFileTest, ChangedWhitespaceRulesAreReadBackAndSelfTestsDropped) {
  const std::string self_test = Message(4, Message(1, Message(1, "in") + Message(2, "out")));
  const std::string bytes = Message(3, Int(3, 1) + Int(4, 1)) + self_test + kSmall;
  for (const bool dummy : {false, true}) {
    for (const bool squeeze : {false, true}) {
      const std::string changed = WithWhitespaceRules(bytes, dummy, squeeze);
      EXPECT_EQ(changed.find(self_test), std::string::npos);
      const auto file = ParseSentencePieceModel(changed);
      ASSERT_TRUE(file.ok()) << file.status().ToString();
      EXPECT_EQ(file->add_dummy_prefix, dummy);
      EXPECT_EQ(file->remove_extra_whitespaces, squeeze);
      EXPECT_EQ(file->pieces.size(), 4u);
    }
  }
}

TEST(SentencePieceModelFileTest, BrokenPiecesAreNamed) {
  EXPECT_THAT(Refusal(""), HasSubstr("no pieces"));
  EXPECT_THAT(Refusal(Piece("a")), HasSubstr("0 unknown pieces"));
  EXPECT_THAT(Refusal(kUnk + Piece("<u>", PieceType::kUnknown)), HasSubstr("2 unknown pieces"));
  EXPECT_THAT(Refusal(kSmall + Piece("b")), HasSubstr("piece 4 \"b\" is in the vocabulary twice"));
  EXPECT_THAT(Refusal(kUnk + Piece("")), HasSubstr("piece 1 has 0 bytes"));
  EXPECT_THAT(Refusal(kUnk + Piece(std::string(4097, 'a'))), HasSubstr("4097 bytes"));
  EXPECT_THAT(Refusal(kUnk + Piece("\xFF")), HasSubstr("piece 1 \"\\xff\" is not valid UTF-8"));
  EXPECT_THAT(Refusal(kUnk + Piece(std::string("a\0b", 3))), HasSubstr("NUL"));
  EXPECT_THAT(Refusal(kUnk + Piece("<0xZZ>", PieceType::kByte)), HasSubstr("<0xZZ>"));
  EXPECT_THAT(Refusal(kUnk + Piece("a", static_cast<PieceType>(7))), HasSubstr("type 7"));
  for (const float score : {NAN, INFINITY, -INFINITY}) {
    EXPECT_THAT(Refusal(kUnk + Piece("a", PieceType::kNormal, score)), HasSubstr("finite"));
  }
}

TEST(SentencePieceModelFileTest, MalformedMessagesAreRefused) {
  const std::string overlong_varint(11, '\xFF');
  for (const std::string& tail :
       {std::string("\x0A\x05"), std::string("\x0A"), overlong_varint, std::string(1, '\x00'),
        std::string("\x0B"), Int(1, 3), Message(1, "\x0A\x7F"), Message(2, "\xFF"),
        Message(3, Message(3, "x")), Message(3, "\x08"), Message(5, "\x08")}) {
    EXPECT_THAT(Refusal(kSmall + tail), HasSubstr("not a SentencePiece model"));
  }
}

TEST(SentencePieceModelFileTest, DenormaliserIsNotSupported) {
  const auto file = ParseSentencePieceModel(kSmall + Message(5, Message(2, "x")));
  EXPECT_EQ(file.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(ParseSentencePieceModel(kSmall + Message(5, "")).ok());
}

TEST(SentencePieceModelFileTest, WordModelsAreNotSupported) {
  const auto file = ParseSentencePieceModel(kSmall + Message(2, Int(3, 3)));
  EXPECT_EQ(file.status().code(), absl::StatusCode::kUnimplemented);
  for (const int type : {1, 2, 4}) {
    EXPECT_TRUE(ParseSentencePieceModel(kSmall + Message(2, Int(3, type))).ok()) << type;
  }
}

TEST(SentencePieceModelFileTest, DeeplyNestedUserDefinedPiecesAreRefused) {
  std::string model = kUnk;
  for (int size = 1; size <= 32; ++size) {
    model += Piece(std::string(size, 'x'), PieceType::kUserDefined) +
             Piece(std::string(size, 'x') + "y", PieceType::kUserDefined);
  }
  EXPECT_TRUE(ParseSentencePieceModel(kUnk + Piece("x", PieceType::kUserDefined)).ok());
  EXPECT_THAT(Refusal(model + Piece(std::string(33, 'x'), PieceType::kUserDefined)),
              HasSubstr("starts with more than"));
}

// A trie that maps "A" to the replacement at `value`: unit 0 is the root, whose children start at
// 256; their own children start at 512.
std::vector<uint32_t> OneEntryTrie(uint32_t value) {
  std::vector<uint32_t> units(768, 0x80000000u);
  units[0] = 256u << 10;                                           // offset 256
  units[256 ^ 'A'] = ((256u ^ 'A' ^ 512u) << 10) | 1u << 8 | 'A';  // has a leaf
  units[512] = 1u << 31 | value;
  return units;
}

TEST(SentencePieceCharsmapTest, TableThatStaysInsideIsAccepted) {
  EXPECT_TRUE(CheckCharsmap("").ok());
  const std::string replacements("a\0bc\0", 5);
  for (const uint32_t value : {0, 2, 4}) {
    EXPECT_TRUE(CheckCharsmap(Charsmap(OneEntryTrie(value), replacements)).ok()) << value;
  }
}

TEST(SentencePieceCharsmapTest, TableThatLeadsOutsideIsRefused) {
  const std::string a("a\0", 2);
  const auto refusal = [](const std::string& charsmap) {
    return std::string(CheckCharsmap(charsmap).message());
  };
  EXPECT_THAT(refusal("abc"), HasSubstr("truncated"));
  EXPECT_THAT(refusal(Units({400}) + "abc"), HasSubstr("a trie of 400 bytes in 3"));
  EXPECT_THAT(refusal(Units({0}) + a), HasSubstr("a trie of 0 bytes in 2"));
  EXPECT_THAT(refusal(Charsmap(OneEntryTrie(0), "a")), HasSubstr("does not end"));
  EXPECT_THAT(refusal(Charsmap(OneEntryTrie(2), a)), HasSubstr("a replacement at 2 of 2"));
  EXPECT_THAT(refusal(Charsmap(OneEntryTrie(0), std::string("\xFF\0", 2))), HasSubstr("UTF-8"));
  EXPECT_THAT(refusal(Charsmap(OneEntryTrie(1), std::string("\xC3\xA9\0", 3))),
              HasSubstr("inside a character"));

  std::vector<uint32_t> units = OneEntryTrie(0);
  units.resize(700);  // a lookup of byte 255 below the last node would read behind the end
  EXPECT_THAT(refusal(Charsmap(units, a)), HasSubstr("a node at 512 of 700"));
  units = OneEntryTrie(0);
  units[256 ^ 'A'] = (('A' ^ 0u) << 10) | 'A';  // leads back to its own base
  EXPECT_THAT(refusal(Charsmap(units, a)), HasSubstr("cycle"));
}

TEST(SentencePieceCharsmapTest, TooManyNestedEntriesAreRefused) {
  // "A", "AA", "AAA", ...: node d has its children at 256 * (d + 1).
  const auto chain = [](uint32_t depth) {
    std::vector<uint32_t> units(256 * (depth + 2), 0x80000000u);
    units[0] = 256u << 10;
    for (uint32_t d = 1; d <= depth; ++d) {
      const uint32_t index = 256 * d ^ 'A';
      units[index] = ((index ^ (256 * (d + 1))) << 10) | 1u << 8 | 'A';
    }
    return Charsmap(units, std::string("a\0", 2));
  };
  EXPECT_TRUE(CheckCharsmap(chain(32)).ok());
  EXPECT_THAT(std::string(CheckCharsmap(chain(33)).message()), HasSubstr("too many entries"));
}

TEST(SentencePieceLibraryTest, ModelThatOnlyTheLibraryRefusesGivesItsMessage) {
  // Byte fallback without the 256 byte pieces.
  const std::string bytes = kSmall + Message(2, Int(35, 1));
  const auto file = ParseSentencePieceModel(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto encoder = SentencePieceEncoder::Load(bytes, *file);
  EXPECT_EQ(encoder.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(encoder.status().message()), HasSubstr("SentencePiece refuses"));
}

TEST(SentencePieceLibraryTest, SelfTestSamplesHoldForTheOriginalRulesOnly) {
  // A sample that the dummy prefix makes true must not fail the variants without it.
  const std::string bytes =
      kSmall + Message(4, Message(1, Message(1, "a") + Message(2, "\xE2\x96\x81 a")));
  const auto file = ParseSentencePieceModel(bytes);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto encoder = SentencePieceEncoder::Load(bytes, *file);
  ASSERT_TRUE(encoder.ok()) << encoder.status().ToString();
  std::vector<int32_t> ids;
  ASSERT_TRUE((*encoder)->AppendIds("ab", false, ids).ok());
  ASSERT_TRUE((*encoder)->AppendIds("b", true, ids).ok());
  ASSERT_TRUE((*encoder)->AppendIds("  a", true, ids).ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 2, 3, 3, 1, 2}));
}

}  // namespace
}  // namespace mneme
