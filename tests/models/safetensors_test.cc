#include "models/safetensors.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/safetensors_writer.h"
#include "tests/models/test_folder.h"

namespace mneme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A file of this header and so many zero bytes of data.
std::vector<std::byte> File(const std::string& header, size_t data_bytes) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  std::memcpy(file.data() + 8, header.data(), header.size());
  return file;
}

absl::StatusOr<SafetensorsHeader> Parse(const std::string& header, size_t data_bytes) {
  const std::vector<std::byte> file = File(header, data_bytes);
  return ParseSafetensors(file, "x.safetensors");
}

std::string Tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   int64_t begin, int64_t end) {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":", shape,
                      ",\"data_offsets\":[", begin, ",", end, "]}");
}

TEST(SafetensorsTest, ReadsTensorsSortedByNameAndMetadata) {
  const auto header =
      Parse(absl::StrCat("{\"__metadata__\":{\"format\":\"pt\"},",
                         Tensor("b", "F32", "[2,3]", 4, 28), ",", Tensor("a", "BF16", "[2]", 0, 4),
                         ",", Tensor("empty", "I64", "[0,7]", 4, 4), ",",
                         Tensor("scalar", "U8", "[]", 28, 29), "}  "),
            29);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 4u);
  EXPECT_EQ(header->tensors[0].name, "a");
  const SafetensorsTensor* b = header->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kF32);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b->elements(), 6);
  EXPECT_EQ(b->bytes(), 24);
  EXPECT_EQ(header->Find("scalar")->elements(), 1);
  EXPECT_EQ(header->Find("c"), nullptr);
  EXPECT_EQ(header->metadata.at("format"), "pt");
}

TEST(SafetensorsTest, KeepsTypesThatNoKernelTakesForTheListOfUnused) {
  const auto header = Parse(absl::StrCat("{", Tensor("a", "F8_E4M3", "[3]", 0, 3), "}"), 3);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[0].dtype_name, "F8_E4M3");
  EXPECT_FALSE(header->tensors[0].dtype.has_value());
}

struct BadFile {
  const char* name;
  std::string header;
  size_t data_bytes;
  std::vector<std::string> message;  // parts of it
};
void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }

class BadSafetensorsTest : public testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensorsTest, IsRefusedWithFileThingAndExpectation) {
  const auto header = Parse(GetParam().header, GetParam().data_bytes);
  ASSERT_FALSE(header.ok());
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(header.status().message(), HasSubstr("x.safetensors: "));
  for (const std::string& part : GetParam().message) {
    EXPECT_THAT(header.status().message(), HasSubstr(part));
  }
}

std::string Deep(int depth) {
  return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadSafetensorsTest,
    testing::Values(
        BadFile{"cut_json", "{\"a\":", 0, {"not valid JSON at its byte 5: it ends before it is"}},
        BadFile{"not_json",
                "{\"a\":}",
                0,
                {"not valid JSON at its byte 5: unexpected \"}\", expected a value"}},
        BadFile{"not_utf8",
                "{\"\xff\":1}",
                0,
                {"not valid JSON at its byte 2: byte 0xff is not UTF-8"}},
        BadFile{"an_array", "[]", 0, {"expected an object"}},
        BadFile{"tensor_is_a_number", "{\"a\":1}", 0, {"\"a\" is a number, expected an object"}},
        BadFile{"no_shape",
                "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}",
                4,
                {"\"a\"", "\"shape\" is missing"}},
        BadFile{"shape_is_a_string",
                "{\"a\":{\"dtype\":\"F32\",\"shape\":\"[1]\",\"data_offsets\":[0,4]}}",
                4,
                {"\"shape\" is a string, expected an array"}},
        BadFile{"negative_dim",
                "{" + Tensor("a", "F32", "[-1]", 0, 4) + "}",
                4,
                {"\"a\"", "\"shape\" holds a negative number"}},
        BadFile{"fractional_dim", "{" + Tensor("a", "F32", "[1.5]", 0, 4) + "}", 4, {"fraction"}},
        BadFile{
            "nested_shape", "{" + Tensor("a", "F32", "[[1]]", 0, 4) + "}", 4, {"holds an array"}},
        BadFile{"huge_rank",
                "{" + Tensor("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) + "}",
                4,
                {"more than 8 numbers"}},
        BadFile{"shape_overflows",
                "{" + Tensor("a", "F32", "[4294967296,4294967296]", 0, 4) + "}",
                4,
                {"\"a\"", "overflows"}},
        BadFile{"dim_overflows",
                "{" + Tensor("a", "F32", "[9223372036854775808]", 0, 4) + "}",
                4,
                {"beyond 63 bits"}},
        BadFile{"unknown_dtype",
                "{" + Tensor("a", "F33", "[1]", 0, 4) + "}",
                4,
                {"dtype \"F33\" is unknown"}},
        BadFile{"wrong_size",
                "{" + Tensor("a", "F32", "[2]", 0, 4) + "}",
                4,
                {"hold 4 bytes, expected 8 for F32 [2]"}},
        BadFile{"reversed_offsets",
                "{" + Tensor("a", "F32", "[1]", 4, 0) + "}",
                4,
                {"end before they begin"}},
        BadFile{"three_offsets",
                "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}",
                4,
                {"more than 2 numbers"}},
        BadFile{"one_offset",
                "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0]}}",
                4,
                {"has 1 numbers, expected 2"}},
        BadFile{"beyond_the_end",
                "{" + Tensor("a", "F32", "[2]", 0, 8) + "}",
                4,
                {"\"a\"", "reach beyond the 4 bytes", "truncated"}},
        BadFile{
            "overlap",
            "{" + Tensor("a", "F32", "[2]", 0, 8) + "," + Tensor("b", "F32", "[2]", 4, 12) + "}",
            12,
            {"\"b\"", "overlap tensor \"a\""}},
        BadFile{"same_place",
                "{" + Tensor("a", "F32", "[1]", 0, 4) + "," + Tensor("b", "F32", "[1]", 0, 4) + "}",
                4,
                {"overlap tensor"}},
        BadFile{"hole_at_the_begin",
                "{" + Tensor("a", "F32", "[1]", 1, 5) + "}",
                5,
                {"bytes 0 to 1 of the data belong to no tensor (at its beginning, before \"a\")"}},
        BadFile{
            "hole_between",
            "{" + Tensor("a", "F32", "[1]", 0, 4) + "," + Tensor("b", "F32", "[1]", 64, 68) + "}",
            68,
            {"bytes 4 to 64 of the data belong to no tensor (after \"a\", before \"b\")"}},
        BadFile{"trailing_byte",
                "{" + Tensor("a", "F32", "[1]", 0, 4) + "}",
                5,
                {"bytes 4 to 5 of the data belong to no tensor (after \"a\", at its end)"}},
        BadFile{"empty_tensor_inside_another",
                "{" + Tensor("a", "F32", "[2]", 0, 8) + "," + Tensor("b", "F32", "[0]", 4, 4) + "}",
                8,
                {"\"b\"", "overlap tensor \"a\""}},
        BadFile{"tensor_twice",
                "{" + Tensor("a", "F32", "[1]", 0, 4) + "," + Tensor("a", "F32", "[1]", 4, 8) + "}",
                8,
                {"\"a\" occurs twice"}},
        BadFile{
            "field_twice",
            "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            4,
            {"\"dtype\" occurs twice"}},
        BadFile{"metadata_twice", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, {"occurs twice"}},
        BadFile{"metadata_number",
                "{\"__metadata__\":{\"a\":1}}",
                0,
                {"metadata key \"a\" is a number, expected a string"}},
        BadFile{"unknown_field", "{\"a\":{\"strides\":[1]}}", 0, {"unknown field \"strides\""}},
        BadFile{
            "long_name", "{\"" + std::string(5000, 'n') + "\":{}}", 0, {"a name of 5000 bytes"}},
        BadFile{"deeply_nested", Deep(100000), 0, {"expected"}}),
    [](const auto& info) { return info.param.name; });

