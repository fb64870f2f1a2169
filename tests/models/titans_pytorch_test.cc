// titans-pytorch's checkpoints: where prompts may end, what is kept, and which tensors are refused.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "models/state_codec.h"
#include "tests/models/config_keys.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/golden.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using testing::HasSubstr;

constexpr char kModelType[] = "titans_mac_lucidrains";

ModelSpec Spec(const char* changes) {
  ModelSpec spec = *SpecOfShape("titans-pytorch-tiny");
  spec.config.update(nlohmann::ordered_json::parse(changes));
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.12;
  return spec;
}

class TitansPytorchTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> MakeBackend() const { return GetParam().Make(); }
};

// Segments are of seven tokens, then three that are none, and steps of a memory of three or four
// positions: forty tokens meet every offset of both together.
TEST_P(TitansPytorchTest, APromptMayEndAnywhere) {
  for (const ModelSpec& spec : ConformanceSpecs(kModelType)) {
    SCOPED_TRACE(spec.config.dump());
    const TestFolder folder;
    MakeFolder(spec, folder);
    const auto driver =
        Drive(folder.path(), MakeBackend(), {.slots = 2, .max_rows = 2, .max_tokens = 64});
    const std::vector<int32_t> text = RandomTokens(44, driver->model().info().vocab, 1);
    const double bound = GetParam().bit_exact() ? 0 : SameBoundOf(*driver, folder.path());
    const std::vector<double> whole = FeedSlot(*driver, 0, text);
    for (size_t end = 1; end < 40; ++end) {
      driver->Reset(1);
      std::vector<double> logits = FeedSlot(*driver, 1, std::span(text).first(end));
      const std::vector<double> rest = FeedSlot(*driver, 1, std::span(text).subspan(end), {1, 2});
      logits.insert(logits.end(), rest.begin(), rest.end());
      EXPECT_THAT(logits, IsSame(GetParam().bit_exact(), whole, bound)) << "a prompt of " << end;
    }
  }
}

// The memories that upstream's forward pass leaves, by the names of its own parameters.
TEST_P(TitansPytorchTest, MemoriesAreUpstreams) {
  int compared = 0;
  for (const std::string& name : GoldenNames()) {
    if (!absl::StartsWith(name, "titans_lucid_")) continue;
    SCOPED_TRACE(name);
    const Golden golden = ReadGolden(name);
    const auto driver =
        Drive(GoldenFolder(name), MakeBackend(), {.slots = 1, .max_rows = 1, .max_tokens = 64});
    FeedSlot(*driver, 0, golden.input_ids);
    const auto state = DecodeState(driver->backend(), driver->model(), driver->Slab(0),
                                   static_cast<int64_t>(golden.input_ids.size()));
    ASSERT_TRUE(state.ok()) << state.status();
    const auto file = SafetensorsFile::Open(GoldenFolder(name) + "/golden.safetensors");
    ASSERT_TRUE(file.ok()) << file.status();
    for (const auto& [copy, field] : {std::pair("final", "memory"),
                                      {"final_momentum", "momentum"},
                                      {"final_anchor", "anchor"}}) {
      for (const StateTensor& tensor : state->tensors) {
        const size_t at = tensor.name.find(absl::StrCat(".", field, ".memory_model_parameters."));
        if (at == std::string::npos) continue;
        const std::string index = tensor.name.substr(tensor.name.rfind('.'));
        const SafetensorsTensor* stored =
            file->header().Find(absl::StrCat(tensor.name.substr(0, at), ".", copy, index));
        ASSERT_NE(stored, nullptr) << tensor.name;
        std::vector<float> values(static_cast<size_t>(stored->elements()));
        std::memcpy(values.data(), file->Bytes(*stored).data(), values.size() * sizeof(float));
        const std::vector<double> want(values.begin(), values.end());
        std::vector<double> got(static_cast<size_t>(tensor.shape.elements()));
        ASSERT_EQ(got.size(), want.size()) << tensor.name;
        for (size_t i = 0; i < got.size(); ++i) {
          float narrow = 0;
          if (tensor.dtype == DType::kF64) {
            std::memcpy(&got[i], tensor.bytes.data() + 8 * i, sizeof(double));
          } else {
            std::memcpy(&narrow, tensor.bytes.data() + 4 * i, sizeof(float));
            got[i] = narrow;
          }
        }
        // A memory feeds its errors back: some ten times what logits may differ by.
        EXPECT_LE(RelativeError(got, want), 2e-4) << tensor.name;
        ++compared;
      }
    }
  }
  if (compared == 0) GTEST_SKIP() << "MNEME_GOLDEN names no folder with such models";
}

INSTANTIATE_TEST_SUITE_P(Backends, TitansPytorchTest, testing::ValuesIn(AllBackends()),
                         BackendName);

// --- Tensors -------------------------------------------------------------------------------------

