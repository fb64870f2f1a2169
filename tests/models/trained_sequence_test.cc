// Memories that are trained while they read, at places where they could go wrong: far into a
// session, behind 20,000 tokens, and wherever a prompt ends in their steps, periods and segments.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gtest/gtest.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

class TrainedSequenceTest : public testing::TestWithParam<BackendUnderTest> {};

std::vector<ModelSpec> TrainedSpecs() {
  std::vector<ModelSpec> specs = ConformanceSpecs("titans");
  for (const ModelSpec& spec : ConformanceSpecs("ttt")) specs.push_back(spec);
  return specs;
}

bool IsPytorch(const ModelSpec& spec) {
  return spec.config["model_type"] == "titans_mac_lucidrains";
}

// Makes memories stable: others diverge, and what is normed of them then is 0.
ModelSpec TinyOf(const std::string& shape) {
  ModelSpec spec = *SpecOfShape(shape);
  if (IsPytorch(spec)) {
    spec.config["neural_memory_kwargs"]["default_step_transform_max_lr"] = 0.001;
  } else {
    spec.config["memory_norm"] = "rms";
    spec.config["memory_loss"] = "mean";
  }
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.12;
  return spec;
}

// Lets a network of numbers of steps see them as millionths, so that it does not outdo everything
// else far into a session.
void ScaleAxialPositions(const TestFolder& folder) {
  const std::string file = folder.File("model.safetensors");
  StoredTensors tensors = ReadTensors(file);
  StoredTensor& weight = tensors.at("axial_pos_emb.mlps.0.0.weight");
  CHECK(weight.dtype == DType::kF32);
  for (size_t i = 0; i < weight.bytes.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, weight.bytes.data() + i, sizeof(value));
    value *= 0x1p-20f;
    std::memcpy(weight.bytes.data() + i, &value, sizeof(value));
  }
  WriteTensors(tensors, file);
}

// Logits of `count` tokens at `position` on, after `warm` ones from the session's beginning, whose
// state is then said to be that of a session which was fed `position` tokens. Whatever goes round
// with positions (windows, segments, steps) has come as far there as it would have.
std::vector<double> LogitsAt(ModelDriver& driver, int64_t position, int warm, int count) {
  driver.Reset(0);
  const int vocab = driver.model().info().vocab;
  FeedSlot(driver, 0, RandomTokens(warm, vocab, /*seed=*/1));
  driver.WriteSlab(0, driver.ReadSlab(0), position);
  const std::vector<double> logits =
      FeedSlot(driver, 0, RandomTokens(count, vocab, /*seed=*/2), {5, 1, 1, 9});
  EXPECT_EQ(driver.position(0), position + count);
  return logits;
}

TEST_P(TrainedSequenceTest, LogitsFarIntoASessionAreThoseOfTheReference) {
  constexpr int kCount = 40;
  // Multiples of the windows' lengths and of the segments'. titans-pytorch's segments of 7 tokens
  // are 10 positions, its window has 11, its steps 4 and its anchors' periods 12.
  for (const auto& [name, round] : {std::pair("titans-mac-tiny", 7 * 8),
                                    {"titans-mag-tiny", 7 * 8},
                                    {"titans-mal-tiny", 7 * 8},
                                    {"titans-pytorch-tiny", 7 * 66}}) {
    const std::string shape = name;
    const ModelSpec spec = TinyOf(shape);
    const TestFolder folder;
    MakeFolder(spec, folder);
    if (IsPytorch(spec)) ScaleAxialPositions(folder);
    const auto reference = Drive(folder.path(), MakeReference(), {});
    const auto device = Drive(folder.path(), GetParam().Make(), {});
    const int vocab = device->model().info().vocab;
    for (const int64_t position : {int64_t{1'000'000}, (int64_t{1} << 24) + 5}) {
      const auto warm = static_cast<int>(round + position % round);
      const std::vector<double> want = LogitsAt(*reference, position, warm, kCount);
      const std::vector<double> got = LogitsAt(*device, position, warm, kCount);
      const double error = WorstRowError(got, want, vocab);
      std::printf("  %s at %lld: worst relative error %.2e\n", name,
                  static_cast<long long>(position), error);
      EXPECT_LE(error, 2e-5) << shape << " at " << position;
      // The keys of a prefix do not move with the session: what is seen of them tells where it is.
      const std::vector<double> near = LogitsAt(*reference, warm, warm, kCount);
      const double moved = RelativeError(near, want);
      const bool has_prefix = shape != "titans-mac-tiny";
      if (has_prefix) {
        EXPECT_GT(moved, 1e-4) << shape;
      } else {
        EXPECT_LT(moved, 1e-12) << shape << ", whose positions begin anew with each segment";
      }
    }
  }
}

// A layer of 32 channels and as many tokens.
ModelSpec NarrowSpec(const std::string& shape, const std::string& changes) {
  ModelSpec spec = TinyOf(shape);
  if (IsPytorch(spec)) {
    spec.config["num_tokens"] = 32;
    spec.config["depth"] = 1;
    spec.config["neural_memory_layers"] = {1};
    spec.config["ff_mult"] = 1;
  } else {
    spec.config["vocab_size"] = 32;
    spec.config["num_hidden_layers"] = 1;
    spec.config["hidden_size"] = 32;
    spec.config["intermediate_size"] = 32;
  }
  spec.config["bos_token_id"] = nullptr;
  spec.config.update(nlohmann::ordered_json::parse(changes));
  return spec;
}

