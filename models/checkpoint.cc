#include "models/checkpoint.h"

#include <sys/stat.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status_macros.h"

namespace mneme {
namespace {

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

bool IsPlainFileName(absl::string_view name) {
  return !name.empty() && name.front() != '.' && name.size() <= 255 &&
         name.find_first_of(absl::string_view("/\\\0", 3)) == absl::string_view::npos;
}

// Tensor name -> shard, from the index.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  MNEME_ASSIGN_OR_RETURN(const nlohmann::json index, ReadJsonObject(path));
  const auto it = index.find("weight_map");
  if (it == index.end() || !it->is_object() || it->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": key \"weight_map\" is ", it == index.end() ? "missing" : Shown(*it),
                     ", expected an object of tensor names and file names"));
  }
  std::map<std::string, std::string> shards;
  for (const auto& [name, shard] : it->items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", name, "\" is in ", Shown(shard),
                       ", expected the name of a file in the folder"));
    }
    shards.emplace(name, shard.get<std::string>());
  }
  return shards;
}

}  // namespace

absl::Status Checkpoint::Add(const std::string& path) {
  MNEME_ASSIGN_OR_RETURN(SafetensorsFile opened, SafetensorsFile::Open(path, Holes::kReported));
  files_.push_back(std::make_unique<SafetensorsFile>(std::move(opened)));
  const SafetensorsFile& file = *files_.back();
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    const auto [it, added] = entries_.emplace(tensor.name, Entry{&file, &tensor});
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\" is in both ",
                                                     it->second.file->path(), " and ", path));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& folder) {
  Checkpoint checkpoint;
  const std::string single = absl::StrCat(folder, "/model.safetensors");
  const std::string index = absl::StrCat(folder, "/model.safetensors.index.json");
  if (Exists(single)) {
    checkpoint.path_ = single;
    MNEME_RETURN_IF_ERROR(checkpoint.Add(single));
    return checkpoint;
  }
  if (!Exists(index)) {
    const bool pickled = Exists(absl::StrCat(folder, "/pytorch_model.bin")) ||
                         Exists(absl::StrCat(folder, "/pytorch_model.bin.index.json"));
    return absl::NotFoundError(absl::StrCat(
        "folder \"", folder, "\" has neither model.safetensors nor model.safetensors.index.json",
        pickled ? "; its pytorch_model.bin is not read, convert it to safetensors" : ""));
  }
  checkpoint.path_ = index;
  using ShardMap = std::map<std::string, std::string>;
  MNEME_ASSIGN_OR_RETURN(const ShardMap shards, ReadIndex(index));
  std::set<std::string> names;
  for (const auto& [tensor, shard] : shards) names.insert(shard);
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!Exists(path)) {
      return absl::NotFoundError(
          absl::StrCat(index, ": shard \"", name, "\" is not in the folder"));
    }
    MNEME_RETURN_IF_ERROR(checkpoint.Add(path));
  }
  for (const auto& [tensor, shard] : shards) {
    const Entry* entry = checkpoint.Find(tensor);
    if (entry == nullptr || !absl::EndsWith(entry->file->path(), absl::StrCat("/", shard))) {
      return absl::InvalidArgumentError(
          absl::StrCat(index, ": tensor \"", tensor, "\" is not in shard \"", shard, "\""));
    }
  }
  for (const auto& [tensor, entry] : checkpoint.entries_) {
    if (!shards.contains(tensor)) checkpoint.unlisted_.push_back(tensor);
  }
  return checkpoint;
}

absl::Status Checkpoint::CheckHoles() const {
  for (const auto& file : files_) {
    if (file->header().hole.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(file->path(), ": ", file->header().hole));
  }
  return absl::OkStatus();
}

const Checkpoint::Entry* Checkpoint::Find(absl::string_view name) const {
  const auto it = entries_.find(std::string_view(name.data(), name.size()));
  return it == entries_.end() ? nullptr : &it->second;
}

}  // namespace mneme