StoredTensor Filled(const std::vector<int64_t>& shape, float value) {
  int64_t elements = 1;
  for (const int64_t dim : shape) elements *= dim;
  StoredTensor tensor{.dtype = DType::kF32, .shape = shape, .bytes = {}};
  tensor.bytes.resize(static_cast<size_t>(elements) * sizeof(float));
  for (int64_t i = 0; i < elements; ++i) {
    std::memcpy(tensor.bytes.data() + i * 4, &value, sizeof(value));
  }
  return tensor;
}

absl::Status Load(const TestFolder& folder) {
  const auto backend = MakeReference();
  return LoadModel(folder.path(), *backend, nullptr).status();
}

std::vector<double> LogitsOf(const TestFolder& folder) {
  const auto driver =
      Drive(folder.path(), MakeReference(), {.slots = 1, .max_rows = 1, .max_tokens = 64});
  return FeedSlot(*driver, 0, RandomTokens(30, driver->model().info().vocab, 1));
}

TEST(TitansPytorchTensorsTest, WhatUpstreamMakesMemoriesOfIsIgnored) {
  const TestFolder folder;
  MakeFolder(Spec("{}"), folder);
  const std::vector<double> want = LogitsOf(folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  tensors["layers.1.4.memory_model.norm.gamma"] = Filled({16}, 3);
  tensors["layers.1.4.memory_model.model.weights.0"] = Filled({16, 32}, 3);
  tensors["layers.1.4.memory_model.model.weights.1"] = Filled({32, 16}, 3);
  WriteTensors(tensors, folder.File("model.safetensors"));
  EXPECT_THAT(LogitsOf(folder), HasSameBits(want));
  const auto plan = PlanModel(folder.path(), StateFormat{});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(plan->warnings.empty()) << plan->warnings[0];
}

TEST(TitansPytorchTensorsTest, TensorsWithoutElementsMayBeThere) {
  const TestFolder folder;
  MakeFolder(Spec(R"({"num_longterm_mem_tokens": 0, "num_persist_mem_tokens": 0})"), folder);
  const std::vector<double> want = LogitsOf(folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  tensors["longterm_mems"] = Filled({0, 32}, 0);
  tensors["layers.0.5.persistent_memory"] = Filled({2, 2, 0, 16}, 0);
  WriteTensors(tensors, folder.File("model.safetensors"));
  EXPECT_THAT(LogitsOf(folder), HasSameBits(want));
  tensors["longterm_mems"] = Filled({2, 32}, 0);
  WriteTensors(tensors, folder.File("model.safetensors"));
  EXPECT_THAT(std::string(Load(folder).message()),
              HasSubstr("tensor \"longterm_mems\": shape [2, 32], expected [0, 32]"));
}

struct WrongTensor {
  const char* name;
  std::vector<int64_t> shape;
  const char* message;
};

TEST(TitansPytorchTensorsTest, ATensorThatDisagreesWithTheConfigurationIsNamed) {
  const TestFolder folder;
  MakeFolder(Spec("{}"), folder);
  const StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  const WrongTensor wrong[] = {
      {"layers.0.5.rotary_emb.freqs", {8}, "element 0 is 2, expected 1"},
      {"longterm_mems", {4, 32}, "expected [3, 32]"},
      {"layers.0.5.persistent_memory", {2, 2, 5, 16}, "expected [2, 2, 4, 16]"},
      {"layers.1.4.memory_model_parameters.0", {16}, "expected [2, 16]"},
      {"layers.1.4.to_momentum.0.weight", {4, 32}, "expected [2, 32]"},
      {"layers.1.1.dynamic_alpha_fn", {32, 4}, "expected [1, 32, 5]"},
      {"layers.1.1.h_post_scale", {1}, "expected []"},
      {"expand_streams.stream_embed", {2, 32}, "expected [4, 32]"},
      {"axial_pos_emb.mlps.1.0.weight", {64}, "expected [64, 1]"},
      {"layers.0.6.1.weight", {84, 32}, "expected [170, 32]"}};
  for (const WrongTensor& one : wrong) {
    ASSERT_TRUE(tensors.contains(one.name)) << one.name;
    StoredTensors changed = tensors;
    changed[one.name] = Filled(one.shape, 2);
    WriteTensors(changed, folder.File("model.safetensors"));
    const absl::Status status = Load(folder);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.name;
    EXPECT_THAT(
        std::string(status.message()),
        testing::AllOf(HasSubstr(absl::StrCat("\"", one.name, "\"")), HasSubstr(one.message)));
    changed.erase(one.name);
    WriteTensors(changed, folder.File("model.safetensors"));
    if (one.message[0] == 'e' && std::strncmp(one.message, "element", 7) == 0) continue;
    EXPECT_EQ(Load(folder).code(), absl::StatusCode::kNotFound) << one.name;
  }
}

// Later packages store the weights of coefficients with one more dimension.
TEST(TitansPytorchTensorsTest, BothFormsOfTheStreamsWeightsAreRead) {
  const TestFolder folder;
  MakeFolder(Spec("{}"), folder);
  const std::vector<double> want = LogitsOf(folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  int changed = 0;
  for (auto& [name, tensor] : tensors) {
    if (!absl::EndsWith(name, "dynamic_alpha_fn")) continue;
    tensor.shape = {1, 32, 5};
    ++changed;
  }
  ASSERT_EQ(changed, 5);
  WriteTensors(tensors, folder.File("model.safetensors"));
  EXPECT_THAT(LogitsOf(folder), HasSameBits(want));
}

// Every kind of connection is another function of, but for names, the same tensors.
TEST(TitansPytorchTensorsTest, HyperConnectionsAreOfTheKindThatTheConfigurationSays) {
  std::vector<std::vector<double>> logits;
  for (const char* kind : {"mhc", "mhc_0_3_11", "hc"}) {
    const TestFolder folder;
    MakeFolder(Spec(absl::StrCat(R"({"hyper_connections": ")", kind, "\"}").c_str()), folder);
    logits.push_back(LogitsOf(folder));
    for (const double value : logits.back()) ASSERT_TRUE(std::isfinite(value)) << kind;
  }
  EXPECT_GT(RelativeError(logits[1], logits[0]), 1e-2);
  EXPECT_GT(RelativeError(logits[2], logits[0]), 1e-2);
}

// Frequencies are a tensor: what training and upstream's code turn heads by is its f32 numbers.
TEST(TitansPytorchTensorsTest, StoredFrequenciesTurnHeadsUnlessTheyAreRoundedTo16Bits) {
  const TestFolder folder;
  MakeFolder(Spec("{}"), folder);
  const std::string path = folder.File("model.safetensors");
  const StoredTensors tensors = ReadTensors(path);
  const std::vector<int32_t> text = RandomTokens(30, 259, /*seed=*/4);
  // With each frequency as `change` leaves it; null: without the tensors.
  const auto logits = [&](float (*change)(float)) {
    StoredTensors changed = tensors;
    for (const char* name : {"layers.0.5.rotary_emb.freqs", "layers.1.5.rotary_emb.freqs"}) {
      if (change == nullptr) {
        changed.erase(name);
        continue;
      }
      StoredTensor& tensor = changed.at(name);
      for (size_t i = 0; i < tensor.bytes.size(); i += sizeof(float)) {
        float frequency = 0;
        std::memcpy(&frequency, tensor.bytes.data() + i, sizeof(frequency));
        frequency = change(frequency);
        std::memcpy(tensor.bytes.data() + i, &frequency, sizeof(frequency));
      }
    }
    WriteTensors(changed, path);
    const auto driver = Drive(folder.path(), MakeReference(), {.slots = 1, .max_tokens = 64});
    return FeedSlot(*driver, 0, text);
  };
  const std::vector<double> exact = logits(nullptr);
  const double own = RelativeError(logits([](float f) { return f; }), exact);
  const double other = RelativeError(logits([](float f) { return f * (1 + 0x1p-22f); }), exact);
  EXPECT_GT(own, 1e-10);
  EXPECT_LT(own, 1e-6);
  EXPECT_GT(other, own);
  EXPECT_LT(other, 1e-5);
  // Off by more than roundings of f32: the exact ones are meant.
  EXPECT_EQ(logits([](float f) { return f * (1 + 3e-6f); }), exact);
}

// --- State ---------------------------------------------------------------------------------------

TEST(TitansPytorchStateTest, ItIsWhatTheEquationsKeep) {
  const auto config = ParseModelConfig(Spec("{}").config.dump(), "config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  const MadeNetwork network = MakeNetwork(*config);
  const int64_t copy = 2 * (16 + 2 * 16 * 32);  // floats of both heads
  int64_t memory = 0;
  for (const StateField& field : network.state.fields()) {
    if (absl::StrContains(field.name, "memory_model_parameters")) memory += field.bytes();
    if (field.name == "layers.0.keys") {
      EXPECT_EQ(field.rows(), 7 + 3 + 1) << "a window, and the token itself";
    }
    EXPECT_FALSE(absl::StartsWith(field.name, "layers.0.memory")) << "of a layer without one";
  }
  EXPECT_EQ(memory, 3 * copy * 4) << "weights, momentum and an anchor";
  EXPECT_FALSE(network.state.max_tokens().has_value());
}

TEST(TitansPytorchStateTest, TheLargeShapeIsOfItsSize) {
  EXPECT_NEAR(MakeShape("titans-pytorch-393m").millions(), 394.9, 0.1);
}

}  // namespace
}  // namespace mneme
