// mneme-make-model: a model folder with random weights.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/human_bytes.h"
#include "base/random.h"
#include "base/standard_streams.h"
#include "base/status_macros.h"
#include "engine/step_plan.h"
#include "tools/flag_parser.h"
#include "tools/model_maker.h"
#include "tools/routing_tape.h"
#include "tools/tool_runner.h"

namespace mneme {
namespace {

constexpr char kShapesByHand[] =
    R"(usage: mneme-make-model --shape NAME --out DIR [flags]

Writes a model folder with random weights, for benches and trials: config.json, generation_config.json and
model.safetensors, initialised as upstream initialises a network before training. Equal seeds give equal
files. There is no tokenizer in it, so the server takes token ids only (mneme generate --token-ids 5,6,7
--json), or text as bytes where the vocabulary is that small, as a tiny shape's.

Then runs a short random prompt and prints what decides the cost of a step: how slowly memories decay, and
how evenly the router spreads tokens over them.

Shapes (parameters)
  mom-340m   (545 M)  the paper's smaller Mixture-of-Memories: 24 layers, 4 memories + 1, top 2
  mom-1.3b   (1.62 G) the larger one
  mom-gated-deltanet-340m (545 M)  the smaller one in the format that was first
  gdn-340m   (512 M)  Gated DeltaNet, 21 layers, 6 heads of 256 x 512
  gdn-1.3b   (1.39 G) the same, 2048 wide
  rwkv6-340m        (378 M)  24 layers, 1024 wide, 4 heads of 128 x 256
  rwkv7-0.4b        (451 M)  16 heads of 64 x 64, vocabulary 65536
  rwkv7-1.5b        (1.53 G) the same, 2048 wide
  mamba-370m        (372 M)  48 layers, 1024 wide, 2048 channels of 16 states
  mamba2-370m       (368 M)  32 heads of 64 x 128
  titans-lmm-340m   (374 M)  24 layers, 1024 wide, memories of 16 networks of 64 x 128 x 64;
                    titans-mac-340m, titans-mag-340m, titans-mal-340m with attention;
                    titans-lmm-anchor16-340m, titans-lmm-anchor64-340m with gradients at an anchor;
                    titans-lmm-wide-340m (374 M) of 64 x 256 x 64
  titans-mag-760m   (1.04 G) 1536 wide, 16 networks of 96 x 384 x 96, attention to 512 positions
  titans-pytorch-393m (395 M)
                    24 layers, 1024 wide, a memory of 4 networks of 64 x 128 x 64 in every second one
  ttt-linear-350m   (338 M)  24 layers, 1024 wide, memories of 16 matrices of 64 x 64
  ttt-mlp-350m      (349 M)  the same of 16 networks of 64 x 256 x 64
  llama-340m        (374 M)  attention alone: 24 layers, 1024 wide, 16 heads of 64
  mistral-340m      (393 M)  8 heads of 128 that share 2 of keys and values, a window of 4096
  gpt2-124m         (124 M)  12 layers, 768 wide, 12 heads of 64, 1024 positions
  gpt2-with-memoria-159m (159 M)  the same on segments of 150 tokens, 50 engrams of each
  bert-110m         (110 M)  a classifier: 12 layers, 768 wide, 512 positions, two classes; roberta-125m (125 M)
  memoria-bert-120m (120 M)  the same with 64 engrams of each kind in its last two layers; memoria-roberta-135m (135 M)
)";

constexpr char kTinyShapes[] =
    R"(  NAME-tiny  two layers of any of these rules, for tests, mom-tiny or gdn-tiny; "tiny" is mom-tiny;
             also falcon-mamba-tiny, samba-tiny, llama-tiny, mistral-tiny, gpt2-tiny,
             gpt2-with-memoria-tiny, bert-tiny, roberta-tiny, memoria-bert-tiny, memoria-roberta-tiny; mom-hybrid-tiny and
             gdn-hybrid-tiny, three layers of which the middle one has attention

Exit codes: 0 done, 2 bad arguments, 1 anything else.
)";

// The shapes that families give are listed between the two.
std::string Synopsis() {
  std::string text = kShapesByHand;
  for (const ExampleShape& shape : ExampleShapes()) {
    double parameters = 0;
    const std::vector<TensorSpec> tensors = TensorsOf(SpecOfShape(shape.name).value()).value();
    for (const TensorSpec& tensor : tensors) {
      double elements = 1;
      for (const int64_t dim : tensor.shape) elements *= static_cast<double>(dim);
      parameters += elements;
    }
    absl::StrAppendFormat(&text, "  %-20s (%.0f M)  24 layers, 1024 wide, %s\n", shape.name,
                          1e-6 * parameters, shape.summary);
  }
  return absl::StrCat(text, kTinyShapes);
}

