// Matrix memories of f16 and int8 through whole networks: what that costs in logits, beside what
// rounding the float64 reference's memories as often costs it; and copies of such states.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/golden.h"
#include "tests/models/memory_values.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

constexpr int kDtypeVocab = 259;
constexpr int kManyRows = 24;

struct StateCase {
  BackendUnderTest backend;
  DType dtype = DType::kF32;

  // Null where the backend has no such states.
  std::unique_ptr<Backend> Make(DType compute_dtype = DType::kF32) const {
    BackendOptions options;
    options.compute_dtype = compute_dtype;
    options.state_dtype = dtype;
    if (!backend.isa.empty()) options.isa = backend.isa;
    auto made = MakeBackend(backend.device, options);
    if (!made.ok() || (*made)->state_format().memory_dtype != dtype) return nullptr;
    return *std::move(made);
  }
};

void PrintTo(const StateCase& state_case, std::ostream* out) {
  *out << state_case.backend.device << " " << Name(state_case.dtype);
}

std::vector<StateCase> StateCases(std::vector<DType> dtypes) {
  std::vector<StateCase> cases;
  for (const DType dtype : dtypes) {
    const StateCase one = {AvailableBackends().back(), dtype};
    if (one.Make() != nullptr) cases.push_back(one);
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<StateCase>& info) {
  return info.param.backend.device + "_" + Name(info.param.dtype);
}

struct DtypeNetwork {
  std::string name, folder;
  std::vector<int32_t> tokens;
};

// A sequence fed to a network in steps of equal size by some rows side by side, at the reference's
// routing or, if `free`, at its own. Logits of the last row.
struct Way {
  std::string name;
  int chunk = 1, rows = 1;
  bool free = false;
};

class CoarseStateTest : public testing::TestWithParam<StateCase> {
 protected:
  std::vector<double> Feed(const DtypeNetwork& network, const Way& way, DType state_dtype,
                           const RoutingChoices& choices) const {
    const StateCase with{GetParam().backend, state_dtype};
    const auto driver = Drive(network.folder, with.Make(),
                              {.slots = kManyRows, .max_rows = kManyRows, .max_tokens = 256});
    std::vector<int> steps;
    for (int left = static_cast<int>(network.tokens.size()); left > 0; left -= steps.back()) {
      steps.push_back(std::min(left, way.chunk));
    }
    const ModelInfo& info = driver->model().info();
    RecordedRouting force(driver->backend(),
                          Recut(choices, info.layers, info.top_k, steps, /*rows=*/way.rows));
    if (info.memories > 0 && !way.free) driver->set_routing(&force);
    std::vector<double> logits;
    int64_t at = 0;
    for (const int tokens : steps) {
      std::vector<ModelDriver::Row> batch;
      for (int row = 0; row < way.rows; ++row) {
        batch.push_back({row, std::span(network.tokens).subspan(at, tokens)});
      }
      const auto step = driver->Step(batch);
      CHECK_OK(step.status());
      logits.insert(logits.end(), step->end() - int64_t{tokens} * info.vocab, step->end());
      at += tokens;
    }
    return logits;
  }

  // Prints a line, and checks that the device loses no more than twice what rounding alone costs:
  // that is a sum of thousands of roundings, which have other signs in other arithmetic and the
  // same size. f16 is rounded at each token in the reference, int8 once in 17 (docs/numerics.md):
  // the most that a device does. 2e-5 is what f32 arithmetic may add.
  void Check(const DtypeNetwork& network, const std::vector<Way>& ways) {
    const auto reference = Drive(network.folder, MakeReference(), {.max_tokens = 1024});
    RecordedRouting record(reference->backend());
    const ModelInfo& info = reference->model().info();
    if (info.memories > 0) reference->set_routing(&record);
    const std::vector<double> exact = FeedSlot(*reference, 0, network.tokens);
    reference->Reset(0);
    const DType dtype = GetParam().dtype;
    const double alone =
        RelativeError(FeedRounded(*reference, network.tokens, /*chunk=*/1,
                                  {.dtype = dtype, .held_back = dtype == DType::kI8 ? 16 : 0},
                                  FieldsOf(network.folder, dtype), record.recorded()),
                      exact);
    std::string line;
    for (const Way& way : ways) {
      const auto want = Feed(network, way, DType::kF32, record.recorded());
      const auto got = Feed(network, way, dtype, record.recorded());
      const double error = RelativeError(got, want);
      EXPECT_LE(error, 2 * alone + 2e-5) << network.name << ", " << way.name;
      char numbers[64];
      std::snprintf(numbers, sizeof(numbers), " %.1e (%.1e)", error,
                    WorstRowError(got, want, info.vocab));
      line += ", " + way.name + numbers;
    }
    std::printf("  %-4s %s, %zu tokens: rounding alone %.1e%s\n", Name(dtype), network.name.c_str(),
                network.tokens.size(), alone, line.c_str());
  }
};

// As mom-340m, but narrower: memories of the same keys.
GatedDeltaSpec NarrowMom() {
  GatedDeltaSpec spec = TinySpec("mom-tiny");
  spec.dtype = DType::kBF16;
  spec.config.model_dim = 128;
  spec.config.mlp_dim = 256;
  spec.config.delta.key_dim = 256;
  spec.config.delta.value_dim = 128;
  return spec;
}

// Wide enough for the kernel that takes few rows through all layers. Every memory is chosen by
// every token, so that nobody need force the choice.
GatedDeltaSpec WideMom() {
  GatedDeltaSpec spec = NarrowMom();
  spec.config.model_dim = 512;
  spec.config.mlp_dim = 512;
  spec.config.delta.memories = spec.config.delta.top_k = 2;
  return spec;
}

// The networks of every model_type: its tiny one, and one with heads as wide as kernels are tuned
// for.
struct RuleNetwork {
  std::string name;
  ModelSpec spec;
};
std::vector<RuleNetwork> RuleNetworks() {
  std::vector<RuleNetwork> networks;
  for (const Architecture& architecture : Architectures()) {
    const std::string model_type(architecture.model_type);
    ModelSpec spec = ConformanceSpecs(model_type).front();
    networks.push_back({model_type, spec});
    if (!spec.config.contains("hidden_size")) continue;
    spec.config["hidden_size"] = 256;
    if (model_type == "mamba2") {
      spec.config.update({{"state_size", 128}, {"num_heads", 8}, {"head_dim", 64}});
    } else if (spec.config.contains("head_dim")) {
      spec.config["head_dim"] = model_type == "rwkv7" ? 64 : 128;
    }
    if (spec.config.contains("expand_ratio")) spec.config["expand_ratio"] = 128;
    networks.push_back({model_type + ", wide", spec});
  }
  return networks;
}

TEST_P(CoarseStateTest, GoldensLoseWhatRoundingAloneCosts) {
  for (const std::string& name : GatedDeltaGoldens()) {
    Check({name, GoldenFolder(name), ReadGolden(name).long_input_ids},
          {{"prompt", 64}, {"token by token"}, {"24 rows", 1, kManyRows}});
  }
}

TEST_P(CoarseStateTest, RandomNetworksLoseWhatRoundingAloneCosts) {
  const TestFolder narrow, wide, gdn;
  MakeFolder(NarrowMom(), narrow);
  MakeFolder(WideMom(), wide);
  GatedDeltaSpec spec = TinySpec("gdn-tiny");
  spec.dtype = DType::kBF16;
  spec.config.delta.key_dim = spec.config.delta.value_dim = 128;
  MakeFolder(spec, gdn);
  const std::vector<int32_t> tokens = RandomTokens(640, kDtypeVocab, /*seed=*/1);
  Check({"narrow mom", narrow.path(), tokens},
        {{"prompt", 64}, {"token by token"}, {"24 rows", 1, kManyRows}});
  Check({"gated deltanet", gdn.path(), tokens},
        {{"prompt", 64}, {"token by token"}, {"24 rows", 1, kManyRows}});
  Check({"wide mom", wide.path(), {tokens.begin(), tokens.begin() + 320}},
        {{"token by token", 1, 1, /*free=*/true}, {"2 rows", 1, 2, /*free=*/true}});
}

TEST_P(CoarseStateTest, EveryRuleLosesWhatRoundingAloneCosts) {
  for (const RuleNetwork& rule : RuleNetworks()) {
    const TestFolder folder;
    MakeFolder(rule.spec, folder);
    if (FieldsOf(folder.path(), GetParam().dtype).empty()) continue;
    Check({rule.name, folder.path(), RandomTokens(320, kDtypeVocab, /*seed=*/3)},
          {{"prompt", 64}, {"token by token"}, {"24 rows", 1, kManyRows}});
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CoarseStateTest);
INSTANTIATE_TEST_SUITE_P(Backends, CoarseStateTest,
                         testing::ValuesIn(StateCases({DType::kF16, DType::kI8})), CaseName);

// The reference's own loss grows as a rounding does: or the bound above would say nothing.
TEST(MemoryRoundingTest, CoarserStoresCostMore) {
  const TestFolder folder;
  MakeFolder(NarrowMom(), folder);
  const auto reference = Drive(folder.path(), MakeReference(), {.max_tokens = 64});
  const std::vector<int32_t> tokens = RandomTokens(60, kDtypeVocab, /*seed=*/2);
  RecordedRouting record(reference->backend());
  reference->set_routing(&record);
  const std::vector<double> exact = FeedSlot(*reference, 0, tokens);
  const auto error = [&](DType dtype, int held_back) {
    reference->Reset(0);
    return RelativeError(FeedRounded(*reference, tokens, /*chunk=*/1, {dtype, held_back},
                                     FieldsOf(folder.path(), dtype), record.recorded()),
                         exact);
  };
  const double half = error(DType::kF16, 0), ints = error(DType::kI8, 16);
  EXPECT_GT(half, 0x1p-15);
  EXPECT_LT(half, 0x1p-8);
  EXPECT_GT(ints, 4 * half);
  EXPECT_LT(error(DType::kF16, 16), half);
  EXPECT_GT(error(DType::kI8, 0), ints);
}

// That of each rule is as large as of a memory whose rows are rounded by 2^-11 of their elements at
// a time: a token's own rounding, and those of as many tokens before it as are remembered, at most
// all of them and with one sign, in at most all layers.
TEST(MemoryRoundingTest, EveryRuleThatMayBeF16LosesAFewOfItsRoundings) {
  constexpr int kTokens = 60;
  std::set<std::string> half, ints;
  for (const RuleNetwork& rule : RuleNetworks()) {
    SCOPED_TRACE(rule.name);
    const TestFolder folder;
    MakeFolder(rule.spec, folder);
    const std::set<std::string> fields = FieldsOf(folder.path(), DType::kF16);
    if (!FieldsOf(folder.path(), DType::kI8).empty()) ints.insert(rule.spec.config["model_type"]);
    if (fields.empty()) continue;
    half.insert(rule.spec.config["model_type"]);
    const auto reference = Drive(folder.path(), MakeReference(), {.max_tokens = 64});
    const ModelInfo& info = reference->model().info();
    const std::vector<int32_t> tokens = RandomTokens(kTokens, kDtypeVocab, /*seed=*/4);
    RecordedRouting record(reference->backend());
    if (info.memories > 0) reference->set_routing(&record);
    const std::vector<double> exact = FeedSlot(*reference, 0, tokens);
    reference->Reset(0);
    const double error = RelativeError(
        FeedRounded(*reference, tokens, /*chunk=*/1, {DType::kF16, 0}, fields, record.recorded()),
        exact);
    std::printf("  %s: rounding each token costs %.1e\n", rule.name.c_str(), error);
    EXPECT_GT(error, 0x1p-18);
    EXPECT_LT(error, info.layers * kTokens * 0x1p-11);
  }
  // As their families say.
  std::set<std::string> may_be_half, may_be_ints;
  for (const Architecture& architecture : Architectures()) {
    const DType coarsest = architecture.coarsest_state;
    if (coarsest != DType::kF32) may_be_half.insert(architecture.model_type);
    if (coarsest == DType::kI8) may_be_ints.insert(architecture.model_type);
  }
  EXPECT_EQ(half, may_be_half);
  EXPECT_EQ(ints, may_be_ints);
}

// Copies of a state that holds writes back: forks, and bytes that are kept and brought back. A
// device may have memories fold their pending writes at other tokens from slot to slot, so that
// they do not all do it in one step; 17 slots on, past 16 writes, it is the same again.
class StateCopyTest : public testing::TestWithParam<StateCase> {
 protected:
  static constexpr int kAlike = 17, kSlots = kAlike + 1;
  struct Setting {
    std::string name;
    GatedDeltaSpec spec;
    DType compute;
  };
  static std::vector<Setting> Settings() {
    return {{"tiny mom", TinySpec("mom-tiny"), DType::kF32},
            {"tiny gdn", TinySpec("gdn-tiny"), DType::kF32},
            {"narrow mom", NarrowMom(), DType::kBF16},
            {"wide mom", WideMom(), DType::kBF16}};
  }
  std::unique_ptr<ModelDriver> Start(const Setting& setting, const TestFolder& folder) const {
    MakeFolder(setting.spec, folder);
    auto driver = Drive(folder.path(), GetParam().Make(setting.compute),
                        {.slots = kSlots, .max_rows = kSlots, .max_tokens = 64});
    FeedSlot(*driver, 0, start_, {30, 1});  // a prompt, then tokens that may be pending
    return driver;
  }
  std::vector<double> Continue(ModelDriver& driver, int slot) const {
    return FeedSlot(driver, slot, rest_, {1, 1, 1, 1, 1, 8, 1});
  }
  // The error of logits where a memory is rounded once more: each row of a matrix moves by a part
  // of its norm, 2^-11 with f16 and with int8 a 254th of the largest, which is below five times the
  // root mean square. That is in the output of each layer, and as with rounded products four times
  // in what comes of it.
  static double OneRounding(const Setting& setting) {
    const double rounding = GetParam().dtype == DType::kI8    ? 5.0 / 254
                            : GetParam().dtype == DType::kF16 ? 0x1p-11
                                                              : 0;
    return 1e-5 + 4 * setting.spec.config.layers * rounding;
  }

  const std::vector<int32_t> start_ = RandomTokens(53, kDtypeVocab, /*seed=*/1);
  const std::vector<int32_t> rest_ = RandomTokens(60, kDtypeVocab, /*seed=*/2);
};

TEST_P(StateCopyTest, AForkGoesOnAsItsParentBitForBit) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(setting.name);
    const TestFolder folder;
    const auto driver = Start(setting, folder);
    driver->Fork(0, kAlike);
    driver->Fork(0, 3);
    const std::vector<std::byte> fork = driver->ReadSlab(kAlike);
    EXPECT_EQ(fork, driver->ReadSlab(0));
    const std::vector<double> want = Continue(*driver, 0);
    EXPECT_EQ(driver->ReadSlab(kAlike), fork) << "its parent's tokens reached the fork";
    EXPECT_THAT(Continue(*driver, kAlike), HasSameBits(want));
    EXPECT_EQ(driver->ReadSlab(kAlike), driver->ReadSlab(0));
    if (setting.compute == DType::kBF16) continue;  // which would round more
    // Each of the two is rounded where the other is not.
    EXPECT_LE(RelativeError(Continue(*driver, 3), want), 2 * OneRounding(setting));
  }
}

