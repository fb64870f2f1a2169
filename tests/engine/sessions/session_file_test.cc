// Sessions as files: what is written is read, and nothing of a file is believed.
#include "engine/sessions/session_file.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/sessions/session_import.h"
#include "engine/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/layout_model.h"
#include "tokenizers/byte_tokenizer.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kTokens = 5;

// Routed memories of which one was written, what has no flags, keys of attention.
StateLayout Layout(DType dtype = DType::kF32) {
  StateLayout layout;
  const StateField flags =
      layout.Add({.name = "layers.0.written", .dtype = DType::kU8, .shape = {2}});
  layout.Add({.name = "layers.0.memory",
              .dtype = dtype,
              .shape = {2, 3},
              .guard = StateGuard::kFlags,
              .flags = flags.index});
  layout.Add({.name = "layers.1.counts", .dtype = DType::kI32, .shape = {1, 4}});
  layout.Add({.name = "layers.1.keys",
              .dtype = dtype,
              .shape = {1, 70, 2},
              .guard = StateGuard::kFirstRows,
              .role = StateRole::kAppendOnly});
  return layout;
}

SessionFacts Facts() {
  return {.model = {.model_type = "mom",
                    .name = "folder",
                    .fingerprint = 0x123456789abcdef0,
                    .vocabulary = 7,
                    .state_dtype = "f32"},
          .fed_tokens = kTokens,
          .pending_token = 3,
          .fed = {.bytes = 12, .hash = 0xfedcba9876543210},
          .has_text = true,
          .evictions = 2,
          .history = {10, ~11, 12, ~3},
          .created = absl::FromUnixSeconds(1700000000),
          .exported = absl::FromUnixSeconds(1800000000)};
}

std::string Drain(SessionFileSource& source) {
  std::string file;
  for (std::string piece = source.Next(); !piece.empty(); piece = source.Next()) {
    EXPECT_LE(piece.size(), SessionFileSource::kPieceBytes);
    file += piece;
  }
  EXPECT_EQ(static_cast<int64_t>(file.size()), source.bytes());
  EXPECT_EQ(source.Next(), "") << "it is over";
  return file;
}

