#include "tests/models/plain_network.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "gtest/gtest.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/plain_attention.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

Vec Multiply(const Vec& w, const Vec& x) {
  Vec y(w.size() / x.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = std::inner_product(x.begin(), x.end(), w.begin() + i * x.size(), 0.0);
  }
  return y;
}

void AddTo(Vec& sum, const Vec& x, double factor = 1) {
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * x[i];
}

}  // namespace

PlainModel::PlainModel(const std::string& folder) {
  const auto text = MappedFile::Open(folder + "/config.json");
  CHECK_OK(text.status());
  config_ = nlohmann::json::parse(text->text());
  for (const auto& [name, tensor] : ReadTensors(folder + "/model.safetensors")) {
    CHECK(tensor.dtype == DType::kF32) << name;
    const auto* values = reinterpret_cast<const float*>(tensor.bytes.data());
    tensors_[name].assign(values, values + tensor.bytes.size() / sizeof(float));
  }
}

const Vec& PlainModel::Tensor(const std::string& name) const {
  const auto it = tensors_.find(name);
  CHECK(it != tensors_.end()) << name;
  return it->second;
}

std::string PlainLayer::Name(const std::string& name) const {
  return absl::StrCat(model.stem(), "layers.", index, ".", name);
}

Vec PlainLayer::Linear(const std::string& name, const Vec& x) const {
  Vec y = Multiply(Weight(name + ".weight"), x);
  if (Has(name + ".bias")) AddTo(y, Weight(name + ".bias"));
  return y;
}

Vec& PlainLayer::State(const std::string& name, size_t size) {
  Vec& field = state[name];
  field.resize(size);
  return field;
}

Vec PlainLayer::Convolve(const std::string& name, const Vec& x, const std::string& memory) {
  const Vec& weight = Weight(absl::StrCat("attn.", name, "_conv1d.weight"));
  const size_t channels = x.size(), width = weight.size() / channels;
  Vec& window = State(absl::StrCat(name, "_window", memory), width * channels);  // by channel
  Vec y(channels);
  for (size_t c = 0; c < channels; ++c) {
    double* own = window.data() + c * width;
    std::copy(own + 1, own + width, own);
    own[width - 1] = x[c];
    y[c] = std::inner_product(own, own + width, weight.data() + c * width, 0.0);
  }
  return y;
}

double Sigmoid(double z) { return 1 / (1 + std::exp(-z)); }
double Relu(double z) { return std::max(z, 0.0); }
double Silu(double z) { return z * Sigmoid(z); }
double Softplus(double z) { return z > 20 ? z : std::log1p(std::exp(z)); }

Vec Map(Vec x, double (*function)(double)) {
  for (double& value : x) value = function(value);
  return x;
}

Vec Slice(const Vec& x, int64_t begin, int64_t size) {
  return {x.begin() + begin, x.begin() + begin + size};
}

double Dot(const Vec& a, const Vec& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

Vec RmsNorm(const Vec& x, const Vec& weight, double eps) {
  const double factor = 1 / std::sqrt(Dot(x, x) / static_cast<double>(x.size()) + AsF32(eps));
  Vec y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * (weight.empty() ? 1 : weight[i]);
  return y;
}

Vec LayerNorm(const Vec& x, const Vec& weight, const Vec& bias, double eps) {
  const auto n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  Vec y = x;
  for (double& value : y) value -= mean;
  const double factor = 1 / std::sqrt(Dot(y, y) / n + AsF32(eps));
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = y[i] * factor * weight[i] + (bias.empty() ? 0 : bias[i]);
  }
  return y;
}

Vec Softmax(Vec x) {
  double sum = 0;
  for (double& value : x) sum += value = std::exp(value);
  for (double& value : x) value /= sum;
  return x;
}

Vec WriteAndRead(Vec& memory, const PlainWrite& write) {
  const auto keys = static_cast<int64_t>(write.k.size());
  Vec read(write.v.size());
  memory.resize(write.v.size() * write.k.size());
  for (size_t i = 0; i < write.v.size(); ++i) {
    double* row = memory.data() + i * keys;
    double recalled = 0;
    for (int64_t j = 0; j < keys; ++j) {
      if (write.decay) row[j] *= write.decay(static_cast<int64_t>(i), j);
      recalled += row[j] * write.k[j];
    }
    const double u = write.beta >= 0 ? write.beta * (write.v[i] - recalled) : write.v[i];
    for (int64_t j = 0; j < keys; ++j) {
      row[j] += u * write.k[j];
      read[i] += row[j] * write.q[j];
    }
  }
  return read;
}

Vec MixMemories(PlainLayer& layer, const Vec& x, int memories, int top_k, bool shared,
                const std::function<Vec(int memory)>& answer) {
  const Vec p = Softmax(layer.Linear("attn.gate", x));
  std::vector<int> order(static_cast<size_t>(memories));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return p[a] > p[b]; });
  double sum = 0;
  for (int j = 0; j < top_k; ++j) sum += p[order[j]];
  Vec y;
  for (int j = 0; j < top_k; ++j) {
    const Vec o = answer(order[j]);
    y.resize(o.size());
    AddTo(y, o, p[order[j]] / sum);
  }
  if (shared) AddTo(y, answer(memories));
  return y;
}

