// Steps of decode rows alone, few and many, which a device may take as fused operations.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

constexpr int kBatchVocab = 259;

struct BatchNetwork {
  std::string name;
  GatedDeltaSpec spec;
};

std::vector<BatchNetwork> BatchNetworks() {
  std::vector<BatchNetwork> networks;
  const auto add = [&](const std::string& name, const std::string& shape, auto change) {
    networks.push_back({name, TinySpec(shape)});
    change(networks.back().spec.config);
  };
  const auto set_heads = [](GatedDeltaSpecConfig& config, int key_dim, int value_dim) {
    config.delta.key_dim = key_dim;
    config.delta.value_dim = value_dim;
  };
  add("mom", "mom-tiny", [](GatedDeltaSpecConfig&) {});
  add("mom, heads of 64", "mom-tiny",
      [&](GatedDeltaSpecConfig& config) { set_heads(config, 64, 64); });
  add("mom, heads of 256, values of 128", "mom-tiny",
      [&](GatedDeltaSpecConfig& config) { set_heads(config, 256, 128); });
  add("mom, one projection for all memories", "mom-tiny", [&](GatedDeltaSpecConfig& config) {
    set_heads(config, 128, 128);
    config.delta.single_kv_proj = true;
  });
  add("mom, no shared memory", "mom-tiny",
      [](GatedDeltaSpecConfig& config) { config.delta.shared_memory = false; });
  add("mom, 8 memories, top 3, no gate, convolutions of 2", "mom-tiny",
      [](GatedDeltaSpecConfig& config) {
        config.delta.memories = 8;
        config.delta.top_k = 3;
        config.delta.output_gate = false;
        config.delta.conv_width = 2;
      });
  add("gated deltanet", "gdn-tiny", [](GatedDeltaSpecConfig&) {});
  add("gated deltanet, grouped heads of 64", "gdn-tiny", [&](GatedDeltaSpecConfig& config) {
    set_heads(config, 64, 64);
    config.delta.value_heads = 2 * config.delta.heads;
    config.delta.allow_negative_eigenvalues = true;
  });
  add("mom, attention in the second of three layers", "mom-tiny",
      [](GatedDeltaSpecConfig& config) { config.layers = 3; });
  networks.back().spec.attn = {{"layers", {1}}, {"num_heads", 4}, {"num_kv_heads", 2}};
  return networks;
}

// Wide enough for the kernel that takes few rows through all layers.
std::vector<BatchNetwork> WideNetworks() {
  std::vector<BatchNetwork> networks;
  const auto add = [&](const std::string& name, const std::string& shape, int key_dim,
                       int value_dim, auto change) {
    networks.push_back({"wide " + name, TinySpec(shape)});
    GatedDeltaSpecConfig& config = networks.back().spec.config;
    config.model_dim = 512;
    config.mlp_dim = 1280;
    config.layers = 3;
    config.delta.key_dim = key_dim;
    config.delta.value_dim = value_dim;
    change(config.delta);
  };
  add("mom", "mom-tiny", 256, 256, [](GatedDeltaConfig&) {});
  networks.back().spec.config.vocab = 30011;  // too many for the head to be multiplied at once
  add("mom, 8 memories, top 3, not shared, no gate", "mom-tiny", 128, 128,
      [](GatedDeltaConfig& delta) {
        delta.memories = 8;
        delta.top_k = 3;
        delta.shared_memory = false;
        delta.output_gate = false;
        delta.conv_width = 2;
      });
  add("mom, one projection for all memories", "mom-tiny", 128, 256,
      [](GatedDeltaConfig& delta) { delta.single_kv_proj = true; });
  add("gated deltanet, grouped heads", "gdn-tiny", 128, 64, [](GatedDeltaConfig& delta) {
    delta.value_heads = 2 * delta.heads;
    delta.allow_negative_eigenvalues = true;
  });
  // Runs of layers of different lengths, with the last layer in one of them, and without.
  add("mom, attention in the second of four layers", "mom-tiny", 128, 128,
      [](GatedDeltaConfig&) {});
  networks.back().spec.config.layers = 4;
  networks.back().spec.attn = {{"layers", {1}}, {"num_heads", 8}, {"num_kv_heads", 2}};
  add("gated deltanet, attention to a window in the first and the last layer", "gdn-tiny", 128, 128,
      [](GatedDeltaConfig&) {});
  networks.back().spec.config.layers = 4;
  networks.back().spec.attn = {{"layers", {0, 3}}, {"num_heads", 8}, {"window_size", 5}};
  return networks;
}

