#include "models/model_config.h"

#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/config_reader.h"
#include "base/json_text.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "models/architecture.h"
#include "models/families/stack_keys.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

using nlohmann::json;

absl::StatusOr<const Architecture*> FindArchitecture(const json& object, absl::string_view path) {
  std::string known;
  const auto it = object.find("model_type");
  for (const Architecture& architecture : Architectures()) {
    if (it != object.end() && *it == architecture.model_type) return &architecture;
    absl::StrAppend(&known, known.empty() ? "" : ", ", architecture.model_type);
  }
  if (it == object.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": key \"model_type\" is missing, expected one of ", known));
  }
  return absl::UnimplementedError(absl::StrCat(path, ": key \"model_type\" is ", Shown(*it),
                                               ", which is not supported; expected one of ",
                                               known));
}

// Names by which torch knows a floating-point type that checkpoints come in, and what "auto" stands
// for. Other names are an error to upstream's loaders. Here weights keep the types of their file
// whatever the key says, so that a name is only told.
constexpr absl::string_view kTorchDTypes[] = {
    "float32", "float",  "bfloat16",      "float16",     "half",
    "float64", "double", "float8_e4m3fn", "float8_e5m2", "auto",
};

void WarnOfUnknownDType(const json& object, absl::string_view path,
                        std::vector<std::string>& warnings) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) continue;
    const auto is_value = [&](absl::string_view name) { return *it == std::string(name); };
    if (std::any_of(std::begin(kTorchDTypes), std::end(kTorchDTypes), is_value)) continue;
    warnings.push_back(absl::StrCat(path, ": key \"", key, "\" is ", Shown(*it),
                                    ", which is no floating-point type of torch, and ignored: "
                                    "weights have the types of their file"));
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view path,
                                             int segment_tokens) {
  MNEME_ASSIGN_OR_RETURN(json object, ParseJsonObject(text, path));
  if (segment_tokens > 0) {
    json& value = object["segment_tokens"];
    if (!value.is_null() && value != segment_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": key \"segment_tokens\" is ", Shown(value), ", and --segment-tokens says ",
          segment_tokens, ": expected the flag only where the file lacks the key"));
    }
    value = segment_tokens;
  }
  MNEME_ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(object, path));
  ConfigReader reader(object, path);
  reader.Disregard({"model_type", "torch_dtype", "dtype"});

  ModelConfig config;
  config.model_type = architecture->model_type;
  config.make_network = architecture->read(config.model_type, reader, config);
  // First of all, for formats refuse a key that they do not know.
  if (segment_tokens > 0 && !reader.WasAsked("segment_tokens")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": --segment-tokens is given, and a model of type ", config.model_type,
                     " is not cut into segments"));
  }
  MNEME_RETURN_IF_ERROR(reader.status());
  for (std::string& warning : config.warnings) warning = absl::StrCat(path, ": ", warning);
  WarnOfUnknownDType(object, path, config.warnings);
  for (std::string& hint : reader.Hints()) config.warnings.push_back(std::move(hint));
  config.fingerprint = HashText(absl::StrCat(config.model_type, "\n", reader.values()));
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& folder, int segment_tokens) {
  struct stat info;
  if (stat(folder.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("model folder \"", folder, "\" does not exist"));
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", folder, "\" is a file, expected a folder with config.json and model.safetensors"));
  }
  const std::string path = absl::StrCat(folder, "/config.json");
  MNEME_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseModelConfig(file.text(), path, segment_tokens);
}

absl::StatusOr<GenerationDefaults> ParseGenerationDefaults(absl::string_view text,
                                                           absl::string_view path,
                                                           const ModelConfig& config) {
  MNEME_ASSIGN_OR_RETURN(const json object, ParseJsonObject(text, path));
  ConfigReader reader(object, path);
  GenerationDefaults defaults{.bos_token = config.bos_token, .eos_tokens = config.eos_tokens};
  if (!reader.IsNull("bos_token_id")) {
    const std::vector<int32_t> bos = ReadTokenIds(reader, "bos_token_id", config.vocab);
    if (!bos.empty()) defaults.bos_token = bos.front();
  }
  if (!reader.IsNull("eos_token_id")) {
    defaults.eos_tokens = ReadTokenIds(reader, "eos_token_id", config.vocab);
  }
  const auto number = [&](const char* key, double high, bool zero_included) {
    if (reader.IsNull(key)) return std::optional<float>();
    return std::optional<float>(static_cast<float>(
        reader.Number(key, 1, zero_included ? 0 : kLeastNumber, high, zero_included)));
  };
  defaults.temperature = number("temperature", 100, true);
  defaults.top_p = number("top_p", 1, false);
  defaults.min_p = number("min_p", 1, true);
  defaults.repetition_penalty = number("repetition_penalty", 10, false);
  defaults.top_k = reader.NullableInt("top_k", 0, INT32_MAX);
  defaults.max_new_tokens = reader.NullableInt("max_new_tokens", 1, INT32_MAX);
  MNEME_RETURN_IF_ERROR(reader.status());
  return defaults;
}

absl::StatusOr<GenerationDefaults> ReadGenerationDefaults(const std::string& folder,
                                                          const ModelConfig& config) {
  const std::string path = absl::StrCat(folder, "/generation_config.json");
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return GenerationDefaults{.bos_token = config.bos_token, .eos_tokens = config.eos_tokens};
  }
  MNEME_RETURN_IF_ERROR(file.status());
  return ParseGenerationDefaults(file->text(), path, config);
}

}  // namespace mneme
