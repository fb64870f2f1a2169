// The SentencePiece goldens of tests/golden/tokenizer_sp, and tokenizers loaded from files of
// tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "gtest/gtest.h"
#include "tokenizers/tokenizer_loader.h"

namespace mneme {

// ctest runs test programs in the repository root.
inline std::string GoldenPath(const std::string& name) {
  return "tests/golden/tokenizer_sp/" + name;
}

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline nlohmann::json ReadGolden(const std::string& kind) {
  return nlohmann::json::parse(ReadBytes(GoldenPath(kind + "_golden.json")));
}

// A folder of its own for one test, removed with it.
class TestFolder {
 public:
  TestFolder() {
    std::string path = testing::TempDir() + "/mneme_tokenizer_XXXXXX";
    path_ = mkdtemp(path.data()) == nullptr ? "" : path;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  void Write(const std::string& name, const std::string& bytes) const {
    WriteBytes(path_ + "/" + name, bytes);
  }

 private:
  std::string path_;
};

// The tokenizer of <kind>.model for a model of exactly its size.
inline std::unique_ptr<Tokenizer> LoadGoldenTokenizer(const std::string& kind) {
  TestFolder folder;
  folder.Write("tokenizer.model", ReadBytes(GoldenPath(kind + ".model")));
  TokenizerFacts facts;
  facts.vocab_size = ReadGolden(kind)["vocab_size"];
  auto tokenizer = LoadTokenizer(folder.path(), facts);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

}  // namespace mneme
