#include "tests/models/golden.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "models/model_config.h"
#include "models/safetensors.h"

namespace mneme {
namespace {

constexpr int kStepBegin = 29;  // as in the others

constexpr char kStored[] = "tests/golden";

template <typename T>
std::vector<T> Values(const SafetensorsFile& file, const char* name, DType dtype) {
  const SafetensorsTensor* tensor = file.header().Find(name);
  CHECK(tensor != nullptr && tensor->dtype == dtype) << file.path() << " lacks " << name;
  std::vector<T> values(static_cast<size_t>(tensor->elements()));
  std::memcpy(values.data(), file.Bytes(*tensor).data(), values.size() * sizeof(T));
  return values;
}

std::vector<double> Floats(const SafetensorsFile& file, const char* name) {
  const std::vector<float> values = Values<float>(file, name, DType::kF32);
  return {values.begin(), values.end()};
}

// N of the tensor "greedy_from_N"; 0 if there is none.
int GreedyBegin(const SafetensorsFile& file) {
  constexpr absl::string_view kPrefix = "greedy_from_";
  for (const SafetensorsTensor& tensor : file.header().tensors) {
    int begin = 0;
    if (absl::StartsWith(tensor.name, kPrefix) &&
        absl::SimpleAtoi(absl::string_view(tensor.name).substr(kPrefix.size()), &begin)) {
      return begin;
    }
  }
  return 0;
}

// $MNEME_GOLDEN, or empty.
std::filesystem::path MoreGoldens() {
  const char* folder = std::getenv("MNEME_GOLDEN");
  return folder == nullptr ? "" : folder;
}

// Whether the folder's model is one that Mneme reads, with results of the kind that Golden holds.
bool IsGolden(const std::filesystem::path& folder) {
  if (!ReadModelConfig(folder.string()).ok()) return false;
  const auto file = SafetensorsFile::Open((folder / "golden.safetensors").string());
  if (!file.ok()) return false;
  for (const char* name : {"input_ids", "logits"}) {
    if (file->header().Find(name) == nullptr) return false;
  }
  return GreedyBegin(*file) > 0;
}

// In the order of the alphabet.
std::vector<std::string> NamesIn(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;  // no such folder
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (IsGolden(entry.path())) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string GoldenFolder(const std::string& name) {
  const std::filesystem::path stored = std::filesystem::path(kStored) / name, more = MoreGoldens();
  if (more.empty() || std::filesystem::exists(stored)) return stored.string();
  return (more / name).string();
}

Golden ReadGolden(const std::string& name) {
  const auto file = SafetensorsFile::Open(GoldenFolder(name) + "/golden.safetensors");
  CHECK_OK(file.status());
  Golden golden;
  golden.input_ids = Values<int32_t>(*file, "input_ids", DType::kI32);
  golden.logits = Floats(*file, "logits");
  golden.vocab = static_cast<int>(golden.logits.size() / golden.input_ids.size());
  // References that cannot go on from a state have computed whole sequences only.
  const bool stepped = file->header().Find("step_logits") != nullptr;
  golden.step_logits =
      stepped ? Floats(*file, "step_logits")
              : std::vector<double>(golden.logits.begin() + int64_t{kStepBegin} * golden.vocab,
                                    golden.logits.end());
  const bool longer = file->header().Find("long_input_ids") != nullptr;
  golden.long_input_ids =
      longer ? Values<int32_t>(*file, "long_input_ids", DType::kI32) : golden.input_ids;
  golden.long_logits_last16 =
      longer ? Floats(*file, "long_logits_last16")
             : std::vector<double>(golden.logits.end() - int64_t{16} * golden.vocab,
                                   golden.logits.end());
  const auto& metadata = file->header().metadata;
  const auto error = metadata.find("float32_error_over_max_logit");
  if (error != metadata.end()) golden.float32_error = std::stod(error->second);
  for (const auto& [key, value] : metadata) {
    golden.float64 |= absl::StrContains(value, "float64 rounded to float32");
  }
  golden.greedy_begin = GreedyBegin(*file);
  golden.greedy = Values<int32_t>(*file, absl::StrCat("greedy_from_", golden.greedy_begin).c_str(),
                                  DType::kI32);
  golden.step_begin =
      static_cast<int>(golden.input_ids.size() - golden.step_logits.size() / golden.vocab);
  return golden;
}

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names = NamesIn(kStored);
  const std::filesystem::path more = MoreGoldens();
  if (more.empty()) return names;
  for (std::string& name : NamesIn(more)) {
    if (!std::filesystem::exists(std::filesystem::path(kStored) / name))
      names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> GatedDeltaGoldens() {
  std::vector<std::string> names = GoldenNames();
  std::erase_if(names, [](const std::string& name) {
    const auto config = ReadModelConfig(GoldenFolder(name));
    CHECK_OK(config.status());
    const std::string& type = config->model_type;
    return type != "mom" && type != "mom_gated_deltanet" && type != "gated_deltanet";
  });
  return names;
}

}  // namespace mneme
