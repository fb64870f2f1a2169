// SentencePiece's bundled protocol buffers in one process with ours, as in the server.
#include <google/protobuf/struct.pb.h>

#include "tests/tokenizers/tokenizer_golden.h"

namespace mneme {
namespace {

TEST(TokenizerBesideProtobufTest, BothLibrariesWorkInOneProcess) {
  GOOGLE_PROTOBUF_VERIFY_VERSION;
  google::protobuf::Struct message;
  (*message.mutable_fields())["before"].set_string_value("a");
  const auto tokenizer = LoadGoldenTokenizer("bpe");
  ASSERT_NE(tokenizer, nullptr);
  const auto ids = tokenizer->Encode("the state");
  ASSERT_TRUE(ids.ok()) << ids.status().ToString();
  EXPECT_EQ(*tokenizer->Decode(*ids), "the state");
  (*message.mutable_fields())["after"].set_number_value(static_cast<double>(ids->size()));

  google::protobuf::Struct copy;
  ASSERT_TRUE(copy.ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(copy.fields().at("after").number_value(), static_cast<double>(ids->size()));
}

}  // namespace
}  // namespace mneme
