// Whole networks in plain double, one token at a time and without a kernel: what the mixers' tests
// compare with. Equations are those of docs/memory_models.md.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tests/models/test_folder.h"
#include "tools/model_maker.h"

namespace mneme {

using Vec = std::vector<double>;

// A folder's config.json and tensors.
class PlainModel {
 public:
  explicit PlainModel(const std::string& folder);

  const nlohmann::json& config() const { return config_; }
  bool Has(const std::string& name) const { return tensors_.contains(name); }
  const Vec& Tensor(const std::string& name) const;
  // The beginning of the names of all tensors but the head.
  const char* stem() const { return Has("backbone.norm_f.weight") ? "backbone." : "model."; }

 private:
  nlohmann::json config_;
  std::map<std::string, Vec> tensors_;
};

// A layer's mixer: its weights by name, and what it keeps of a sequence.
struct PlainLayer {
  const PlainModel& model;
  int index = 0;
  std::map<std::string, Vec> state;  // zeros at first

  bool Has(const std::string& name) const { return model.Has(Name(name)); }
  const Vec& Weight(const std::string& name) const { return model.Tensor(Name(name)); }
  // W x, and the bias if there is one, of "<name>.weight" and "<name>.bias".
  Vec Linear(const std::string& name, const Vec& x) const;
  // The short convolution `name` of what comes next, "q" for attn.q_conv1d; its window is that of
  // `memory`.
  Vec Convolve(const std::string& name, const Vec& x, const std::string& memory = "");
  // A field of the state with so many numbers.
  Vec& State(const std::string& name, size_t size);
  std::string Name(const std::string& name) const;
};

// A constant as networks hold it, on any backend: epsilons, factors of scores, and what is made of
// weights when they are loaded.
inline double AsF32(double value) { return static_cast<float>(value); }
inline double ScoreScale(int64_t dim) { return AsF32(1 / std::sqrt(static_cast<double>(dim))); }

double Sigmoid(double z);
double Relu(double z);
double Silu(double z);
double Softplus(double z);  // z from 20 on
Vec Map(Vec x, double (*function)(double));
Vec Slice(const Vec& x, int64_t begin, int64_t size);
double Dot(const Vec& a, const Vec& b);
Vec RmsNorm(const Vec& x, const Vec& weight, double eps);  // no weight: ones
Vec Softmax(Vec x);

// One step of a memory S [values, keys]: S <- decay S (+ correction) + v k^T; returns S q.
struct PlainWrite {
  Vec q, k, v;
  std::function<double(int64_t value, int64_t key)> decay;  // none: 1
  double beta = -1;                                         // at least 0: the delta rule
};
Vec WriteAndRead(Vec& memory, const PlainWrite& write);

// What a router does with x: sums what the chosen memories answer, weighted, and the shared one.
// `answer` gets the number of a memory.
Vec MixMemories(PlainLayer& layer, const Vec& x, int memories, int top_k, bool shared,
                const std::function<Vec(int memory)>& answer);

Vec LayerNorm(const Vec& x, const Vec& weight, const Vec& bias, double eps);  // no bias: zeros

using PlainMixer = std::function<Vec(PlainLayer& layer, const Vec& x, int64_t position)>;
// A whole network: logits after each token, [tokens, vocab].
using PlainNetwork = std::function<Vec(const PlainModel& model, std::span<const int32_t> tokens)>;
// Logits after each token, [tokens, vocab]. Layers that `attn` names have attention in place of the
// mixer.
Vec PlainLogits(const PlainModel& model, std::span<const int32_t> tokens, const PlainMixer& mixer);

// Expects that a network of `model_type` whose keys are changed so computes, on the reference
// backend, what the plain one does; and, unless nothing is changed, something else than the
// unchanged one. Weights that are all ones or zeros at first, as norms and biases, are drawn at
// random.
void ExpectPlain(const std::string& model_type, const std::string& changes,
                 const PlainMixer& mixer);
void ExpectPlain(const std::string& model_type, const std::string& changes,
                 const PlainNetwork& network);
// The same of a network, whose vocabulary is of 61 tokens, without a comparison.
void ExpectPlain(const ModelSpec& spec, const PlainMixer& mixer);
// The folder that it makes.
void MakePlainFolder(const std::string& model_type, const std::string& changes,
                     const TestFolder& folder);

}  // namespace mneme