class DecodeBatchTest : public testing::TestWithParam<BackendUnderTest> {};
// BatchNetworks so wide, or of so many memories, that a GPU has other kernels for them. A CPU has
// not.
class LargeDecodeBatchTest : public DecodeBatchTest {
 protected:
  void SetUp() override {
    if (GetParam().device != "cuda") GTEST_SKIP() << "narrow networks take the same paths";
  }
};

// Padding rows of a step: none, one in front, behind, or anywhere among the others.
enum class Padding { kNone, kFirst, kLast, kAnywhere };
struct StepRows {
  int rows = 1;
  Padding padding = Padding::kNone;
};

// Steps of so many rows, those of more than one with a padding row.
std::vector<StepRows> Padded(const std::vector<int>& row_counts) {
  std::vector<StepRows> steps;
  for (const int rows : row_counts) {
    steps.push_back({rows, rows > 1 ? Padding::kAnywhere : Padding::kNone});
  }
  return steps;
}

// One row and two, and one beside a padding row on either side.
std::vector<StepRows> OneOrTwoRows() {
  std::vector<StepRows> steps;
  for (int i = 0; i < 2; ++i) {
    steps.insert(steps.end(), {{1}, {2}, {1, Padding::kFirst}, {2}, {1, Padding::kLast}, {1}, {2}});
  }
  return steps;
}

// Prompts of one to five tokens to all slots in one step, if `prompts`, then steps of decode rows.
// Routing is the reference's, or, if `free`, its own: watched steps go layer by layer.
struct Feeding {
  int slot_count = 1;
  std::vector<StepRows> steps;
  bool prompts = true;
  bool free = false;
};

// Errors of logits, relative in norm.
struct Errors {
  double all = 0;   // of all steps together
  double step = 0;  // of the worst step
};

struct Step {
  std::vector<int> slots;
  std::vector<std::vector<int32_t>> tokens;  // of each row
};

std::vector<Step> MakeSteps(const Feeding& feeding) {
  SeededRandom random(1);
  std::vector<Step> steps;
  if (feeding.prompts) {
    Step& prompts = steps.emplace_back();
    for (int slot = 0; slot < feeding.slot_count; ++slot) {
      prompts.slots.push_back(slot);
      prompts.tokens.push_back(RandomTokens(1 + slot % 5, kBatchVocab, slot + 1));
    }
  }
  for (const auto& [rows, padding] : feeding.steps) {
    const std::vector<int> order = random.Permutation(feeding.slot_count);
    Step& step = steps.emplace_back();
    step.slots.assign(order.begin(), order.begin() + rows);
    if (padding != Padding::kNone) {
      const int place = padding == Padding::kFirst  ? 0
                        : padding == Padding::kLast ? rows
                                                    : random.Int(0, rows);
      step.slots.insert(step.slots.begin() + place, -1);
    }
    for (size_t row = 0; row < step.slots.size(); ++row) {
      step.tokens.push_back({random.Int(0, kBatchVocab - 1)});
    }
  }
  return steps;
}

