#include "tests/models/test_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "models/safetensors.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {

TestFolder::TestFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "mneme_test_XXXXXX";
  CHECK(mkdtemp(pattern.data()) != nullptr) << pattern;
  path_ = pattern;
}

TestFolder::~TestFolder() { std::filesystem::remove_all(path_); }

void TestFolder::Write(const std::string& name, const std::string& text) const {
  std::ofstream(File(name), std::ios::binary) << text;
}

std::string TestFolder::Read(const std::string& name) const {
  std::ifstream file(File(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void TestFolder::CopyFrom(const std::string& folder, const std::string& name) const {
  std::filesystem::copy_file(folder + "/" + name, File(name));
}

void MakeFolder(const ModelSpec& spec, const TestFolder& folder) {
  CHECK_OK(MakeModelFolder(spec, folder.path(), /*overwrite=*/true, nullptr));
}

void MakeFolder(const GatedDeltaSpec& spec, const TestFolder& folder) {
  MakeFolder(spec.ToModelSpec(), folder);
}

StoredTensors ReadTensors(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  CHECK_OK(file.status());
  StoredTensors tensors;
  for (const SafetensorsTensor& tensor : file->header().tensors) {
    const auto bytes = file->Bytes(tensor);
    tensors[tensor.name] = {*tensor.dtype, tensor.shape, {bytes.begin(), bytes.end()}};
  }
  return tensors;
}

void WriteTensors(const StoredTensors& tensors, const std::string& path) {
  std::vector<SafetensorsSpec> specs;
  for (const auto& [name, tensor] : tensors) specs.push_back({name, tensor.dtype, tensor.shape});
  const auto writer = SafetensorsWriter::Create(path, specs, {});
  CHECK_OK(writer.status());
  for (const auto& [name, tensor] : tensors) CHECK_OK((*writer)->Write(tensor.bytes));
  CHECK_OK((*writer)->Finish());
}

std::unique_ptr<ModelDriver> Drive(const std::string& folder, std::unique_ptr<Backend> backend,
                                   const ModelDriver::Limits& limits, const ModelOptions& options) {
  auto model = LoadModel(folder, *backend, nullptr, options);
  CHECK_OK(model.status());
  auto driver = ModelDriver::Create(std::move(backend), *std::move(model), limits);
  CHECK_OK(driver.status());
  return *std::move(driver);
}

std::vector<double> FeedSlot(ModelDriver& driver, int slot, std::span<const int32_t> tokens,
                             std::vector<int> chunks) {
  std::vector<double> logits;
  CHECK_OK(driver.Feed(slot, tokens, chunks, [&](std::span<const double> step) {
    logits.insert(logits.end(), step.begin(), step.end());
    return absl::OkStatus();
  }));
  return logits;
}

double SameBoundOf(ModelDriver& driver, const std::string& folder) {
  if (driver.model().info().trained.empty()) return kSameBound;
  constexpr int kTokens = 60;
  const auto reference =
      Drive(folder, MakeReference(), {.slots = 1, .max_rows = 1, .max_tokens = kTokens});
  const std::vector<int32_t> text = RandomTokens(kTokens, driver.model().info().vocab, /*seed=*/9);
  const double error = RelativeError(FeedSlot(driver, 0, text), FeedSlot(*reference, 0, text));
  driver.Reset(0);
  return std::max(kSameBound, 10 * error);
}

std::vector<int32_t> RandomTokens(int count, int vocab, uint64_t seed) {
  SeededRandom random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = random.Int(0, vocab - 1);
  return tokens;
}

}  // namespace mneme