std::span<const std::byte> Bytes(absl::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
absl::StatusOr<SessionFile> Parse(absl::string_view file) {
  return SessionFile::Parse(Bytes(file), "s");
}

// Puts the right checksum at a file's end.
void Sum(std::string& file) {
  Sha256 sum;
  sum.Add(Bytes(absl::string_view(file).substr(0, file.size() - sizeof(Sha256::Digest))));
  const Sha256::Digest digest = sum.Finish();
  std::memcpy(file.data() + file.size() - digest.size(), digest.data(), digest.size());
}

class SessionFileTest : public testing::Test {
 protected:
  SessionFileTest() : backend_(MakeReference()) {
    std::vector<std::byte> slab(static_cast<size_t>(model_.state_layout().slab_bytes()));
    const StateLayout& layout = model_.state_layout();
    const auto put = [&](int64_t at, auto value) {
      std::memcpy(slab.data() + at, &value, sizeof(value));
    };
    put(layout.fields()[0].offset + 1, uint8_t{1});
    for (int i = 0; i < 6; ++i) put(layout.fields()[1].offset + 4 * i, 0.5f * float(i) - 1);
    for (int i = 0; i < 4; ++i) put(layout.fields()[2].offset + 4 * i, int32_t{-1 - i});
    for (int i = 0; i < 2 * kTokens; ++i) {
      put(layout.RowOffset(layout.fields()[3], 0, i / 2) + 4 * (i % 2), float(i));
    }
    auto copy = std::make_unique<StateCopy>(model_);
    EXPECT_TRUE(copy->Read(*backend_, slab.data(), kTokens).ok());
    state_ = copy->Decode();
    SessionFileSource source(Facts(), std::move(copy));
    file_ = Drain(source);
  }

  // The file with other contents: `change` is given the header's JSON and the data behind it. The
  // checksum is right again if its tensor still is the last one.
  std::string Changed(const std::function<void(nlohmann::ordered_json&, std::string&)>& change) {
    uint64_t length = 0;
    std::memcpy(&length, file_.data(), sizeof(length));
    auto header = nlohmann::ordered_json::parse(file_.substr(8, length));
    std::string data = file_.substr(8 + length);
    change(header, data);
    const std::string text = header.dump();
    length = text.size();
    std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
    file += text + data;
    Sum(file);
    return file;
  }
  std::string Meta(const std::string& key, const nlohmann::ordered_json& value) {
    return Changed([&](auto& header, auto&) {
      if (value.is_null()) {
        header["__metadata__"].erase(key);
      } else {
        header["__metadata__"][key] = value;
      }
    });
  }
  absl::Status Import(const std::string& file, int64_t max_bytes = 1 << 20) {
    return SessionImport::Read(model_, Facts().model, max_bytes, file).status();
  }

  const LayoutModel model_{Layout(), {.vocab = 32}};
  std::unique_ptr<Backend> backend_;
  CanonicalState state_;
  std::string file_;
};

TEST_F(SessionFileTest, WhatIsWrittenIsRead) {
  const auto file = Parse(file_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->CheckSum().ok());
  EXPECT_EQ(file->version(), 1);
  const SessionFacts facts = file->facts(), want = Facts();
  EXPECT_EQ(facts.model.model_type, want.model.model_type);
  EXPECT_EQ(facts.model.name, want.model.name);
  EXPECT_EQ(facts.model.fingerprint, want.model.fingerprint);
  EXPECT_EQ(facts.model.vocabulary, want.model.vocabulary);
  EXPECT_EQ(facts.model.state_dtype, want.model.state_dtype);
  EXPECT_EQ(facts.fed_tokens, want.fed_tokens);
  EXPECT_EQ(facts.position(), want.position());
  EXPECT_EQ(facts.pending_token, want.pending_token);
  EXPECT_EQ(facts.fed, want.fed);
  EXPECT_EQ(facts.has_text, want.has_text);
  EXPECT_EQ(facts.evictions, want.evictions);
  EXPECT_EQ(facts.history, want.history);
  EXPECT_EQ(facts.created, want.created);
  EXPECT_EQ(facts.exported, want.exported);
  const auto state = file->State();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->tokens, kTokens);
  ASSERT_EQ(state->tensors.size(), state_.tensors.size());
  for (size_t i = 0; i < state_.tensors.size(); ++i) {
    EXPECT_EQ(state->tensors[i].name, state_.tensors[i].name);
    EXPECT_EQ(state->tensors[i].dtype, state_.tensors[i].dtype);
    EXPECT_EQ(state->tensors[i].shape, state_.tensors[i].shape);
    EXPECT_EQ(state->tensors[i].bytes, state_.tensors[i].bytes);
  }
  EXPECT_THAT(state->Get("layers.0.memory").Numbers(), ElementsAre(0, 0, 0, 0.5, 1, 1.5));
  EXPECT_EQ(Import(file_), absl::OkStatus());
}

TEST_F(SessionFileTest, ASessionThatWasFedNothingIsAFileToo) {
  SessionFileSource source({.model = Facts().model}, std::make_unique<StateCopy>(model_));
  const std::string bytes = Drain(source);
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->facts().history.empty());
  EXPECT_EQ(file->facts().pending_token, std::nullopt);
  EXPECT_EQ(Import(bytes), absl::OkStatus());
}

// What stands in front of the data is a multiple of 64 bytes, so that libraries map it.
TEST_F(SessionFileTest, IsASafetensorsFile) {
  const auto header = ParseSafetensors(Bytes(file_), "s");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->Find("mneme.history")->begin % 64, 0);
  EXPECT_EQ(header->Find("mneme.sha256")->end, static_cast<int64_t>(file_.size()));
  EXPECT_EQ(header->Find("layers.1.keys")->shape, (std::vector<int64_t>{1, kTokens, 2}));
  EXPECT_EQ(header->metadata.at("format"), "mneme-session");
  EXPECT_EQ(header->metadata.at("position"), "6");
}

