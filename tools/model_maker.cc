#include "tools/model_maker.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/float16.h"
#include "models/safetensors_writer.h"
#include "models/weight_scan.h"

namespace mneme {
namespace {

using Init = TensorSpec::Init;

bool IsMom(const ModelSpec& spec) { return spec.config.mixer == "mixture_of_memories"; }

ModelSpec MomSpec(int model_dim, int mlp_dim) {
  ModelSpec spec;
  spec.config = {.model_type = "mom",
                 .mixer = "mixture_of_memories",
                 .vocab = 32000,
                 .model_dim = model_dim,
                 .layers = 24,
                 .mlp_dim = mlp_dim,
                 .bos_token = 1,
                 .eos_tokens = {2}};
  spec.config.delta = {.heads = 4,
                       .value_heads = 4,
                       .key_dim = 256,
                       .value_dim = 256,
                       .conv_width = 4,
                       .memories = 4,
                       .top_k = 2,
                       .shared_memory = true};
  return spec;
}

ModelSpec GdnSpec(int model_dim, int mlp_dim) {
  ModelSpec spec;
  spec.config = {.model_type = "gated_deltanet",
                 .mixer = "gated_delta_net",
                 .vocab = 32000,
                 .model_dim = model_dim,
                 .layers = 21,
                 .mlp_dim = mlp_dim,
                 .bos_token = 1,
                 .eos_tokens = {2}};
  spec.config.delta = {.heads = 6,
                       .value_heads = 6,
                       .key_dim = 256,
                       .value_dim = 512,
                       .conv_width = 4,
                       .shared_memory = true};
  return spec;
}

// 259: a byte tokenizer's ids.
ModelSpec Tiny(ModelSpec spec) {
  spec.config.vocab = 259;
  spec.config.model_dim = 64;
  spec.config.layers = 2;
  spec.config.mlp_dim = 128;
  spec.config.delta.heads = spec.config.delta.value_heads = 2;
  spec.config.delta.key_dim = spec.config.delta.value_dim = 32;
  return spec;
}

struct NamedShape {
  const char* name;
  ModelSpec (*make)();
};
constexpr NamedShape kShapes[] = {
    {"mom-340m", [] { return MomSpec(1024, 2048); }},
    {"mom-1.3b", [] { return MomSpec(2048, 5632); }},
    {"gdn-340m", [] { return GdnSpec(1024, 2816); }},
    {"gdn-1.3b", [] { return GdnSpec(2048, 5632); }},
    {"mom-tiny", [] { return Tiny(MomSpec(64, 128)); }},
    {"gdn-tiny", [] { return Tiny(GdnSpec(64, 128)); }},
};

// The 65536 quantiles of the standard normal distribution at (i + 1/2) / 65536: one is drawn with
// 16 random bits, eight with one call of the generator. The largest is 4.4; bf16 could not tell it
// from finer grain.
std::vector<float> NormalQuantiles() {
  constexpr int kHalf = 1 << 15;
  std::vector<float> quantiles(2 * kHalf);
  double x = 0;
  for (int i = 0; i < kHalf; ++i) {
    const double p = 0.5 + (i + 0.5) / (2 * kHalf);
    // Newton's method, from the neighbour.
    for (int step = 0; step < 8; ++step) {
      const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      x += (p - (1 - std::erfc(x / std::sqrt(2)) / 2)) / density;
    }
    quantiles[static_cast<size_t>(kHalf + i)] = static_cast<float>(x);
    quantiles[static_cast<size_t>(kHalf - 1 - i)] = static_cast<float>(-x);
  }
  return quantiles;
}

// Fills tensors with numbers that depend on (seed, tensor name, index) only.
class WeightMaker {
 public:
  explicit WeightMaker(const ModelSpec& spec) : spec_(spec), quantiles_(NormalQuantiles()) {}

