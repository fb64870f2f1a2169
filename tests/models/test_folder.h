// Model folders that tests make, damage and load.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "models/safetensors_writer.h"
#include "tests/models/gated_delta_spec.h"
#include "tests/models/model_driver.h"
#include "tests/support/backends.h"
#include "tools/model_maker.h"

namespace mneme {

// An empty folder that goes with the object.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, const std::string& text) const;
  std::string Read(const std::string& name) const;
  // A file of another folder, under its name.
  void CopyFrom(const std::string& folder, const std::string& name) const;

 private:
  std::string path_;
};

// Writes the spec's folder, aborting on failure.
void MakeFolder(const ModelSpec& spec, const TestFolder& folder);
void MakeFolder(const GatedDeltaSpec& spec, const TestFolder& folder);

// The tensors of a safetensors file, in memory, to be changed and written back.
struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;
StoredTensors ReadTensors(const std::string& path);
void WriteTensors(const StoredTensors& tensors, const std::string& path);

// Loads a folder and gives it slots; aborts on failure.
std::unique_ptr<ModelDriver> Drive(const std::string& folder, std::unique_ptr<Backend> backend,
                                   const ModelDriver::Limits& limits,
                                   const ModelOptions& options = {});

// Logits of one sequence fed to a slot; aborts on failure.
std::vector<double> FeedSlot(ModelDriver& driver, int slot, std::span<const int32_t> tokens,
                             std::vector<int> chunks = {});

// How far apart logits of one text may be that a device adds up in another order. A memory that is
// trained while it reads makes more of what rounding does to it, the more the longer it reads: ten
// times of what rounding does to this model's logits of a text, against float64. Uses slot 0.
double SameBoundOf(ModelDriver& driver, const std::string& folder);

std::vector<int32_t> RandomTokens(int count, int vocab, uint64_t seed);

}  // namespace mneme