TEST(SafetensorsTest, ShortAndTruncatedFilesAreRefused) {
  const std::vector<std::byte> file = File("{" + Tensor("a", "F32", "[4]", 0, 16) + "}", 16);
  for (size_t size = 0; size < file.size(); ++size) {
    const auto header = ParseSafetensors(std::span(file).first(size), "x.safetensors");
    EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
  EXPECT_TRUE(ParseSafetensors(file, "x.safetensors").ok());
}

TEST(SafetensorsTest, AHeaderLengthBeyondTheLimitIsRefusedBeforeItIsRead) {
  std::vector<std::byte> file = File("{}", 0);
  const uint64_t length = uint64_t{1} << 62;
  std::memcpy(file.data(), &length, sizeof(length));
  EXPECT_THAT(ParseSafetensors(file, "x").status().message(), HasSubstr("expected at most"));
}

TEST(SafetensorsTest, AHoleIsReportedToWhoAsksForIt) {
  const std::vector<std::byte> file = File("{" + Tensor("a", "F32", "[1]", 64, 68) + "}", 128);
  const auto header = ParseSafetensors(file, "x", Holes::kReported);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_THAT(header->hole, HasSubstr("bytes 0 to 64 of the data belong to no tensor"));
}

TEST(SafetensorsWriterTest, WhatIsWrittenIsRead) {
  const TestFolder folder;
  const StoredTensors tensors = {
      {"w", {DType::kF32, {2}, std::vector<std::byte>(8, std::byte{1})}},
      {"a \"quoted\" name", {DType::kU8, {3}, std::vector<std::byte>(3, std::byte{7})}},
      {"nothing", {DType::kI32, {0, 4}, {}}},
  };
  WriteTensors(tensors, folder.File("t.safetensors"));
  const StoredTensors read = ReadTensors(folder.File("t.safetensors"));
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read.at(name).bytes, tensor.bytes) << name;
    EXPECT_EQ(read.at(name).shape, tensor.shape) << name;
  }
}

TEST(SafetensorsWriterTest, AnUnfinishedFileIsNeverSeen) {
  const TestFolder folder;
  const std::vector<SafetensorsSpec> specs = {{"w", DType::kF32, {2}}};
  {
    const auto writer = SafetensorsWriter::Create(folder.File("t"), specs, {});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Write(std::vector<std::byte>(4)).ok());
    EXPECT_FALSE((*writer)->Finish().ok());
    EXPECT_FALSE((*writer)->Write(std::vector<std::byte>(5)).ok());
  }
  EXPECT_EQ(folder.Read("t"), "");
  EXPECT_EQ(folder.Read("t.partial"), "");
}

TEST(SafetensorsWriterTest, NamesTheFileThatCannotBeWritten) {
  const auto writer = SafetensorsWriter::Create("/nowhere/t", {}, {});
  EXPECT_THAT(writer.status().message(), HasSubstr("/nowhere/t"));
}

}  // namespace
}  // namespace mneme