  // The next `out.size()` values of a tensor, from element `begin`, a multiple of 8.
  void Fill(const TensorSpec& tensor, int64_t begin, std::span<float> out) const {
    const uint64_t stream = HashText(tensor.name);
    switch (tensor.init) {
      case Init::kNormal:
        return Normal(stream, begin, spec_.initializer_range, out);
      case Init::kConvolution:
        return Normal(
            stream, begin,
            spec_.convolution_range > 0 ? spec_.convolution_range : spec_.initializer_range, out);
      case Init::kOnes:
        return std::fill(out.begin(), out.end(), 1.0f);
      case Init::kDecay:
        for (size_t i = 0; i < out.size(); ++i) {
          // log of U(0, 16); the generator may give 0, whose logarithm is no weight.
          const double u = UniformDouble(spec_.seed, stream, static_cast<uint64_t>(begin) + i);
          out[i] = static_cast<float>(std::log(std::max(16 * u, 1e-4)));
        }
        return;
      case Init::kTimeStep:
        for (size_t i = 0; i < out.size(); ++i) {
          // Inverse softplus of a time step that is log-uniform in [0.001, 0.1].
          const double u = UniformDouble(spec_.seed, stream, static_cast<uint64_t>(begin) + i);
          const double dt = std::exp(std::log(0.001) + u * (std::log(0.1) - std::log(0.001)));
          out[i] = static_cast<float>(dt + std::log(-std::expm1(-dt)));
        }
        return;
    }
  }

 private:
  void Normal(uint64_t stream, int64_t begin, double range, std::span<float> out) const {
    const float scale = static_cast<float>(range);
    for (size_t i = 0; i < out.size(); i += 8) {
      const PhiloxCounter bits =
          RandomBits(spec_.seed, stream, (static_cast<uint64_t>(begin) + i) / 8);
      for (size_t j = 0; j < std::min<size_t>(8, out.size() - i); ++j) {
        out[i + j] = scale * quantiles_[bits[j / 2] >> (16 * (j % 2)) & 0xffff];
      }
    }
  }

  const ModelSpec& spec_;
  const std::vector<float> quantiles_;
};

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
absl::Status WriteShard(const ModelSpec& spec, const WeightMaker& maker,
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

absl::StatusOr<ModelSpec> SpecOfShape(absl::string_view shape) {
  for (const NamedShape& known : kShapes) {
    if (shape == known.name) return known.make();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "shape \"", shape, "\" is unknown, expected one of ", absl::StrJoin(ShapeNames(), ", ")));
}

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kShapes) names.push_back(shape.name);
  return names;
}

std::vector<TensorSpec> TensorsOf(const ModelSpec& spec) {
  const ModelConfig& config = spec.config;
  const DeltaMixerConfig& delta = config.delta;
  const int64_t dim = config.model_dim, mlp = config.mlp_dim;
  const int64_t keys = delta.key_channels(), values = delta.value_channels(),
                heads = delta.value_heads;
  std::vector<TensorSpec> tensors;
  const auto add = [&](std::string name, std::vector<int64_t> shape, Init init = Init::kNormal) {
    tensors.push_back({std::move(name), std::move(shape), init});
  };
  add("model.embeddings.weight", {config.vocab, dim});
  for (int i = 0; i < config.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    const std::string attn = layer + "attn.";
    add(layer + "attn_norm.weight", {dim}, Init::kOnes);
    add(attn + "q_proj.weight", {keys, dim});
    const struct {
      const char* letter;
      int64_t rows;
    } streams[] = {{"k", keys}, {"v", values}, {"b", heads}, {"a", heads}};
    for (const auto& [letter, rows] : streams) {
      if (!IsMom(spec)) {
        add(absl::StrCat(attn, letter, "_proj.weight"), {rows, dim});
        continue;
      }
      for (int m = 0; m < delta.memories && !delta.single_kv_proj; ++m) {
        add(absl::StrCat(attn, letter, "_proj.", m, ".weight"), {rows, dim});
      }
      if (delta.single_kv_proj || delta.shared_memory) {
        add(absl::StrCat(attn, "shared_", letter, ".weight"), {rows, dim});
      }
    }
    if (IsMom(spec)) add(attn + "gate.weight", {delta.memories, dim});
    add(attn + "A_log", {heads}, Init::kDecay);
    add(attn + "dt_bias", {heads}, Init::kTimeStep);
    if (delta.conv_width > 0) {
      add(attn + "q_conv1d.weight", {keys, 1, delta.conv_width}, Init::kConvolution);
      add(attn + "k_conv1d.weight", {keys, 1, delta.conv_width}, Init::kConvolution);
      add(attn + "v_conv1d.weight", {values, 1, delta.conv_width}, Init::kConvolution);
    }
    if (delta.output_gate) add(attn + "g_proj.weight", {values, dim});
    add(attn + "o_norm.weight", {delta.value_dim}, Init::kOnes);
    add(attn + "o_proj.weight", {dim, values});
    add(layer + "mlp_norm.weight", {dim}, Init::kOnes);
    if (config.model_type == "mom_gated_deltanet") {
      add(layer + "mlp.gate_proj.weight", {2 * mlp, dim});
    } else {
      add(layer + "mlp.gate_proj.weight", {mlp, dim});
      add(layer + "mlp.up_proj.weight", {mlp, dim});
    }
    add(layer + "mlp.down_proj.weight", {dim, mlp});
  }
  add("model.norm.weight", {dim}, Init::kOnes);
  if (!spec.tied) add("lm_head.weight", {config.vocab, dim});
  return tensors;
}