TEST_F(SessionFileTest, LargeTensorsComeInPieces) {
  StateLayout layout;
  layout.Add({.name = "small", .shape = {3}});
  layout.Add({.name = "large", .shape = {1 << 20}});
  const LayoutModel model(layout);
  SessionFileSource source(Facts(), std::make_unique<StateCopy>(model));
  const std::string bytes = Drain(source);
  EXPECT_GT(bytes.size(), size_t{4} << 20);
  EXPECT_LE(static_cast<int64_t>(bytes.size()), LargestSessionFile(layout, kTokens));
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->CheckSum().ok());
}

TEST_F(SessionFileTest, AFileThatEndsEarlyIsRefused) {
  for (size_t bytes = 0; bytes < file_.size(); ++bytes) {
    const absl::Status status = Import(file_.substr(0, bytes));
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << bytes << " bytes: " << status;
    ASSERT_EQ(ReasonOf(status), kReasonBadFile);
    ASSERT_THAT(std::string(status.message()), HasSubstr("the session's file"));
  }
  EXPECT_TRUE(absl::IsInvalidArgument(Import(file_ + "x")));
}

TEST_F(SessionFileTest, NoChangedByteGoesUnnoticed) {
  int noticed_by_sum = 0;
  for (size_t at = 0; at < file_.size(); ++at) {
    for (const int mask : {1, 0x20, 0x80, 0xff}) {
      std::string file = file_;
      file[at] = static_cast<char>(file[at] ^ mask);
      const absl::Status status = Import(file);
      ASSERT_FALSE(status.ok()) << "byte " << at;
      if (absl::IsDataLoss(status)) {
        ASSERT_EQ(ReasonOf(status), kReasonChecksum);
        ++noticed_by_sum;
      }
    }
  }
  EXPECT_GT(noticed_by_sum, 4 * (32 + 40)) << "all of the data, at least";
}

TEST_F(SessionFileTest, LengthsAreNotBelieved) {
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, uint64_t{file_.size() - 7}, uint64_t{file_.size()},
        uint64_t{1} << 31, uint64_t{1} << 62, uint64_t{INT64_MAX}, UINT64_MAX}) {
    std::string file = file_;
    std::memcpy(file.data(), &length, sizeof(length));
    EXPECT_TRUE(absl::IsInvalidArgument(Import(file))) << length;
  }
}

TEST_F(SessionFileTest, MetadataAreChecked) {
  struct {
    const char* key;
    nlohmann::ordered_json value;  // null: it is missing
    const char* fault;
  } const kBad[] = {
      {"format", nullptr, "not a session"},
      {"format", "pt", "not a session"},
      {"format_version", nullptr, "\"format_version\" is missing"},
      {"format_version", "0", "\"format_version\" is \"0\", expected a number from 1"},
      {"format_version", "one", "expected a number"},
      {"model_type", nullptr, "\"model_type\" is missing"},
      {"model_type", std::string(300, 'x'), "has 300 bytes"},
      {"model", nullptr, "\"model\" is missing"},
      {"fingerprint", "123", "\"fingerprint\" is \"123\", expected 16 hexadecimal digits"},
      {"vocabulary", "000000000000000g", "expected 16 hexadecimal digits"},
      {"state_dtype", nullptr, "\"state_dtype\" is missing"},
      {"fed_tokens", "-1", "\"fed_tokens\" is \"-1\", expected a number from 0"},
      {"fed_tokens", "9223372036854775807", "\"fed_tokens\""},
      {"fed_tokens", "99999999999999999999", "\"fed_tokens\""},
      {"position", "5", "\"position\" is \"5\", expected a number from 6 to 6"},
      {"position", nullptr, "\"position\" is missing"},
      {"pending_token", nullptr, "\"position\" is \"6\", expected a number from 5 to 5"},
      {"pending_token", "-3", "\"pending_token\""},
      {"pending_token", "4294967296", "\"pending_token\""},
      {"conversation_bytes", "x", "\"conversation_bytes\""},
      {"conversation_hash", "", "\"conversation_hash\""},
      {"has_text", "yes", "\"has_text\" is \"yes\", expected true or false"},
      {"evictions", "-2", "\"evictions\""},
      {"format", 7, "expected a string"},
  };
  for (const auto& bad : kBad) {
    const absl::Status status = Import(Meta(bad.key, bad.value));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad.key << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.fault));
  }
  EXPECT_EQ(Import(Meta("later", "something for people")), absl::OkStatus());
  EXPECT_EQ(Import(Meta("created_at", "yesterday")), absl::OkStatus());
}