// The logits after each row of each step, less padding rows.
std::vector<std::vector<double>> Run(ModelDriver& driver, const std::vector<Step>& steps) {
  std::vector<std::vector<double>> logits;
  for (const Step& step : steps) {
    std::vector<ModelDriver::Row> rows;
    std::vector<int32_t> wanted;
    int32_t tokens = 0;
    for (size_t row = 0; row < step.slots.size(); ++row) {
      rows.push_back({step.slots[row], step.tokens[row]});
      tokens += static_cast<int32_t>(step.tokens[row].size());
      if (step.slots[row] >= 0) wanted.push_back(tokens - 1);
    }
    const auto result = driver.Step(rows, wanted);
    CHECK_OK(result.status());
    logits.emplace_back(result->begin(), result->end());
  }
  return logits;
}

// The errors of each backend.
std::vector<Errors> ErrorsOf(std::vector<std::unique_ptr<Backend>> backends,
                             const BatchNetwork& network, DType weights, const Feeding& feeding) {
  GatedDeltaSpec spec = network.spec;
  spec.dtype = weights;
  const TestFolder folder;
  MakeFolder(spec, folder);
  const int slots = feeding.slot_count;
  const ModelDriver::Limits limits{.slots = slots, .max_rows = slots + 1, .max_tokens = 8 * slots};
  const std::vector<Step> steps = MakeSteps(feeding);
  const auto reference = Drive(folder.path(), MakeReference(), limits);
  RecordedRouting record(reference->backend());
  reference->set_routing(&record);
  const auto want = Run(*reference, steps);

  std::vector<Errors> list;
  for (std::unique_ptr<Backend>& backend : backends) {
    const DType state = backend->state_format().memory_dtype;
    const auto device = Drive(folder.path(), std::move(backend), limits);
    RecordedRouting force(device->backend(), record.recorded());
    if (!feeding.free) device->set_routing(&force);
    const auto got = Run(*device, steps);
    Errors& errors = list.emplace_back();
    std::vector<double> all_want, all_got;
    for (size_t step = 0; step < steps.size(); ++step) {
      CHECK_EQ(got[step].size(), want[step].size());
      const double error = RelativeError(got[step], want[step]);
      CHECK(!std::isnan(error)) << "step " << step;
      errors.step = std::max(errors.step, error);
      all_want.insert(all_want.end(), want[step].begin(), want[step].end());
      all_got.insert(all_got.end(), got[step].begin(), got[step].end());
    }
    errors.all = RelativeError(all_got, all_want);
    std::printf("  %s%s, weights %s, state %s: error %.1e, worst step %.1e\n", network.name.c_str(),
                feeding.free ? ", routing of its own" : "", Name(weights), Name(state), errors.all,
                errors.step);
  }
  return list;
}

// The most that errors of f32 arithmetic may come to in such networks.
constexpr double kExact = 2e-5;

void ExpectExact(const BackendUnderTest& backend, const BatchNetwork& network, DType weights,
                 const Feeding& feeding) {
  SCOPED_TRACE(testing::Message() << network.name << ", weights " << Name(weights));
  std::vector<std::unique_ptr<Backend>> backends;
  backends.push_back(backend.Make());
  for (const Errors& errors : ErrorsOf(std::move(backends), network, weights, feeding)) {
    EXPECT_LE(errors.step, kExact);
  }
}

TEST_P(DecodeBatchTest, RowsOfEveryNumberMatchTheReference) {
  for (const BatchNetwork& network : BatchNetworks()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ExpectExact(GetParam(), network, dtype,
                  {.slot_count = 40, .steps = Padded({1, 2, 3, 7, 9, 40, 40, 2, 1, 17})});
    }
  }
}

TEST_P(LargeDecodeBatchTest, FewRowsOfWideNetworksMatchTheReference) {
  std::vector<StepRows> steps = Padded({1, 2, 12, 1, 1, 2, 2, 3, 1});
  for (const StepRows& more : OneOrTwoRows()) steps.push_back(more);
  for (const BatchNetwork& network : WideNetworks()) {
    for (const bool free : {false, true}) {
      ExpectExact(GetParam(), network, DType::kBF16,
                  {.slot_count = 12, .steps = steps, .free = free});
    }
  }
}

