#include "tools/output_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

// As far as it exists with links followed, the rest as it is written.
fs::path Canonical(const std::string& path) {
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  const fs::path canonical = fs::weakly_canonical(absolute, error);
  return error ? absolute.lexically_normal() : canonical;
}

bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  return Canonical(a) == Canonical(b) || fs::equivalent(a, b, error);
}

bool IsFileOfFolder(const std::string& path, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  const fs::path file = Canonical(path), root = Canonical(folder);
  const bool is_inside =
      std::mismatch(root.begin(), root.end(), file.begin(), file.end()).first == root.end();
  // Where weights come in shards, a single file put beside them would be read in their stead.
  if (is_inside && (fs::exists(file, error) || file.filename() == "model.safetensors")) return true;
  // Files of a model folder may be links to where they are kept.
  for (auto it = fs::directory_iterator(root, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    std::error_code ignored;
    if (fs::equivalent(it->path(), file, ignored)) return true;
  }
  return false;
}

}  // namespace

absl::Status CheckOutputFiles(const std::vector<NamedPath>& outputs,
                              const std::vector<NamedPath>& inputs, const NamedPath& model) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const NamedPath& output = outputs[i];
    if (output.path.empty()) continue;
    std::vector<NamedPath> others(outputs.begin(), outputs.begin() + static_cast<ptrdiff_t>(i));
    others.insert(others.end(), inputs.begin(), inputs.end());
    for (const NamedPath& other : others) {
      if (other.path.empty() || !IsSameFile(output.path, other.path)) continue;
      return absl::InvalidArgumentError(absl::StrCat(output.name, ": \"", output.path,
                                                     "\" is the file of ", other.name,
                                                     ", expected another one"));
    }
    if (!IsFileOfFolder(output.path, model.path)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(output.name, ": \"", output.path, "\" is a file of the model folder of ",
                     model.name, ", expected one that may be overwritten"));
  }
  return absl::OkStatus();
}

}  // namespace mneme
