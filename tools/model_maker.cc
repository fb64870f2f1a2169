#include "tools/model_maker.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/float16.h"
#include "models/model_config.h"
#include "models/safetensors_writer.h"
#include "tools/random_weights.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

void Narrow(std::span<const float> values, DType dtype, std::byte* out) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(out)[i] = values[i];
    } else {
      reinterpret_cast<uint16_t*>(out)[i] =
          dtype == DType::kBF16 ? BF16FromF32(values[i]) : F16FromF32(values[i]);
    }
  }
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// Tensors [first, last) as one file.
absl::Status WriteShard(const ModelSpec& spec, const RandomWeights& maker,
                        std::span<const TensorSpec> tensors, const std::string& path,
                        ThreadPool& pool, const std::function<void(int64_t)>& written) {
  std::vector<SafetensorsSpec> specs;
  for (const TensorSpec& tensor : tensors) specs.push_back({tensor.name, spec.dtype, tensor.shape});
  MNEME_ASSIGN_OR_RETURN(const auto writer,
                         SafetensorsWriter::Create(path, specs, {{"format", "pt"}}));

  constexpr int64_t kGrain = 1 << 14;  // elements that one worker makes at a time
  constexpr int64_t kBlock = 1 << 22;  // elements between two writes
  const int element_bytes = SizeOf(spec.dtype);
  std::vector<std::byte> block(static_cast<size_t>(kBlock * element_bytes));
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t elements = specs[t].bytes() / element_bytes;
    for (int64_t first = 0; first < elements; first += kBlock) {
      const int64_t count = std::min(kBlock, elements - first);
      pool.ParallelForDynamic(
          (count + kGrain - 1) / kGrain, 1, [&](int64_t begin, int64_t end, int) {
            std::array<float, kGrain> values;
            for (int64_t grain = begin; grain < end; ++grain) {
              const int64_t at = grain * kGrain;
              const auto out =
                  std::span(values).first(static_cast<size_t>(std::min(kGrain, count - at)));
              maker.Fill(tensors[t], first + at, out);
              Narrow(out, spec.dtype, block.data() + at * element_bytes);
            }
          });
      const auto bytes =
          std::span<const std::byte>(block).first(static_cast<size_t>(count * element_bytes));
      MNEME_RETURN_IF_ERROR(writer->Write(bytes));
      written(static_cast<int64_t>(bytes.size()));
    }
  }
  return writer->Finish();
}

}  // namespace

absl::StatusOr<std::vector<TensorSpec>> TensorsOf(const ModelSpec& spec) {
  MNEME_ASSIGN_OR_RETURN(const ModelConfig config,
                         ParseModelConfig(ConfigJson(spec), "config.json"));
  std::vector<std::string> absent = spec.absent;
  if (spec.tied) absent.push_back("lm_head.weight");
  WeightRecorder recorder(std::move(absent));
  StateLayout state;
  std::vector<std::string> warnings;
  MNEME_RETURN_IF_ERROR(
      config.make_network({.weights = recorder, .state = state, .warnings = warnings}).status());
  return recorder.tensors();
}

std::vector<float> InitialValues(const ModelSpec& spec, const TensorSpec& tensor) {
  std::vector<float> values(
      static_cast<size_t>(SafetensorsSpec{tensor.name, DType::kU8, tensor.shape}.bytes()));
  RandomWeights(spec).Fill(tensor, 0, values);
  return values;
}

std::string ConfigJson(const ModelSpec& spec) {
  Json config = spec.config;
  // The arguments of a constructor, and no others.
  if (config["model_type"] == "titans_mac_lucidrains") return config.dump(2);
  config["tie_word_embeddings"] = spec.tied;
  config["initializer_range"] = spec.initializer_range;
  config["dtype"] = spec.dtype == DType::kBF16  ? "bfloat16"
                    : spec.dtype == DType::kF16 ? "float16"
                                                : "float32";
  return config.dump(2);
}

absl::Status MakeModelFolder(const ModelSpec& spec, const std::string& folder, bool overwrite,
                             const std::function<void(int64_t done, int64_t total)>& progress) {
  MNEME_ASSIGN_OR_RETURN(const std::vector<TensorSpec> tensors, TensorsOf(spec));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    return absl::UnavailableError(
        absl::StrCat("cannot make folder \"", folder, "\": ", error.message()));
  const std::string config_path = folder + "/config.json";
  std::vector<std::filesystem::path> old_files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name == "config.json" || name == "generation_config.json" ||
        (name.starts_with("model") &&
         (name.ends_with(".safetensors") || name.ends_with(".index.json")))) {
      old_files.push_back(entry.path());
    }
  }
  std::sort(old_files.begin(), old_files.end());
  if (!old_files.empty() && !overwrite) {
    return absl::AlreadyExistsError(
        absl::StrCat("\"", old_files.front().string(), "\" exists; remove it, or say --overwrite"));
  }
  // A single file left over would win over new shards; old shards would just stay behind.
  for (const auto& file : old_files) std::filesystem::remove(file, error);

  int64_t total = 0, done = 0;
  for (const TensorSpec& tensor : tensors)
    total += SafetensorsSpec{tensor.name, spec.dtype, tensor.shape}.bytes();
  const auto written = [&](int64_t bytes) {
    done += bytes;
    if (progress) progress(done, total);
  };
  const RandomWeights maker(spec);
  ThreadPool pool;
  Json weight_map;
  const auto shards = static_cast<size_t>(spec.shards);
  for (size_t shard = 0; shard < shards; ++shard) {
    const std::string name =
        shards == 1 ? "model.safetensors"
                    : absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1, shards);
    // Evenly, so that none is empty.
    const size_t first = shard * tensors.size() / shards;
    const size_t last = (shard + 1) * tensors.size() / shards;
    const auto part = std::span(tensors).subspan(first, last - first);
    for (const TensorSpec& tensor : part) weight_map[tensor.name] = name;
    MNEME_RETURN_IF_ERROR(WriteShard(spec, maker, part, folder + "/" + name, pool, written));
  }
  if (shards > 1) {
    const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    MNEME_RETURN_IF_ERROR(WriteText(folder + "/model.safetensors.index.json", index.dump(2)));
  }
  Json generation = {{"do_sample", true}, {"temperature", 1.0}};
  for (const char* key : {"bos_token_id", "eos_token_id"}) {
    const auto token = spec.config.find(key);
    if (token != spec.config.end() && !token->is_null()) generation[key] = *token;
  }
  MNEME_RETURN_IF_ERROR(WriteText(folder + "/generation_config.json", generation.dump(2)));
  return WriteText(config_path, ConfigJson(spec));
}

}  // namespace mneme