TEST_F(SessionFileTest, ANewerVersionIsRefusedAsThat) {
  const absl::Status status = Import(Meta("format_version", "2"));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(ReasonOf(status), kReasonNewerFile);
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2, expected at most 1"));
}

TEST_F(SessionFileTest, AnotherModelsSessionIsRefused) {
  struct {
    const char* key;
    const char* value;
    const char* fault;
  } const kOther[] = {{"model_type", "rwkv7", "type rwkv7, but this server's is of type mom"},
                      {"fingerprint", "0000000000000001", "weights or configuration differ"},
                      {"vocabulary", "0000000000000001", "token ids stand for other texts"}};
  for (const auto& other : kOther) {
    const absl::Status status = Import(Meta(other.key, other.value));
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(ReasonOf(status), kReasonOtherModel);
    EXPECT_THAT(std::string(status.message()), HasSubstr(other.fault));
  }
  EXPECT_EQ(Import(Meta("model", "renamed")), absl::OkStatus()) << "a name is for people";
}

TEST_F(SessionFileTest, TensorsAreChecked) {
  using Json = nlohmann::ordered_json;
  struct {
    std::function<void(Json&, std::string&)> change;
    const char* fault;
  } const kBad[] = {
      {[](Json& h, std::string&) {
         h["layers.0.memory"]["data_offsets"] = h["layers.0.written"]["data_offsets"];
       },
       "bytes, expected"},
      {[](Json& h, std::string&) {
         h["layers.1.keys"]["data_offsets"] = {0, 40};
       },
       "overlap"},
      {[](Json& h, std::string&) {
         h["layers.1.keys"]["shape"] = {1, 1ull << 62, 2};
       },
       "overflows 63 bits"},
      {[](Json& h, std::string&) {
         h["layers.1.keys"]["shape"] = {1, -5, 2};
       },
       "negative"},
      {[](Json& h, std::string&) {
         h["layers.1.keys"]["shape"] = {2, 5, 1};
       },
       "has shape"},
      {[](Json& h, std::string&) {
         h["layers.1.keys"]["shape"] = {1, 1, 1, 5, 2};
       },
       "has 5 dimensions"},
      {[](Json& h, std::string&) { h["layers.1.keys"]["dtype"] = "I32"; }, "is i32, expected f32"},
      {[](Json& h, std::string&) { h["layers.1.keys"]["dtype"] = "U32"; }, "no state has"},
      {[](Json& h, std::string&) { h["layers.1.keys"]["dtype"] = "F33"; }, "is unknown"},
      {[](Json& h, std::string&) { h.erase("layers.1.keys"); }, "belong to no tensor"},
      {[](Json& h, std::string&) {
         h["layers.9.keys"] = h["layers.1.keys"];
         h.erase("layers.1.keys");
       },
       "\"layers.1.keys\" is missing"},
      {[](Json& h, std::string&) {
         h["more"] = {{"dtype", "F32"}, {"shape", {0}}, {"data_offsets", {16, 16}}};
       },
       "\"more\" is none of this model's"},
      {[](Json& h, std::string&) {
         h["history"] = h["mneme.history"];
         h.erase("mneme.history");
       },
       "\"mneme.history\" is missing"},
      {[](Json& h, std::string&) { h["mneme.history"]["dtype"] = "F32"; }, "expected I32 [n]"},
      {[](Json& h, std::string&) {
         h["mneme.history"]["shape"] = {2, 2};
       },
       "expected I32 [n]"},
      {[](Json& h, std::string&) {
         h["__metadata__"]["fed_tokens"] = "2";
         h["__metadata__"]["position"] = "3";
       },
       "at most the 3 tokens of the conversation"},
      {[](Json& h, std::string&) {
         h["sum"] = h["mneme.sha256"];
         h.erase("mneme.sha256");
       },
       "\"mneme.sha256\" is missing"},
      {[](Json& h, std::string&) {
         h["mneme.sha256"]["shape"] = {4, 8};
       },
       "expected U8 [32]"},
      {[](Json& h, std::string& data) {
         h["behind"] = {
             {"dtype", "U8"}, {"shape", {32}}, {"data_offsets", {data.size(), data.size() + 32}}};
         data += std::string(32, 'x');
       },
       "up to the end"},
  };
  for (const auto& bad : kBad) {
    const absl::Status status = Import(Changed(bad.change));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad.fault << ": " << status;
    EXPECT_EQ(ReasonOf(status), kReasonBadFile);
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.fault));
  }
}

