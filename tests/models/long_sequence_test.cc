// 20,000 tokens, as a prompt and as an answer: rounding must not build up in the memories.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "gtest/gtest.h"
#include "models/state_codec.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/matrix_spec.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kLongTokens = 20000;
constexpr int kChunk = 500;

// Bounds the error of a part in norm. 20,000 roundings of one sign would come to 20,000 u = 1.2e-3
// with u = 2^-24 (kUnitF32), and where they go up as often as down to sqrt(20,000) u = 8.4e-6: that
// of a sum of all tokens, as attention's, or of a memory that forgets nothing. One that forgets
// half in h tokens keeps roundings for some 1.4 h of them. The rest is for what layers, whose own
// sums have at most a few hundred terms, make of it (docs/numerics.md, "Long contexts").
constexpr double kBound = 2e-5;
// The same of a memory that only ever adds. The 32 tokens of a one-layer network add the same 32
// terms again and again, and a term is rounded the same way as long as the sum keeps its exponent,
// so that roundings average out less: over 32 signs, 20,000 u / sqrt(32) = 2.1e-4. A sum is that
// large at the end of the text alone, half as large on average, with error to match.
constexpr double kSumBound = 1e-4;
// The same of a memory that keeps exp(-0.001) of itself from token to token: that number is rounded
// alike each time, and a thousand of those roundings are kept.
constexpr double kSlowBound = 1000 * kUnitF32;

// The parts of a sequence's logits, chunk by chunk.
double WorstPart(const std::vector<double>& got, const std::vector<double>& want, int vocab) {
  return WorstRowError(got, want, kChunk * vocab);
}

// What a session keeps that was fed all tokens: the numbers of each memory of each field. Memories
// that were never written are zeros.
std::vector<std::vector<double>> Memories(ModelDriver& driver) {
  const auto state = DecodeState(driver.backend(), driver.model(), driver.Slab(0), kLongTokens);
  CHECK_OK(state.status());
  std::vector<std::vector<double>> memories;
  for (const StateTensor& tensor : state->tensors) {
    if (tensor.dtype != DType::kF64 && tensor.dtype != DType::kF32) continue;  // flags
    const int64_t elements = tensor.shape.elements() / tensor.shape[0];
    for (int64_t i = 0; i < tensor.shape.elements(); ++i) {
      if (i % elements == 0) memories.emplace_back();
      memories.back().push_back(tensor.dtype == DType::kF64
                                    ? reinterpret_cast<const double*>(tensor.bytes.data())[i]
                                    : reinterpret_cast<const float*>(tensor.bytes.data())[i]);
    }
  }
  return memories;
}

double WorstMemory(ModelDriver& got, ModelDriver& want) {
  const auto of_device = Memories(got), of_reference = Memories(want);
  CHECK(!of_reference.empty());
  CHECK_EQ(of_device.size(), of_reference.size());
  double worst = 0;
  for (size_t m = 0; m < of_reference.size(); ++m) {
    if (of_device[m] == of_reference[m]) continue;  // zeros
    worst = std::max(worst, RelativeError(of_device[m], of_reference[m]));
  }
  return worst;
}

// Fed in chunks as a prompt is, and token by token as it would be generated; without a router, as
// steps that nobody watches, which a device may take as one operation.
void ExpectNoDrift(const BackendUnderTest& under_test, const ModelSpec& spec,
                   double bound = kBound) {
  const TestFolder folder;
  MakeFolder(spec, folder);
  const ModelOptions options = {.max_context = kLongTokens};
  const auto reference = Drive(folder.path(), MakeReference(), {.max_tokens = kChunk}, options);
  const ModelInfo& info = reference->model().info();
  const std::vector<int32_t> tokens = RandomTokens(kLongTokens, info.vocab, /*seed=*/1);
  const bool routed = info.memories > 0;
  RecordedRouting record(reference->backend());
  if (routed) reference->set_routing(&record);
  const std::vector<double> want = FeedSlot(*reference, 0, tokens);
  for (const int size : {kChunk, 1}) {
    SCOPED_TRACE(testing::Message() << "in steps of " << size);
    const auto device = Drive(folder.path(), under_test.Make(), {.max_tokens = kChunk}, options);
    RecordedRouting force(device->backend(),
                          Recut(record.recorded(), info.layers, info.top_k,
                                std::vector<int>(static_cast<size_t>(kLongTokens / size), size)));
    if (routed) device->set_routing(&force);
    const std::vector<double> got = FeedSlot(*device, 0, tokens, {size});
    ASSERT_EQ(got.size(), want.size());
    const double logits = WorstPart(got, want, info.vocab);
    const double memories = WorstMemory(*device, *reference);
    std::printf("  steps of %d: worst relative error of %d tokens' logits %.2e, of a memory %.2e\n",
                size, kChunk, logits, memories);
    EXPECT_LE(logits, bound);
    EXPECT_LE(memories, bound);
  }
}

