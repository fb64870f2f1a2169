#include "models/checkpoint.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kIndex[] = "model.safetensors.index.json";

StoredTensors OneTensor(const std::string& name) {
  return {{name, {DType::kF32, {1}, std::vector<std::byte>(4)}}};
}

class ShardsTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteTensors(OneTensor("a"), folder_.File("one.safetensors"));
    WriteTensors(OneTensor("b"), folder_.File("two.safetensors"));
  }
  absl::Status Open(const std::string& index) {
    folder_.Write(kIndex, index);
    return Checkpoint::Open(folder_.path()).status();
  }
  TestFolder folder_;
};

TEST_F(ShardsTest, TensorsOfAllShardsAreFound) {
  folder_.Write(
      kIndex,
      R"({"metadata": {"total_size": 8}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_NE(checkpoint->Find("b"), nullptr);
  EXPECT_THAT(checkpoint->Find("b")->file->path(), HasSubstr("two.safetensors"));
  EXPECT_EQ(checkpoint->Find("c"), nullptr);
  EXPECT_THAT(checkpoint->unlisted(), IsEmpty());
}

TEST_F(ShardsTest, TensorsThatTheIndexDoesNotNameAreReadAndListed) {
  StoredTensors more = OneTensor("b");
  more.merge(OneTensor("stray"));
  WriteTensors(more, folder_.File("two.safetensors"));
  folder_.Write(kIndex, R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->unlisted(), ElementsAre("stray"));
  EXPECT_NE(checkpoint->Find("stray"), nullptr);
}

TEST_F(ShardsTest, AMissingShardIsNamed) {
  EXPECT_THAT(
      Open(R"({"weight_map": {"a": "one.safetensors", "b": "three.safetensors"}})").message(),
      HasSubstr("shard \"three.safetensors\" is not in the folder"));
}

TEST_F(ShardsTest, ATensorThatIsNotInItsShardIsNamed) {
  EXPECT_THAT(Open(R"({"weight_map": {"a": "two.safetensors", "b": "two.safetensors"}})").message(),
              HasSubstr("tensor \"a\" is not in shard \"two.safetensors\""));
}

TEST_F(ShardsTest, ATensorInTwoShardsIsRefused) {
  WriteTensors(OneTensor("a"), folder_.File("two.safetensors"));
  EXPECT_THAT(Open(R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})").message(),
              HasSubstr("tensor \"a\" is in both"));
}

TEST_F(ShardsTest, ShardNamesThatLeaveTheFolderAreRefused) {
  for (const std::string name :
       {"../one.safetensors", "/etc/passwd", "x/../../y", "..", "", ".hidden", "a\\\\b"}) {
    const absl::Status status = Open("{\"weight_map\": {\"a\": \"" + name + "\"}}");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), HasSubstr("expected the name of a file in the folder")) << name;
  }
  EXPECT_FALSE(Open(R"({"weight_map": {"a": 5}})").ok());
}

TEST_F(ShardsTest, DamagedIndexesAreRefused) {
  EXPECT_THAT(Open("{").message(), HasSubstr("not valid JSON"));
  EXPECT_THAT(Open("{}").message(), HasSubstr("\"weight_map\" is missing"));
  EXPECT_THAT(Open(R"({"weight_map": []})").message(), HasSubstr("\"weight_map\" is []"));
  EXPECT_THAT(Open(R"({"weight_map": {"a": "one.safetensors", "a": "two.safetensors"}})").message(),
              HasSubstr("occurs twice"));
  EXPECT_THAT(Open(std::string(5000, '[')).message(), HasSubstr("not valid JSON"));
}

TEST(CheckpointTest, AFolderWithoutWeightsIsExplained) {
  const TestFolder folder;
  EXPECT_THAT(Checkpoint::Open(folder.path()).status().message(),
              HasSubstr("has neither model.safetensors nor"));
  folder.Write("pytorch_model.bin", "x");
  EXPECT_THAT(Checkpoint::Open(folder.path()).status().message(),
              HasSubstr("convert it to safetensors"));
}

TEST(CheckpointTest, FingerprintsAreOfTheContentNotOfTheFiles) {
  GatedDeltaSpec spec = TinySpec();
  const auto fingerprint = [&](int shards, uint64_t seed) {
    const TestFolder folder;
    spec.shards = shards;
    spec.seed = seed;
    MakeFolder(spec, folder);
    const auto backend = MakeReference();
    return (*LoadModel(folder.path(), *backend, nullptr))->info().fingerprint;
  };
  EXPECT_EQ(fingerprint(1, 1), fingerprint(3, 1));
  EXPECT_NE(fingerprint(1, 1), fingerprint(1, 2));
}

}  // namespace
}  // namespace mneme