TEST_P(TrainedSequenceTest, TwentyThousandTokensStayWithTheReference) {
  constexpr int kTokens = 20000, kChunk = 500;
  for (const auto& [shape, changes] :
       {std::pair("titans-lmm-tiny", R"({"memory_theta_max": 1})"),
        {"titans-lmm-tiny", R"({"memory_theta_max": 1, "memory_anchor_period": 16})"},
        {"titans-lmm-tiny", R"({"memory_step_size": 4, "memory_anchor_period": 16,
                                "memory_gate_pooling": "gate_mean"})"},
        {"titans-mac-tiny", "{}"},
        {"titans-mag-tiny", "{}"},
        {"titans-mal-tiny", "{}"},
        {"titans-pytorch-tiny", "{}"},
        {"ttt-linear-tiny", "{}"},
        {"ttt-mlp-tiny", "{}"}}) {
    const ModelSpec spec = NarrowSpec(shape, changes);
    const TestFolder folder;
    MakeFolder(spec, folder);
    const std::vector<int32_t> tokens = RandomTokens(kTokens, 32, /*seed=*/3);
    const auto reference = Drive(folder.path(), MakeReference(), {.max_tokens = kChunk});
    const std::vector<double> want = FeedSlot(*reference, 0, tokens);
    for (const int size : {kChunk, 1}) {
      const auto device = Drive(folder.path(), GetParam().Make(), {.max_tokens = kChunk});
      const std::vector<double> got = FeedSlot(*device, 0, tokens, {size});
      // The error of the worst part of the text: one that grew would be in the last ones.
      const double worst = WorstRowError(got, want, kChunk * 32);
      std::printf("  %s %s in steps of %d: worst relative error of %d tokens' logits %.2e\n", shape,
                  changes, size, kChunk, worst);
      EXPECT_LE(worst, 2e-5) << shape << " " << changes << " in steps of " << size;
    }
  }
}

// Prompts that end at every offset, each beside neighbours that are elsewhere; a prompt goes on
// token by token, as an answer does.
TEST_P(TrainedSequenceTest, PromptsMayEndAnywhereBesideAnybody) {
  constexpr int kAnswer = 5;
  for (const ModelSpec& spec : TrainedSpecs()) {
    const TestFolder folder;
    MakeFolder(spec, folder);
    const auto driver =
        Drive(folder.path(), GetParam().Make(), {.slots = 3, .max_rows = 3, .max_tokens = 96});
    const int vocab = driver->model().info().vocab;
    const auto period = static_cast<int>(std::max<int64_t>(
        {spec.config.value("segment_length", 1), spec.config.value("mini_batch_size", 1),
         driver->model().info().trained.front().step,
         driver->model().info().trained.front().anchor_period}));
    const int longest = std::min(2 * period + 1, 40);
    const std::vector<int32_t> text = RandomTokens(longest + kAnswer, vocab, /*seed=*/4);
    const std::vector<int32_t> other = RandomTokens(80, vocab, /*seed=*/5);
    const std::vector<double> alone = FeedSlot(*driver, 0, text, {1});
    for (int length = 1; length <= longest; ++length) {
      for (int slot = 0; slot < 3; ++slot) driver->Reset(slot);
      // One neighbour has come some way already, another one begins.
      FeedSlot(*driver, 1, std::span(other).first(static_cast<size_t>(length % 11 + 1)));
      std::vector<double> got;
      int fed = 0;
      const auto step = [&](int count) {
        const ModelDriver::Row rows[] = {
            {1, std::span(other).subspan(20, static_cast<size_t>(1 + length % 3))},
            {0, std::span(text).subspan(static_cast<size_t>(fed), static_cast<size_t>(count))},
            {2, std::span(other).subspan(40, static_cast<size_t>(1 + length % 7))}};
        std::vector<int32_t> wanted(static_cast<size_t>(count));
        std::iota(wanted.begin(), wanted.end(), 1 + length % 3);
        const auto logits = driver->Step(rows, wanted);
        ASSERT_TRUE(logits.ok()) << logits.status();
        got.insert(got.end(), logits->begin(), logits->end());
        fed += count;
      };
      step(length);
      for (int i = 0; i < kAnswer; ++i) step(1);
      const std::vector<double> want(alone.begin(),
                                     alone.begin() + static_cast<int64_t>(got.size()));
      if (GetParam().bit_exact()) {
        ASSERT_THAT(got, HasSameBits(want)) << spec.config.dump() << ", a prompt of " << length;
      } else {
        ASSERT_LE(WorstRowError(got, want, vocab), 1e-4) << spec.config.dump() << ", " << length;
      }
    }
  }
}

// The fastest: what other instruction sets compute is compared elsewhere.
INSTANTIATE_TEST_SUITE_P(Backends, TrainedSequenceTest, testing::Values(AvailableBackends().back()),
                         BackendName);

}  // namespace
}  // namespace mneme