void ExpectNoDrift(const BackendUnderTest& under_test, const GatedDeltaSpec& spec) {
  ExpectNoDrift(under_test, spec.ToModelSpec());
}

GatedDeltaSpec SmallSpec(const std::string& shape) {
  GatedDeltaSpec spec = TinySpec(shape);
  spec.config.vocab = 32;
  spec.config.model_dim = 32;
  spec.config.mlp_dim = 32;
  spec.config.delta.key_dim = spec.config.delta.value_dim = 16;
  spec.config.bos_token.reset();
  return spec;
}

// bf16 weights and sizes as the kernel wants them that takes a token through all layers
// (kernels/cuda/decode/stack/stack.cu): keys of 128, other widths multiples of 256. Products are
// exact, so that the bound is that of f32. One head: of all there is, float64 takes longest.
GatedDeltaSpec WideSpec(const std::string& shape, int layers) {
  GatedDeltaSpec spec = SmallSpec(shape);
  spec.dtype = DType::kBF16;
  spec.config.layers = layers;
  spec.config.model_dim = spec.config.mlp_dim = 256;
  spec.config.delta.heads = spec.config.delta.value_heads = 1;
  spec.config.delta.key_dim = 128;
  spec.config.delta.value_dim = 256;
  return spec;
}

class LongSequenceTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  void ExpectNoWideDrift(const GatedDeltaSpec& spec) {
    if (GetParam().device == "cpu") GTEST_SKIP() << "no kernels of its own for wide networks";
    ExpectNoDrift(GetParam(), spec);
  }
};

TEST_P(LongSequenceTest, MomStaysWithTheReference) {
  ExpectNoDrift(GetParam(), SmallSpec("mom-tiny"));
}
TEST_P(LongSequenceTest, GatedDeltaNetStaysWithTheReference) {
  ExpectNoDrift(GetParam(), SmallSpec("gdn-tiny"));
}
TEST_P(LongSequenceTest, WideGatedDeltaNetStaysWithTheReference) {
  GatedDeltaSpec spec = WideSpec("gdn-tiny", /*layers=*/2);
  spec.config.delta.output_gate = false;
  ExpectNoWideDrift(spec);
}
// Forced routing goes layer by layer: one is all there is to see.
TEST_P(LongSequenceTest, WideMomStaysWithTheReference) {
  GatedDeltaSpec spec = WideSpec("mom-tiny", /*layers=*/1);
  spec.config.delta.memories = 3;
  spec.config.delta.top_k = 1;
  ExpectNoWideDrift(spec);
}

// The fastest alone: a float64 reference of 20,000 tokens is slow enough.
INSTANTIATE_TEST_SUITE_P(Backends, LongSequenceTest, testing::Values(AvailableBackends().back()),
                         BackendName);

// A rule by itself, in a network of 32 tokens and as few layers as show it.
struct LongRule {
  std::string name;
  std::string model_type;
  const char* changes = "{}";  // of the tiny shape
  double bound = kBound;
};
void PrintTo(const LongRule& rule, std::ostream* out) { *out << rule.name; }