Vec PlainLogits(const PlainModel& model, std::span<const int32_t> tokens, const PlainMixer& mixer) {
  const nlohmann::json& config = model.config();
  const int layers = config["num_hidden_layers"], dim = config["hidden_size"];
  const double eps =
      config.contains("norm_eps") ? config["norm_eps"] : config["layer_norm_epsilon"];
  const std::string stem = model.stem();
  const Vec& embeddings = model.Tensor(stem + "embeddings.weight");
  const Vec& head = model.Has("lm_head.weight") ? model.Tensor("lm_head.weight") : embeddings;
  const std::string norm = stem + (stem == "backbone." ? "norm_f.weight" : "norm.weight");
  std::vector<PlainLayer> stack;
  for (int i = 0; i < layers; ++i) stack.push_back({.model = model, .index = i, .state = {}});
  Vec logits;
  for (size_t t = 0; t < tokens.size(); ++t) {
    Vec h = Slice(embeddings, int64_t{tokens[t]} * dim, dim);
    for (PlainLayer& layer : stack) {
      const char* mixer_norm = "attn_norm.weight";
      for (const char* name : {"attn.norm.weight", "norm.weight", "mixer_norm.weight"}) {
        if (layer.Has(name) && !layer.Has("attn_norm.weight")) mixer_norm = name;
      }
      const Vec normed = RmsNorm(h, layer.Weight(mixer_norm), eps);
      const nlohmann::json attention = AttentionOf(layer);
      const auto position = static_cast<int64_t>(t);
      AddTo(h, attention.is_null() ? mixer(layer, normed, position)
                                   : PlainAttention(layer, normed, position, attention));
      if (!layer.Has("mlp.gate_proj.weight")) continue;
      const bool inner = layer.Has("mlp.norm.weight");
      const Vec x = RmsNorm(h, layer.Weight(inner ? "mlp.norm.weight" : "mlp_norm.weight"),
                            inner ? 1e-5 : eps);
      Vec gate = layer.Linear("mlp.gate_proj", x), up;
      if (layer.Has("mlp.up_proj.weight")) {
        up = layer.Linear("mlp.up_proj", x);
      } else {
        const auto half = static_cast<int64_t>(gate.size() / 2);
        up = Slice(gate, half, half);
        gate.resize(gate.size() / 2);
      }
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = Silu(gate[i]) * up[i];
      AddTo(h, layer.Linear("mlp.down_proj", gate));
    }
    const Vec last = Multiply(head, RmsNorm(h, model.Tensor(norm), eps));
    logits.insert(logits.end(), last.begin(), last.end());
  }
  return logits;
}

namespace {

constexpr int kVocab = 61;

ModelSpec SpecOf(const std::string& model_type, const std::string& changes) {
  ModelSpec spec = MatrixSpec(model_type, nlohmann::ordered_json::parse(changes));
  spec.config[spec.config.contains("num_tokens") ? "num_tokens" : "vocab_size"] = kVocab;
  return spec;
}

void MakePlainFolder(const ModelSpec& spec, const TestFolder& folder) {
  MakeFolder(spec, folder);
  const std::string path = folder.File("model.safetensors");
  StoredTensors tensors = ReadTensors(path);
  SeededRandom random(/*seed=*/17);
  for (auto& [name, tensor] : tensors) {
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    const float first = values.front();
    if (std::any_of(values.begin(), values.end(), [&](float v) { return v != first; })) continue;
    const Vec noise = random.NormalValues(static_cast<int64_t>(values.size()), 0.3);
    for (size_t i = 0; i < values.size(); ++i) values[i] += static_cast<float>(noise[i]);
    std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  }
  WriteTensors(tensors, path);
}

PlainNetwork NetworkOf(const PlainMixer& mixer) {
  return [&mixer](const PlainModel& model, std::span<const int32_t> tokens) {
    return PlainLogits(model, tokens, mixer);
  };
}

// Constants of memories that are trained, which amplify what they are off by, are f32 in their
// plain networks, too. Those of others are f32 in ours alone, each off by 2^-25 at most: factors of
// keys and queries, logarithms of decays, epsilons. 1.7e-7 is the most that was seen of these.
double BoundOf(const ModelSpec& spec) {
  const std::string type = spec.config["model_type"];
  return absl::StartsWith(type, "titans") || type == "ttt" ? 1e-9 : 4e-7;
}

// The reference backend's logits, compared with `plain` unless that is null.
std::vector<double> DrivenLogits(const ModelSpec& spec, const PlainNetwork* plain) {
  const std::vector<int32_t> tokens = RandomTokens(40, kVocab, /*seed=*/3);
  const TestFolder folder;
  MakePlainFolder(spec, folder);
  const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 16});
  const std::vector<double> got = FeedSlot(*driver, 0, tokens, {7, 1, 13});
  if (plain != nullptr) {
    const Vec want = (*plain)(PlainModel(folder.path()), tokens);
    const double error = RelativeError(got, want);
    EXPECT_LE(error, BoundOf(spec));
    std::printf("  relative error %.2e\n", error);
  }
  return got;
}

}  // namespace

void MakePlainFolder(const std::string& model_type, const std::string& changes,
                     const TestFolder& folder) {
  MakePlainFolder(SpecOf(model_type, changes), folder);
}

void ExpectPlain(const ModelSpec& spec, const PlainMixer& mixer) {
  const PlainNetwork network = NetworkOf(mixer);
  DrivenLogits(spec, &network);
}

void ExpectPlain(const std::string& model_type, const std::string& changes,
                 const PlainMixer& mixer) {
  ExpectPlain(model_type, changes, NetworkOf(mixer));
}

void ExpectPlain(const std::string& model_type, const std::string& changes,
                 const PlainNetwork& network) {
  SCOPED_TRACE(absl::StrCat(model_type, " ", changes));
  const std::vector<double> got = DrivenLogits(SpecOf(model_type, changes), &network);
  if (changes != "{}") {
    EXPECT_GT(RelativeError(got, DrivenLogits(SpecOf(model_type, "{}"), nullptr)), 1e-3)
        << "the change changes nothing";
  }
}

}  // namespace mneme