std::vector<float> InitialValues(const ModelSpec& spec, const TensorSpec& tensor) {
  std::vector<float> values(
      static_cast<size_t>(SafetensorsSpec{tensor.name, DType::kU8, tensor.shape}.bytes()));
  WeightMaker(spec).Fill(tensor, 0, values);
  return values;
}

std::string ConfigJson(const ModelSpec& spec) {
  const ModelConfig& config = spec.config;
  const DeltaMixerConfig& delta = config.delta;
  const bool format_b = config.model_type == "mom_gated_deltanet";
  nlohmann::ordered_json json = {
      {"model_type", config.model_type},
      {"hidden_size", config.model_dim},
      {"num_hidden_layers", config.layers},
      {"vocab_size", config.vocab},
      {"intermediate_size", config.mlp_dim},
      {"hidden_act", "swish"},
      {"norm_eps", std::stod(absl::StrFormat("%.7g", config.norm_eps))},
      {"num_heads", delta.heads},
      {"head_dim", delta.key_dim},
      {"expand_v", static_cast<double>(delta.value_dim) / delta.key_dim},
      {"use_short_conv", delta.conv_width > 0},
      {"conv_size", delta.conv_width > 0 ? delta.conv_width : 4},
      {"tie_word_embeddings", spec.tied},
      {"initializer_range", spec.initializer_range},
      {"bos_token_id", nullptr},
      {"eos_token_id", config.eos_tokens},
      {"dtype", spec.dtype == DType::kBF16  ? "bfloat16"
                : spec.dtype == DType::kF16 ? "float16"
                                            : "float32"},
  };
  if (config.bos_token.has_value()) json["bos_token_id"] = *config.bos_token;
  if (config.eos_tokens.size() == 1) json["eos_token_id"] = config.eos_tokens.front();
  if (IsMom(spec)) {
    json["num_memories"] = delta.memories;
    json["topk"] = delta.top_k;
    json["shared_mem"] = delta.shared_memory;
    json["single_kv_proj"] = delta.single_kv_proj;
    json[format_b ? "use_gate" : "use_output_gate"] = delta.output_gate;
  } else {
    json["num_v_heads"] = delta.value_heads;
    json["allow_neg_eigval"] = delta.allow_negative_eigenvalues;
    json["use_gate"] = delta.output_gate;
  }
  return json.dump(2);
}

absl::Status MakeModelFolder(const ModelSpec& spec, const std::string& folder, bool overwrite,
                             const std::function<void(int64_t done, int64_t total)>& progress) {
  const std::vector<TensorSpec> tensors = TensorsOf(spec);
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
  const WeightMaker maker(spec);
  ThreadPool pool;
  nlohmann::ordered_json weight_map;
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
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                          {"weight_map", weight_map}};
    MNEME_RETURN_IF_ERROR(WriteText(folder + "/model.safetensors.index.json", index.dump(2)));
  }
  nlohmann::ordered_json generation = {{"do_sample", true}, {"temperature", 1.0}};
  if (spec.config.bos_token.has_value()) generation["bos_token_id"] = *spec.config.bos_token;
  if (!spec.config.eos_tokens.empty()) generation["eos_token_id"] = spec.config.eos_tokens;
  MNEME_RETURN_IF_ERROR(WriteText(folder + "/generation_config.json", generation.dump(2)));
  return WriteText(config_path, ConfigJson(spec));
}

}  // namespace mneme