// The error that coarse matrices add to a layer's output, as docs/numerics.md has it ("Matrices
// of f16 and int8"), each rounding at half its bound and all of one sign. f16: 2^-11 at each token,
// and twice that of the write that it holds back. int8: sqrt(key_dim) max |s_d| / 254 of a row, of
// which the largest element is below five times the root mean square; when a memory is first
// written or a prompt ends, and once in 17 tokens.
double StateError(DType state, int tokens) {
  if (state == DType::kF16) return (tokens + 2) * 0x1p-12;
  if (state == DType::kI8) return (1 + (tokens + 16) / 17) * 2.5 / 254;
  return 0;
}

// The error of all logits, in norm, by rounded products: docs/numerics.md, "Compute dtype bf16". In
// each layer four products one behind the other, what projections give, which is rounded in windows
// and gates, and the router's logits; then the head. An estimate, no worst case: it takes roundings
// at half their bound and adds them up as if of one sign.
double Estimate(const GatedDeltaSpecConfig& config, DType state, const Feeding& feeding) {
  const int roundings = config.delta.memories > 0 ? 6 : 5;
  const int tokens = (feeding.prompts ? 5 : 0) + static_cast<int>(feeding.steps.size());
  return kUnitBF16 / 2 * (roundings * config.layers + 1) +
         config.layers * StateError(state, tokens);
}

// A step may have one row, whose error is not all rows'. What it is made of is independent, six
// roundings or more of about one size: a sum of so many squares is four times what is expected with
// a chance of 5e-4, and the estimate is above what is expected.
constexpr double kStepOverAll = 2;

// With matrices of every dtype that the backend has.
void ExpectRounded(const BackendUnderTest& backend, const BatchNetwork& network,
                   const Feeding& feeding) {
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<DType> states;
  for (const DType state : {DType::kF32, DType::kF16, DType::kI8}) {
    BackendOptions options;
    options.compute_dtype = DType::kBF16;
    options.state_dtype = state;
    if (!backend.isa.empty()) options.isa = backend.isa;
    auto made = MakeBackend(backend.device, options);
    if (!made.ok() || (*made)->state_format().memory_dtype != state) continue;
    backends.push_back(*std::move(made));
    states.push_back(state);
  }
  ASSERT_EQ(backends.size(), backend.device == "cuda" ? 3 : 1);
  const auto list = ErrorsOf(std::move(backends), network, DType::kBF16, feeding);
  for (size_t i = 0; i < list.size(); ++i) {
    SCOPED_TRACE(testing::Message() << network.name << ", state " << Name(states[i]));
    const double estimate = Estimate(network.spec.config, states[i], feeding);
    EXPECT_LE(list[i].all, estimate);
    EXPECT_LE(list[i].step, kStepOverAll * estimate);
  }
}

// With rounded activations, which devices have other ways for.
TEST_P(DecodeBatchTest, RoundedRowsOfEveryNumberMatchTheReference) {
  for (const BatchNetwork& network : BatchNetworks()) {
    ExpectRounded(GetParam(), network,
                  {.slot_count = 150, .steps = Padded({1, 3, 9, 16, 31, 70, 127, 150})});
  }
}