TEST_F(SessionFileTest, NamesThatOccurTwiceAreRefused) {
  std::string file = file_;
  const size_t at = file.find("\"layers.1.keys\"");
  ASSERT_NE(at, std::string::npos);
  // As long as the other name, so that all else stays where it is.
  file.replace(at, 15, "\"mneme.history\"");
  Sum(file);
  const absl::Status status = Import(file);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("occurs twice"));
}

// No session that a server keeps has any: a memory that diverges ends with its request.
TEST_F(SessionFileTest, NumbersHaveToBeFinite) {
  for (const float value : {std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const std::string file = Changed([&](auto& header, std::string& data) {
      const size_t begin = header["layers.1.keys"]["data_offsets"][0];
      std::memcpy(data.data() + begin + 4, &value, sizeof(value));
    });
    const absl::Status status = Import(file);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("\"layers.1.keys\" holds a number that is not finite"));
  }
}

TEST_F(SessionFileTest, TokensAreOfTheVocabulary) {
  const auto import = [](const std::string& file, const ModelInfo& info) {
    const LayoutModel model(Layout(), info);
    return SessionImport::Read(model, Facts().model, 1 << 20, file).status();
  };
  absl::Status status = import(file_, {.vocab = 12});
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("one of the history is token 12"));
  EXPECT_EQ(import(file_, {.vocab = 13}), absl::OkStatus());
  status = import(Meta("pending_token", "13"), {.vocab = 13});
  EXPECT_THAT(std::string(status.message()), HasSubstr("the pending one is token 13"));
}

TEST_F(SessionFileTest, AContextThatHasNoRoomIsNamed) {
  const auto import = [this](int64_t max_context) {
    const LayoutModel model(Layout(), {.vocab = 32, .max_context = max_context});
    return SessionImport::Read(model, Facts().model, 1 << 20, file_).status();
  };
  EXPECT_EQ(import(kTokens), absl::OkStatus());
  const absl::Status status = import(kTokens - 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(ReasonOf(status), kReasonContextFull);
}

TEST_F(SessionFileTest, AFileThatIsTooLargeIsNotRead) {
  const auto size = static_cast<int64_t>(file_.size());
  EXPECT_EQ(Import(file_, size), absl::OkStatus());
  const absl::Status status = Import(std::string(file_.size(), 'x'), size - 1);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(ReasonOf(status), kReasonFileTooLarge);
}

// Where the device keeps less of a number, the import says of how many tensors.
TEST_F(SessionFileTest, WhatIsRoundedIsCounted) {
  const LayoutModel half(Layout(DType::kF16), {.vocab = 32});
  const auto rounded = [&](const std::string& file) {
    auto import = SessionImport::Read(half, Facts().model, 1 << 20, file);
    EXPECT_TRUE(import.ok()) << import.status();
    return import->state->rounded_tensors();
  };
  EXPECT_EQ(rounded(file_), 0) << "halves and small integers";
  const std::string file = Changed([&](auto& header, std::string& data) {
    const float third = 1.0f / 3;
    const size_t begin = header["layers.1.keys"]["data_offsets"][0];
    std::memcpy(data.data() + begin, &third, sizeof(third));
  });
  EXPECT_EQ(rounded(file), 1);
}

TEST(VocabularyHashTest, IsOfWhatIdsStandFor) {
  const auto hash = [](int vocab, int bos, int eos) {
    return VocabularyHash(MakeByteTokenizer(vocab, bos, eos)->get());
  };
  EXPECT_EQ(hash(259, 256, 257), hash(259, 256, 257));
  EXPECT_NE(hash(259, 256, 257), hash(260, 256, 257));
  EXPECT_NE(hash(259, 256, 257), hash(259, 257, 258));
  EXPECT_EQ(VocabularyHash(nullptr), 0u);
}

}  // namespace
}  // namespace mneme