// Those that are more than a family's example, or need another bound.
const LongRule kLongRules[] = {
    {"linear_attn", "linear_attn", "{}", kSumBound},
    {"linear_attn_normed", "linear_attn", R"({"feature_map": "elu", "norm_feature_map": true})",
     kSumBound},
    {"gla_hardly_forgets", "gla", R"({"clamp_min": -0.001})", kSlowBound},
    {"delta_net_all_written", "delta_net", R"({"use_beta": false, "use_short_conv": false})"},
    {"kda_bounded_below", "kda", R"({"lower_bound": -5, "allow_neg_eigval": true})"},
    {"mom_linear_attn", "mom_linear_attn", "{}", kSumBound},
    {"rwkv6", "rwkv6"},
    // The first layer's values go into those of the others.
    {"rwkv7", "rwkv7", R"({"num_hidden_layers": 2})"},
    // Time steps from 0.001 on: some states forget as slowly.
    {"mamba", "mamba", "{}", kSlowBound},
    {"falcon_mamba", "falcon_mamba", "{}", kSlowBound},
    {"mamba2", "mamba2", R"({"num_heads": 4, "head_dim": 16})"},
    {"samba", "samba", R"({"num_hidden_layers": 2})", kSlowBound},
    {"attention_full", "transformer", R"({"num_heads": 2, "num_kv_heads": 1})"},
    {"attention_sliding", "transformer",
     R"({"num_heads": 2, "num_kv_heads": 1, "window_size": 300})"},
    {"memory_and_attention", "gla",
     R"({"num_hidden_layers": 2, "attn": {"layers": [1], "num_heads": 2, "window_size": 300}})"},
};

// These, and every memory of which a family gives an example.
std::vector<LongRule> LongRules() {
  std::vector<LongRule> rules(std::begin(kLongRules), std::end(kLongRules));
  for (const Architecture& architecture : Architectures()) {
    if (!IsMatrixExample(architecture)) continue;
    const std::string type = architecture.model_type;
    const auto named = [&](const LongRule& rule) { return rule.name == type; };
    if (std::none_of(std::begin(kLongRules), std::end(kLongRules), named)) {
      rules.push_back({type, type});
    }
  }
  return rules;
}

ModelSpec LongSpec(const LongRule& rule) {
  ModelSpec spec = ConformanceSpecs(rule.model_type).front();
  spec.config.update(nlohmann::ordered_json{{"vocab_size", 32},
                                            {"hidden_size", 32},
                                            {"num_hidden_layers", 1},
                                            {"bos_token_id", nullptr}});
  if (spec.config.contains("intermediate_size")) spec.config["intermediate_size"] = 32;
  spec.config.update(nlohmann::ordered_json::parse(rule.changes));
  return spec;
}

class LongRuleTest : public testing::TestWithParam<std::tuple<LongRule, BackendUnderTest>> {};

TEST_P(LongRuleTest, StaysWithTheReference) {
  const auto& [rule, backend] = GetParam();
  ExpectNoDrift(backend, LongSpec(rule), rule.bound);
}

std::string LongRuleName(
    const testing::TestParamInfo<std::tuple<LongRule, BackendUnderTest>>& info) {
  return absl::StrCat(std::get<0>(info.param).name, "_", std::get<1>(info.param).device);
}

INSTANTIATE_TEST_SUITE_P(Rules, LongRuleTest,
                         testing::Combine(testing::ValuesIn(LongRules()),
                                          testing::Values(AvailableBackends().back())),
                         LongRuleName);

// Families' examples with a head of 64 keys, of which a GPU takes a prompt's entries 64 at a
// time: sums of a chunk have 64 terms more, which is nothing beside 20,000.
std::vector<LongRule> WideRules() {
  std::vector<LongRule> rules;
  for (const LongRule& rule : LongRules()) {
    for (const Architecture* family : MatrixExamples()) {
      if (rule.name == family->model_type) rules.push_back(rule);
    }
  }
  return rules;
}

class WideRuleTest : public LongRuleTest {};

TEST_P(WideRuleTest, StaysWithTheReference) {
  const auto& [rule, backend] = GetParam();
  if (backend.device == "cpu") GTEST_SKIP() << "no kernels of its own for wide heads";
  ModelSpec spec = LongSpec(rule);
  spec.config["hidden_size"] = 64;
  if (spec.config.contains("num_heads") && !spec.config["num_heads"].is_null()) {
    spec.config["num_heads"] = 1;
  }
  for (const char* times : {"expand_k", "expand_v"}) {
    if (spec.config.contains(times)) spec.config[times] = 1.0;
  }
  for (const char* size : {"head_dim", "expand_ratio", "num_slots"}) {
    if (spec.config.contains(size)) spec.config[size] = 64;
  }
  ExpectNoDrift(backend, spec, rule.bound);
}

INSTANTIATE_TEST_SUITE_P(Rules, WideRuleTest,
                         testing::Combine(testing::ValuesIn(WideRules()),
                                          testing::Values(AvailableBackends().back())),
                         LongRuleName);

}  // namespace
}  // namespace mneme