TEST_P(LargeDecodeBatchTest, ManyRoundedRowsOfWideNetworksMatchTheReference) {
  const auto wide = [](const std::string& name, const std::string& shape) {
    BatchNetwork network{"wide " + name, TinySpec(shape)};
    network.spec.config.model_dim = 512;
    network.spec.config.mlp_dim = 576;
    network.spec.config.layers = 1;
    network.spec.config.delta.key_dim = network.spec.config.delta.value_dim = 128;
    return network;
  };
  for (const char* shape : {"mom-tiny", "gdn-tiny"}) {
    ExpectRounded(GetParam(), wide(shape, shape),
                  {.slot_count = 420,
                   .steps = Padded({5, 15, 31, 45, 127, 140, 250, 340, 300, 16, 420, 390})});
  }
  BatchNetwork one_projection = wide("mom, one projection for all memories", "mom-tiny");
  one_projection.spec.config.delta.single_kv_proj = true;
  ExpectRounded(GetParam(), one_projection, {.slot_count = 400, .steps = Padded({400, 390})});
}

// As a server has few rows: windows are rounded, and prompts' products. Where routing is its own,
// every memory is every token's, as rounded logits choose others than exact ones. Without prompts
// no other kernel comes in.
TEST_P(LargeDecodeBatchTest, FewRoundedRowsOfWideNetworksMatchTheReference) {
  for (BatchNetwork network : WideNetworks()) {
    for (const bool free : {false, true}) {
      GatedDeltaConfig& delta = network.spec.config.delta;
      if (free) delta.memories = delta.top_k;
      for (const bool prompts : {true, false}) {
        ExpectRounded(GetParam(), network,
                      {.slot_count = 4, .steps = OneOrTwoRows(), .prompts = prompts, .free = free});
      }
    }
  }
}

// So many memories that those that fold take turns with the others
// (matrix_memory/persistent/fold_order.h): each row feeds more tokens than a memory holds back.
TEST_P(LargeDecodeBatchTest, ManyMemoriesFoldAmongOthers) {
  BatchNetwork network{"mom, four heads of 128", TinySpec("mom-tiny")};
  auto& config = network.spec.config;
  config.model_dim = 512;
  config.mlp_dim = 64;
  config.layers = 1;
  config.delta.heads = config.delta.value_heads = 4;
  config.delta.key_dim = config.delta.value_dim = 128;
  ExpectRounded(GetParam(), network,
                {.slot_count = 240, .steps = Padded(std::vector<int>(19, 230))});
}

// Rows without tokens among rows of one token each.
TEST_P(DecodeBatchTest, EmptyRowsDisturbNobody) {
  for (const char* shape : {"mom-tiny", "gdn-tiny"}) {
    const TestFolder folder;
    MakeFolder(TinySpec(shape), folder);
    const ModelDriver::Limits limits{.slots = 6, .max_rows = 6, .max_tokens = 16};
    const auto alone = Drive(folder.path(), GetParam().Make(), limits);
    const auto among = Drive(folder.path(), GetParam().Make(), limits);
    const std::vector<int32_t> tokens = RandomTokens(30, kBatchVocab, /*seed=*/1);
    for (const std::vector<int>& sizes :
         {std::vector{0, 1, 0}, std::vector{1, 0, 1, 1, 0}, std::vector{0, 0, 0, 0, 1, 1}}) {
      std::vector<ModelDriver::Row> with_empty, without;
      for (size_t row = 0; row < sizes.size(); ++row) {
        const auto fed = std::span(tokens).subspan(row, sizes[row]);
        with_empty.push_back({static_cast<int>(row), fed});
        if (!fed.empty()) without.push_back({static_cast<int>(row), fed});
      }
      const auto want = alone->Step(without), got = among->Step(with_empty);
      ASSERT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
      EXPECT_THAT(std::vector<double>(got->begin(), got->end()),
                  IsSame(GetParam().bit_exact(), {want->begin(), want->end()}));
    }
  }
}

// The fastest alone: what differs by instruction set is tested operation by operation.
INSTANTIATE_TEST_SUITE_P(Backends, DecodeBatchTest, testing::Values(AvailableBackends().back()),
                         BackendName);
INSTANTIATE_TEST_SUITE_P(Backends, LargeDecodeBatchTest,
                         testing::Values(AvailableBackends().back()), BackendName);

}  // namespace
}  // namespace mneme