constexpr int kPromptTokens = 256;

// The decay of a token whose decay's projection is zero, exp(-exp(A_log) softplus(dt_bias)), over
// all layers and heads, of rules that have these two; else nothing.
std::optional<double> MeanDecay(const ModelSpec& spec) {
  std::vector<float> a_log, dt_bias;
  const std::vector<TensorSpec> tensors = TensorsOf(spec).value();
  for (const TensorSpec& tensor : tensors) {
    const bool decay = tensor.init == WeightInit::kDecay;
    if (!decay && tensor.init != WeightInit::kTimeStep) continue;
    const std::vector<float> values = InitialValues(spec, tensor);
    std::vector<float>& all = decay ? a_log : dt_bias;
    all.insert(all.end(), values.begin(), values.end());
  }
  if (a_log.empty()) return std::nullopt;
  // Keys of a head each have their own step, or states of a channel their own rate.
  const size_t decays = std::max(a_log.size(), dt_bias.size());
  const size_t keys = decays / a_log.size(), states = decays / dt_bias.size();
  double sum = 0;
  for (size_t i = 0; i < decays; ++i) {
    sum += std::exp(-std::exp(a_log[i / keys]) * std::log1p(std::exp(dt_bias[i / states])));
  }
  return sum / static_cast<double>(decays);
}

// Shares of the tokens that went to each memory, over all layers, and the extremes of a single
// layer.
void PrintRoutingShares(const RoutingTape& tape) {
  std::vector<double> mean(static_cast<size_t>(tape.memories()));
  double lowest = 1, highest = 0;
  int routed = 0;
  for (int layer = 0; layer < tape.layers(); ++layer) routed += tape.routed(layer) ? 1 : 0;
  for (int layer = 0; layer < tape.layers(); ++layer) {
    if (!tape.routed(layer)) continue;
    const std::vector<double> share = tape.Shares(layer);
    for (size_t m = 0; m < mean.size(); ++m) mean[m] += share[m] / routed;
    lowest = std::min(lowest, *std::min_element(share.begin(), share.end()));
    highest = std::max(highest, *std::max_element(share.begin(), share.end()));
  }
  const auto percent = [](std::string* out, double share) {
    absl::StrAppendFormat(out, "%.1f", 100 * share);
  };
  absl::PrintF(
      "routing share    %s %% of tokens per memory, mean of layers; %.1f to %.1f %% in single "
      "layers\n",
      absl::StrJoin(mean, " ", percent), 100 * lowest, 100 * highest);
}

absl::Status PrintTrial(const std::string& folder) {
  ExitCode code = kExitFailure;
  MNEME_ASSIGN_OR_RETURN(ToolRunner tool, ToolRunner::Load({.model = folder}, &code));
  absl::PrintF("parameters       %d\nweights          %s, %s\nsession state    %s\n",
               tool.model->info().parameters, tool.model->info().weight_dtype,
               HumanBytes(tool.model->info().weight_bytes),
               HumanBytes(tool.model->state_layout().slab_bytes()));
  if (tool.model->info().memories == 0) return absl::OkStatus();
  MNEME_RETURN_IF_ERROR(tool.Prepare({.tokens = kPromptTokens}));
  MNEME_ASSIGN_OR_RETURN(RoutingTape tape,
                         RoutingTape::Create(*tool.backend, tool.model->info(), kPromptTokens));
  std::vector<int32_t> prompt;
  for (int i = 0; i < kPromptTokens; ++i) {
    prompt.push_back(
        static_cast<int32_t>(UniformDouble(/*seed=*/1, /*stream=*/0, i) * tool.config.vocab));
  }
  StepPlan plan;
  plan.AddRow({.slot = *tool.pool->Acquire(), .position = 0, .tokens = prompt, .samples = true});
  tape.BeginStep(0, kPromptTokens);
  MNEME_RETURN_IF_ERROR(tool.runner->Forward(plan, &tape));
  PrintRoutingShares(tape);
  return absl::OkStatus();
}

struct MakeFlags {
  std::string shape, out, dtype = "bf16";
  uint64_t seed = 0;
  int vocab = 0, layers = 0, shards = 1;
  bool overwrite = false;
};

// The key that the shape's config.json has of these, which mean the same.
const char* KeyOf(const ModelSpec& spec, std::initializer_list<const char*> names) {
  return *std::find_if(names.begin(), names.end() - 1,
                       [&](const char* name) { return spec.config.contains(name); });
}

// Special tokens behind the last id become that, as GPT-2's is.
void SetVocab(int vocab, ModelSpec& spec) {
  spec.config[KeyOf(spec, {"num_tokens", "vocab_size"})] = vocab;
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto id = spec.config.find(key);
    if (id != spec.config.end() && id->is_number() && *id >= vocab) *id = vocab - 1;
  }
}

