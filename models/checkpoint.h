// The tensors of a model folder, in one safetensors file or in several.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/safetensors.h"

namespace mneme {

// <folder>/model.safetensors if there is one, else the files that
// <folder>/model.safetensors.index.json names, which are called shards.
//
// Shards are plain file names inside the folder: a path, or a name that begins with a dot, is
// refused. Every tensor of the index must be in the shard it names, and no tensor in two shards.
// Tensors of a shard that the index does not name are read like the others, and listed.
class Checkpoint {
 public:
  struct Entry {
    const SafetensorsFile* file = nullptr;
    const SafetensorsTensor* tensor = nullptr;

    std::span<const std::byte> bytes() const { return file->Bytes(*tensor); }
  };

  // NOT_FOUND if the folder, or both files, are missing; else INVALID_ARGUMENT. Errors name the
  // file.
  static absl::StatusOr<Checkpoint> Open(const std::string& folder);

  // Bytes of a file that belong to no tensor are an error, but not Open's: where a tensor is
  // missing from a header, its name says more, and only who takes the tensors knows it.
  absl::Status CheckHoles() const;

  // Null if there is no such tensor.
  const Entry* Find(absl::string_view name) const;
  const std::map<std::string, Entry, std::less<>>& entries() const { return entries_; }
  std::span<const std::unique_ptr<SafetensorsFile>> files() const { return files_; }
  // Tensors that the index does not name, sorted.
  const std::vector<std::string>& unlisted() const { return unlisted_; }
  // For messages: the single file, or the index.
  const std::string& path() const { return path_; }

 private:
  // Opens a file and adds its tensors.
  absl::Status Add(const std::string& path);

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> unlisted_;
};

}  // namespace mneme