TEST_P(StateCopyTest, ASavedStateComesBackBitForBit) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(setting.name);
    const TestFolder folder, other_folder;
    const auto driver = Start(setting, folder);
    const std::vector<std::byte> neighbour = driver->ReadSlab(1);
    driver->Settle(0);
    EXPECT_EQ(driver->ReadSlab(1), neighbour) << "settling one slab changed another";
    const std::vector<std::byte> saved = driver->ReadSlab(0);
    const int64_t position = driver->position(0);
    driver->Settle(0);
    EXPECT_EQ(driver->ReadSlab(0), saved) << "settling twice is settling once";
    const std::vector<double> want = Continue(*driver, 0);

    // In a slot that another session used, and on another device.
    FeedSlot(*driver, kAlike, rest_);
    driver->WriteSlab(kAlike, saved, position);
    EXPECT_EQ(driver->ReadSlab(kAlike), saved);
    EXPECT_THAT(Continue(*driver, kAlike), HasSameBits(want));
    EXPECT_EQ(driver->ReadSlab(kAlike), driver->ReadSlab(0));
    const auto other = Start(setting, other_folder);
    other->WriteSlab(0, saved, position);
    EXPECT_THAT(Continue(*other, 0), HasSameBits(want));
    EXPECT_EQ(other->ReadSlab(0), driver->ReadSlab(0));
  }
}

TEST_P(StateCopyTest, SettlingMovesAContinuationByOneRounding) {
  for (const Setting& setting : Settings()) {
    if (setting.compute == DType::kBF16) continue;  // which would round more
    SCOPED_TRACE(setting.name);
    const TestFolder folder;
    const auto driver = Start(setting, folder);
    driver->Fork(0, kAlike);
    driver->Settle(kAlike);
    const double error = RelativeError(Continue(*driver, kAlike), Continue(*driver, 0));
    EXPECT_LE(error, OneRounding(setting));
    std::printf("  %s, %s: settled or not, logits differ by %.1e\n", Name(GetParam().dtype),
                setting.name.c_str(), error);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, StateCopyTest,
                         testing::ValuesIn(StateCases({DType::kF32, DType::kF16, DType::kI8})),
                         CaseName);

}  // namespace
}  // namespace mneme