// The shape lists layers, counted from 1, that have a memory of their own; those beyond the last
// layer leave that list.
void SetLayers(int layers, ModelSpec& spec) {
  spec.config[KeyOf(spec, {"n_layer", "depth", "num_hidden_layers"})] = layers;
  const auto list = spec.config.find("neural_memory_layers");
  if (list == spec.config.end()) return;
  nlohmann::ordered_json kept = nlohmann::ordered_json::array();
  for (const auto& layer : *list) {
    if (layer <= layers) kept.push_back(layer);
  }
  *list = kept;
}

absl::StatusOr<ModelSpec> SpecFromFlags(const MakeFlags& flags,
                                        const std::vector<std::string>& positional) {
  if (!positional.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected argument \"", positional[0], "\""));
  }
  if (flags.shape.empty() || flags.out.empty()) {
    return absl::InvalidArgumentError("--shape and --out are required; see --help");
  }
  const auto spec_of_shape = SpecOfShape(flags.shape == "tiny" ? "mom-tiny" : flags.shape);
  if (!spec_of_shape.ok())
    return absl::InvalidArgumentError(absl::StrCat("--shape: ", spec_of_shape.status().message()));
  ModelSpec spec = *spec_of_shape;
  const DType dtypes[] = {DType::kBF16, DType::kF16, DType::kF32};
  const auto* dtype = std::find_if(std::begin(dtypes), std::end(dtypes),
                                   [&](DType d) { return flags.dtype == Name(d); });
  if (dtype == std::end(dtypes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype: \"", flags.dtype, "\", expected bf16, f16 or f32"));
  }
  spec.dtype = *dtype;
  spec.seed = flags.seed;
  spec.shards = flags.shards;
  if (flags.vocab > 0) SetVocab(flags.vocab, spec);
  if (flags.layers > 0) SetLayers(flags.layers, spec);
  MNEME_ASSIGN_OR_RETURN(const std::vector<TensorSpec> all, TensorsOf(spec));
  if (const size_t tensors = all.size(); static_cast<size_t>(spec.shards) > tensors) {
    return absl::InvalidArgumentError(absl::StrCat("--shards: ", spec.shards, ", expected at most ",
                                                   tensors, ", the tensors of this shape"));
  }
  return spec;
}

int Main(int argc, char** argv) {
  OpenStandardStreams(argv);
  constexpr char kProgram[] = "mneme-make-model";
  MakeFlags flags;
  FlagParser parser(Synopsis());
  parser.Add("--shape", "NAME", &flags.shape, "see above");
  parser.Add("--out", "DIR", &flags.out, "folder to write; made if it does not exist");
  parser.Add("--seed", "N", &flags.seed, "of the random weights; default 0");
  parser.Add("--dtype", "TYPE", &flags.dtype, "bf16 (default), f16 or f32");
  parser.Add("--vocab", "N", &flags.vocab, 3, 1 << 24,
             "another vocabulary size, to fit a tokenizer");
  parser.Add("--layers", "N", &flags.layers, 1, 1000, "another depth, for a model of small state");
  parser.Add("--shards", "N", &flags.shards, 1, 1000,
             "files to spread the weights over; default 1");
  parser.Add("--overwrite", &flags.overwrite, "replace a model that is there already");
  const auto positional = parser.Parse(argc, argv);
  if (parser.help_requested()) {
    absl::PrintF("%s", parser.Help());
    return kExitOk;
  }
  if (!positional.ok()) return Report(kProgram, positional.status(), kExitUsage);
  const auto spec = SpecFromFlags(flags, *positional);
  if (!spec.ok()) return Report(kProgram, spec.status(), kExitUsage);

  const auto start = std::chrono::steady_clock::now();
  const absl::Status made = MakeModelFolder(*spec, flags.out, flags.overwrite, nullptr);
  if (!made.ok()) {
    return Report(kProgram, made, absl::IsAlreadyExists(made) ? kExitUsage : kExitFailure);
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  absl::PrintF("%s: %s, seed %d, made in %.1f s\n", flags.out, flags.shape, flags.seed,
               seconds.count());
  if (const std::optional<double> decay = MeanDecay(*spec)) {
    absl::PrintF("mean decay       %.4f per token, a head's memory of itself\n", *decay);
  }
  const absl::Status tried = PrintTrial(flags.out);
  return tried.ok() ? kExitOk : Report(kProgram, tried, kExitFailure);
}

}  // namespace
}  // namespace mneme

int main(int argc, char** argv) { return mneme::Main(argc, argv); }
