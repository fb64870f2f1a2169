// Steps of decode rows alone, few and many, which a device may take as fused operations.
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tests/support/random_values.h"

namespace mneme {
namespace {

constexpr int kVocab = 259;

struct Network {
  std::string name;
  ModelSpec spec;
};

std::vector<Network> Networks() {
  std::vector<Network> networks;
  const auto add = [&](const std::string& name, const std::string& shape, auto change) {
    networks.push_back({name, TinySpec(shape)});
    change(networks.back().spec.config);
  };
  const auto set_heads = [](ModelConfig& config, int key_dim, int value_dim) {
    config.delta.key_dim = key_dim;
    config.delta.value_dim = value_dim;
  };
  add("mom", "mom-tiny", [](ModelConfig&) {});
  add("mom, heads of 64", "mom-tiny", [&](ModelConfig& config) { set_heads(config, 64, 64); });
  add("mom, heads of 256, values of 128", "mom-tiny",
      [&](ModelConfig& config) { set_heads(config, 256, 128); });
  add("mom, one projection for all memories", "mom-tiny", [&](ModelConfig& config) {
    set_heads(config, 128, 128);
    config.delta.single_kv_proj = true;
  });
  add("mom, no shared memory", "mom-tiny",
      [](ModelConfig& config) { config.delta.shared_memory = false; });
  add("mom, 8 memories, top 3, no gate, convolutions of 2", "mom-tiny", [](ModelConfig& config) {
    config.delta.memories = 8;
    config.delta.top_k = 3;
    config.delta.output_gate = false;
    config.delta.conv_width = 2;
  });
  add("gated deltanet", "gdn-tiny", [](ModelConfig&) {});
  add("gated deltanet, grouped heads of 64", "gdn-tiny", [&](ModelConfig& config) {
    set_heads(config, 64, 64);
    config.delta.value_heads = 2 * config.delta.heads;
    config.delta.allow_negative_eigenvalues = true;
  });
  return networks;
}

// Wide enough for the kernel that takes few rows through all layers.
std::vector<Network> WideNetworks() {
  std::vector<Network> networks;
  const auto add = [&](const std::string& name, const std::string& shape, int key_dim,
                       int value_dim, auto change) {
    networks.push_back({"wide " + name, TinySpec(shape)});
    ModelConfig& config = networks.back().spec.config;
    config.model_dim = 512;
    config.mlp_dim = 1280;
    config.layers = 3;
    config.delta.key_dim = key_dim;
    config.delta.value_dim = value_dim;
    change(config.delta);
  };
  add("mom", "mom-tiny", 256, 256, [](DeltaMixerConfig&) {});
  networks.back().spec.config.vocab = 30011;  // too many for the head to be multiplied at once
  add("mom, 8 memories, top 3, not shared, no gate", "mom-tiny", 128, 128,
      [](DeltaMixerConfig& delta) {
        delta.memories = 8;
        delta.top_k = 3;
        delta.shared_memory = false;
        delta.output_gate = false;
        delta.conv_width = 2;
      });
  add("mom, one projection for all memories", "mom-tiny", 128, 256,
      [](DeltaMixerConfig& delta) { delta.single_kv_proj = true; });
  add("gated deltanet, grouped heads", "gdn-tiny", 128, 64, [](DeltaMixerConfig& delta) {
    delta.value_heads = 2 * delta.heads;
    delta.allow_negative_eigenvalues = true;
  });
  return networks;
}

class DecodeBatchTest : public testing::TestWithParam<BackendUnderTest> {};

// Prompts of one to five tokens, then steps of so many rows, one of them padding. Routing is the
// reference's, or, if `free`, its own: watched steps go layer by layer.
void ExpectReference(const BackendUnderTest& backend, const Network& network, DType weights,
                     DType compute, int slot_count, const std::vector<int>& row_counts,
                     double bound, bool free = false) {
  ModelSpec spec = network.spec;
  spec.dtype = weights;
  SCOPED_TRACE(testing::Message() << network.name << ", weights " << Name(weights));
  const TestFolder folder;
  MakeFolder(spec, folder);
  const ModelDriver::Limits limits{
      .slots = slot_count, .max_rows = slot_count + 1, .max_tokens = 8 * slot_count};
  const auto reference = Drive(folder.path(), MakeReference(), limits);
  const auto device = Drive(folder.path(), backend.Make(/*threads=*/2, compute), limits);

  SeededRandom random(1);
  std::vector<std::vector<std::vector<int32_t>>> steps_tokens;
  std::vector<std::vector<int>> steps_slots;
  std::vector<int> all(slot_count);
  std::iota(all.begin(), all.end(), 0);
  steps_slots.push_back(all);
  steps_tokens.emplace_back();
  for (int slot = 0; slot < slot_count; ++slot) {
    steps_tokens.back().push_back(RandomTokens(1 + slot % 5, kVocab, slot + 1));
  }
  for (const int rows : row_counts) {
    const std::vector<int> order = random.Permutation(slot_count);
    std::vector<int> slots(order.begin(), order.begin() + rows);
    if (rows > 1) slots.insert(slots.begin() + random.Int(0, rows), -1);
    steps_tokens.emplace_back();
    for (size_t row = 0; row < slots.size(); ++row) {
      steps_tokens.back().push_back({random.Int(0, kVocab - 1)});
    }
    steps_slots.push_back(std::move(slots));
  }

  const auto run = [&](ModelDriver& driver) {
    std::vector<std::vector<double>> logits;
    for (size_t step = 0; step < steps_slots.size(); ++step) {
      std::vector<ModelDriver::Row> rows;
      std::vector<int32_t> wanted;
      int32_t tokens = 0;
      for (size_t row = 0; row < steps_slots[step].size(); ++row) {
        const std::vector<int32_t>& fed = steps_tokens[step][row];
        rows.push_back({steps_slots[step][row], fed});
        tokens += static_cast<int32_t>(fed.size());
        if (steps_slots[step][row] >= 0) wanted.push_back(tokens - 1);
      }
      const auto result = driver.Step(rows, wanted);
      CHECK_OK(result.status());
      logits.emplace_back(result->begin(), result->end());
    }
    return logits;
  };
  RecordedRouting record(reference->backend());
  reference->set_routing(&record);
  const auto want = run(*reference);
  RecordedRouting force(device->backend(), record.recorded());
  if (!free) device->set_routing(&force);
  const auto got = run(*device);
  double worst = 0;
  for (size_t step = 0; step < want.size(); ++step) {
    ASSERT_EQ(got[step].size(), want[step].size());
    const double error = RelativeError(got[step], want[step]);
    EXPECT_LE(error, bound) << "step " << step << ", " << steps_slots[step].size() << " rows";
    worst = std::max(worst, error);
  }
  std::printf("  %s, %s: worst relative error %.2e\n", network.name.c_str(), Name(weights), worst);
}

TEST_P(DecodeBatchTest, RowsOfEveryNumberMatchTheReference) {
  for (const Network& network : Networks()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ExpectReference(GetParam(), network, dtype, DType::kF32, /*slot_count=*/40,
                      {1, 2, 3, 7, 9, 40, 40, 2, 1, 17}, /*bound=*/2e-5);
    }
  }
}

TEST_P(DecodeBatchTest, FewRowsOfWideNetworksMatchTheReference) {
  for (const Network& network : WideNetworks()) {
    for (const bool free : {false, true}) {
      ExpectReference(GetParam(), network, DType::kBF16, DType::kF32, /*slot_count=*/12,
                      {1, 2, 12, 1, 1, 2, 2, 3, 1}, /*bound=*/2e-5, free);
    }
  }
}

// With rounded activations, which devices have other ways for. The worst seen is 3.1e-2, of prompts
// as of steps and on every device: models as narrow as most of these average little out.
TEST_P(DecodeBatchTest, RoundedRowsOfEveryNumberMatchTheReference) {
  constexpr double kBound = 6e-2;
  for (const Network& network : Networks()) {
    ExpectReference(GetParam(), network, DType::kBF16, DType::kBF16, /*slot_count=*/150,
                    {1, 3, 9, 16, 31, 70, 127, 150}, kBound);
  }
  const auto wide = [](const std::string& name, const std::string& shape) {
    Network network{"wide " + name, TinySpec(shape)};
    network.spec.config.model_dim = 512;
    network.spec.config.mlp_dim = 576;
    network.spec.config.layers = 1;
    network.spec.config.delta.key_dim = network.spec.config.delta.value_dim = 128;
    return network;
  };
  for (const char* shape : {"mom-tiny", "gdn-tiny"}) {
    ExpectReference(GetParam(), wide(shape, shape), DType::kBF16, DType::kBF16, /*slot_count=*/420,
                    {5, 15, 31, 45, 127, 140, 250, 340, 300, 16, 420, 390}, kBound);
  }
  Network one_projection = wide("mom, one projection for all memories", "mom-tiny");
  one_projection.spec.config.delta.single_kv_proj = true;
  ExpectReference(GetParam(), one_projection, DType::kBF16, DType::kBF16, /*slot_count=*/400,
                  {400, 390}, kBound);
}

// So many memories that those that fold take turns with the others (gated_delta_fold_order.h): each
// row feeds more tokens than a memory holds back.
TEST_P(DecodeBatchTest, ManyMemoriesFoldAmongOthers) {
  Network network{"mom, four heads of 128", TinySpec("mom-tiny")};
  ModelConfig& config = network.spec.config;
  config.model_dim = 512;
  config.mlp_dim = 64;
  config.layers = 1;
  config.delta.heads = config.delta.value_heads = 4;
  config.delta.key_dim = config.delta.value_dim = 128;
  ExpectReference(GetParam(), network, DType::kBF16, DType::kBF16, /*slot_count=*/240,
                  std::vector<int>(19, 230), /*bound=*/6e-2);
}

// Rows without tokens among rows of one token each.
TEST_P(DecodeBatchTest, EmptyRowsDisturbNobody) {
  for (const char* shape : {"mom-tiny", "gdn-tiny"}) {
    const TestFolder folder;
    MakeFolder(TinySpec(shape), folder);
    const ModelDriver::Limits limits{.slots = 6, .max_rows = 6, .max_tokens = 16};
    const auto alone = Drive(folder.path(), GetParam().Make(), limits);
    const auto among = Drive(folder.path(), GetParam().Make(), limits);
    const std::vector<int32_t> tokens = RandomTokens(30, kVocab, /*seed=*/1);
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

}  // namespace
}  // namespace mneme
