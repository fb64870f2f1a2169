// The tensors of a folder's files against those that its configuration asks for.

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float16.h"
#include "models/checkpoint.h"
#include "models/model.h"
#include "models/weight_store.h"
#include "tests/models/golden.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"
#include "tools/model_maker.h"

namespace mneme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kFile[] = "model.safetensors";

class WeightLoadingTest : public testing::Test {
 protected:
  explicit WeightLoadingTest(const GatedDeltaSpec& spec = TinySpec()) {
    MakeFolder(spec, folder_);
    tensors_ = ReadTensors(folder_.File(kFile));
  }
  // Writes the changed tensors back and loads.
  absl::Status Load() {
    WriteTensors(tensors_, folder_.File(kFile));
    const auto backend = MakeReference();
    return LoadModel(folder_.path(), *backend, nullptr).status();
  }
  std::vector<double> Logits() {
    WriteTensors(tensors_, folder_.File(kFile));
    const auto driver = Drive(folder_.path(), MakeReference(), {.max_tokens = 32});
    return FeedSlot(*driver, 0, RandomTokens(32, 259, /*seed=*/5));
  }
  // The file's bytes of the floats of a tensor.
  void SetElement(const std::string& name, size_t index, float value) {
    std::memcpy(tensors_.at(name).bytes.data() + 4 * index, &value, 4);
  }

  TestFolder folder_;
  StoredTensors tensors_;
};

TEST_F(WeightLoadingTest, AMissingTensorIsNamedWithTheExpectedShape) {
  tensors_.erase("model.layers.1.attn.k_proj.3.weight");
  const absl::Status status = Load();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("\"model.layers.1.attn.k_proj.3.weight\" is not in"),
                    HasSubstr(kFile), HasSubstr("[64, 64]")));
}

TEST_F(WeightLoadingTest, EveryTensorThatIsMissingIsNamedItself) {
  const StoredTensors all = tensors_;
  for (const auto& [name, tensor] : all) {
    if (name == "lm_head.weight") continue;  // then the model is a tied one
    tensors_ = all;
    tensors_.erase(name);
    const absl::Status status = Load();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("tensor \"", name, "\" is not in")));
  }
}

// The header is changed and the bytes stay, as a broken converter would do it: the tensor that was
// forgotten is at fault, not the neighbour that follows a hole.
TEST_F(WeightLoadingTest, ATensorThatIsMissingFromTheHeaderIsNamedAndNotItsNeighbour) {
  const std::string file = folder_.Read(kFile);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  for (const std::string name :
       {"lm_head.weight", "model.embeddings.weight", "model.norm.weight"}) {
    std::string header = file.substr(8, length);
    const size_t begin = header.find(absl::StrCat("\"", name, "\":"));
    ASSERT_NE(begin, std::string::npos) << name;
    const size_t end = header.find('}', begin) + 1;
    // Together with the comma on one side; spaces keep the length.
    const bool is_last = header[end] != ',';
    const size_t from = is_last ? begin - 1 : begin;
    const size_t to = is_last ? end : end + 1;
    header.replace(from, to - from, to - from, ' ');
    folder_.Write(kFile, file.substr(0, 8) + header + file.substr(8 + length));
    const auto backend = MakeReference();
    const absl::Status status = LoadModel(folder_.path(), *backend, nullptr).status();
    EXPECT_THAT(status.message(), HasSubstr("of the data belong to no tensor")) << name;
    if (name == "lm_head.weight") continue;  // a hole in a tied model
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("tensor \"", name, "\" is not in")));
  }
}

TEST_F(WeightLoadingTest, AWrongShapeIsNamedWithTheExpectedOne) {
  tensors_.at("model.layers.0.attn.A_log") = {DType::kF32, {3}, std::vector<std::byte>(12)};
  EXPECT_THAT(Load().message(),
              HasSubstr("tensor \"model.layers.0.attn.A_log\": shape [3], expected [2]"));
}

TEST_F(WeightLoadingTest, AnotherRankIsAWrongShape) {
  tensors_.at("model.layers.0.attn.q_conv1d.weight").shape = {64, 4};
  EXPECT_THAT(Load().message(), HasSubstr("shape [64, 4], expected [64, 1, 4]"));
}

TEST_F(WeightLoadingTest, AWrongElementTypeIsNamed) {
  tensors_.at("model.norm.weight") = {DType::kI32, {64}, std::vector<std::byte>(256)};
  EXPECT_THAT(Load().message(),
              HasSubstr("tensor \"model.norm.weight\": dtype I32, expected F32, BF16 or F16"));
}

TEST_F(WeightLoadingTest, ValuesThatAreNotFiniteAreNamedWithTheirIndex) {
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  const float kInf = std::numeric_limits<float>::infinity();
  for (const auto& [name, index, value, shown] :
       {std::tuple{"model.layers.0.mlp.down_proj.weight", 4097, kNan, "element 4097 is nan"},
        std::tuple{"model.embeddings.weight", 259 * 64 - 1, -kInf, "element 16575 is -inf"},
        std::tuple{"model.layers.1.attn.dt_bias", 0, kInf, "element 0 is inf"}}) {
    const StoredTensors good = tensors_;
    SetElement(name, static_cast<size_t>(index), value);
    EXPECT_THAT(Load().message(), AllOf(HasSubstr(name), HasSubstr(shown)));
    tensors_ = good;
  }
  EXPECT_TRUE(Load().ok());
}

TEST_F(WeightLoadingTest, NanInSixteenBitWeightsIsFoundToo) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    GatedDeltaSpec spec = TinySpec();
    spec.dtype = dtype;
    MakeFolder(spec, folder_);
    tensors_ = ReadTensors(folder_.File(kFile));
    const uint16_t nan = dtype == DType::kBF16 ? 0x7fc0 : 0x7e00;
    std::memcpy(tensors_.at("lm_head.weight").bytes.data() + 2 * 1234, &nan, 2);
    EXPECT_THAT(Load().message(), HasSubstr("\"lm_head.weight\": element 1234 is nan"));
  }
}

TEST_F(WeightLoadingTest, UnusedTensorsAreListedOnceAndHarmlessOnesAreNot) {
  tensors_["model.layers.0.attn.D"] = {DType::kF32, {2}, std::vector<std::byte>(8)};
  tensors_["something.else"] = {DType::kI64, {1}, std::vector<std::byte>(8)};
  testing::internal::CaptureStderr();
  EXPECT_TRUE(Load().ok());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr(absl::StrCat("1 of ", tensors_.size(),
                                          " tensors is not used: something.else. Unless")));
}

// A key with another value than the weights were made with.
TEST(UnusedTensorsTest, TheKeyThatLeavesThemOutIsNamed) {
  const struct {
    const char* shape;
    const char* made_with;  // JSON, changes of the shape's config.json
    const char* changes;
    std::vector<const char*> said;
  } cases[] = {{"ttt-linear-tiny",
                R"({"use_gate": true})",
                R"({"use_gate": false})",
                {"2 of ", "layers.0.seq_modeling_block.g_proj.weight",
                 "in config.json \"use_gate\" is false"}},
               {"ttt-linear-tiny",
                R"({"pre_conv": true})",
                R"({"pre_conv": false})",
                {"in config.json \"pre_conv\" is false"}},
               {"ttt-linear-tiny",
                "{}",
                R"({"num_hidden_layers": 1})",
                {"model.layers.1.", ", ...", "in config.json the number of layers is 1"}},
               {"titans-pytorch-tiny",
                "{}",
                R"({"num_residual_streams": 1})",
                {"\"num_residual_streams\" is 1"}},
               {"titans-pytorch-tiny",
                R"({"neural_memory_kwargs": {"qk_rmsnorm": true}})",
                R"({"neural_memory_kwargs": {"qk_rmsnorm": false}})",
                {"\"qk_rmsnorm\" is false"}},
               {"titans-mag-tiny",
                "{}",
                R"({"num_persistent_tokens": 0})",
                {"1 of ", "model.persistent_memory", "\"num_persistent_tokens\" is 0"}},
               {"titans-lmm-tiny",
                "{}",
                R"({"memory_forget": false, "memory_momentum_order": 0})",
                {"\"memory_momentum_order\" is 0, \"memory_forget\" is false"}}};
  for (const auto& [shape, made_with, changes, said] : cases) {
    const TestFolder folder;
    ModelSpec spec = *SpecOfShape(shape);
    spec.config.merge_patch(nlohmann::ordered_json::parse(made_with));
    MakeFolder(spec, folder);
    const auto warnings = [&, &shape = shape, &changes = changes] {
      const auto plan = PlanModel(folder.path(), StateFormat{}, ModelOptions{});
      EXPECT_TRUE(plan.ok()) << shape << " " << changes << ": " << plan.status();
      return plan.ok() ? absl::StrJoin(plan->warnings, "\n") : "";
    };
    EXPECT_EQ(warnings(), "") << shape << " " << made_with;
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(folder.Read("config.json"));
    config.merge_patch(nlohmann::ordered_json::parse(changes));
    folder.Write("config.json", config.dump());
    for (const char* part : said) {
      EXPECT_THAT(warnings(), HasSubstr(part)) << shape << " " << changes;
    }
  }
}

TEST_F(WeightLoadingTest, TheHeadIsTiedExactlyWhereTheFileHasNone) {
  const std::vector<double> untied = Logits();
  StoredTensor head = tensors_.at("lm_head.weight");
  tensors_.at("lm_head.weight") = tensors_.at("model.embeddings.weight");
  const std::vector<double> equal = Logits();
  tensors_.erase("lm_head.weight");
  EXPECT_THAT(Logits(), HasSameBits(equal));
  EXPECT_GT(RelativeError(untied, equal), 0.1);
}

TEST_F(WeightLoadingTest, AFusedFeedForwardIsTheSameNetwork) {
  const std::vector<double> apart = Logits();
  for (const std::string layer : {"model.layers.0.mlp.", "model.layers.1.mlp."}) {
    StoredTensor& gate = tensors_.at(layer + "gate_proj.weight");
    const StoredTensor up = tensors_.at(layer + "up_proj.weight");
    gate.shape[0] *= 2;
    gate.bytes.insert(gate.bytes.end(), up.bytes.begin(), up.bytes.end());
    tensors_.erase(layer + "up_proj.weight");
  }
  EXPECT_THAT(Logits(), HasSameBits(apart));
}

TEST_F(WeightLoadingTest, MemoriesWhoseElementTypesDifferAreWidened) {
  StoredTensor& tensor = tensors_.at("model.layers.0.attn.k_proj.2.weight");
  const auto* values = reinterpret_cast<const float*>(tensor.bytes.data());
  std::vector<std::byte> narrow(tensor.bytes.size() / 2);
  std::vector<float> rounded(narrow.size() / 2);
  for (size_t i = 0; i < rounded.size(); ++i) {
    const uint16_t bits = BF16FromF32(values[i]);
    std::memcpy(narrow.data() + 2 * i, &bits, 2);
    rounded[i] = F32FromBF16(bits);
  }
  std::memcpy(tensor.bytes.data(), rounded.data(), tensor.bytes.size());
  const std::vector<double> want = Logits();
  tensor.dtype = DType::kBF16;
  tensor.bytes = narrow;
  EXPECT_THAT(Logits(), HasSameBits(want));
}

TEST_F(WeightLoadingTest, TensorsAtOddAddressesAreRead) {
  const std::vector<double> want = Logits();
  // One more byte of header moves all data by one.
  std::string file = folder_.Read(kFile);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), 8);
  ++length;
  std::memcpy(file.data(), &length, 8);
  file.insert(file.begin() + 7 + static_cast<int64_t>(length), ' ');
  folder_.Write(kFile, file);
  const auto driver = Drive(folder_.path(), MakeReference(), {.max_tokens = 32});
  EXPECT_THAT(FeedSlot(*driver, 0, RandomTokens(32, 259, /*seed=*/5)), HasSameBits(want));
}

TEST(WeightStoreTest, SmallTensorsComeOneBehindTheOther) {
  const TestFolder folder;
  const std::vector<float> a = {1, 2, 3}, b = {4, 5, 6};
  const auto tensor = [](const std::vector<float>& values) {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    return StoredTensor{DType::kF32, {3}, {bytes, bytes + 12}};
  };
  WriteTensors({{"a", tensor(a)}, {"b", tensor(b)}}, folder.File("model.safetensors"));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::unique_ptr<Backend> backend = MakeReference();
  WeightStore weights(*checkpoint, backend.get());
  const std::vector<std::string> names = {"b", "a"};
  const auto take = [&] {
    const auto group = weights.FloatGroup(names, {3}, WeightInit::kZeros);
    EXPECT_TRUE(group.ok()) << group.status();
    const auto values = weights.Values("a", {3}, WeightInit::kZeros);
    EXPECT_TRUE(values.ok()) << values.status();
    return std::pair(*group, *values);
  };
  EXPECT_THAT(take().second, testing::ElementsAre(0, 0, 0)) << "nothing is read yet";
  ASSERT_EQ(weights.StartLoading(*backend, nullptr), absl::OkStatus());
  const auto [group, values] = take();
  EXPECT_EQ(group.shape, (Shape{2, 3}));
  EXPECT_THAT(std::vector<float>(group.as<float>(), group.as<float>() + 6),
              testing::ElementsAre(4, 5, 6, 1, 2, 3));
  EXPECT_EQ(values, a);
  EXPECT_TRUE(absl::IsNotFound(
      weights.FloatGroup(std::vector<std::string>{"c"}, {3}, WeightInit::kZeros).status()));
}

TEST_F(WeightLoadingTest, CutFilesAreRefused) {
  const std::string file = folder_.Read(kFile);
  for (const double share : {0.0, 0.001, 0.01, 0.5, 0.999}) {
    folder_.Write(kFile,
                  file.substr(0, static_cast<size_t>(share * static_cast<double>(file.size()))));
    const auto backend = MakeReference();
    const absl::Status status = LoadModel(folder_.path(), *backend, nullptr).status();
    EXPECT_THAT(status.message(), HasSubstr(kFile)) << share;
  }
}

TEST_F(WeightLoadingTest, ProgressEndsAtTheTotal) {
  const auto backend = MakeReference();
  int64_t last = 0, total = 0;
  ASSERT_TRUE(LoadModel(folder_.path(), *backend, [&](int64_t done, int64_t of) {
                EXPECT_GT(done, last);
                last = done;
                total = of;
              }).ok());
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 0);
}

TEST(LoadModelTest, FoldersThatAreNoModelsAreExplained) {
  const auto backend = MakeReference();
  const auto load = [&](const std::string& folder) {
    return LoadModel(folder, *backend, nullptr).status();
  };
  EXPECT_THAT(load("/nowhere/model").message(),
              HasSubstr("model folder \"/nowhere/model\" does not exist"));
  EXPECT_THAT(load("LICENSE").message(), HasSubstr("is a file, expected a folder"));
  const TestFolder folder;
  EXPECT_THAT(load(folder.path()).message(), HasSubstr("config.json"));
}

TEST(PlanModelTest, KnowsWithoutReadingWeightsWhatLoadingFinds) {
  for (const std::string& name : GoldenNames()) {
    const auto backend = MakeReference();
    const auto plan = PlanModel(GoldenFolder(name), backend->state_format());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto model = LoadModel(GoldenFolder(name), *backend, nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(plan->state_layout.slab_bytes(), (*model)->state_layout().slab_bytes()) << name;
    EXPECT_EQ(plan->info.parameters, (*model)->info().parameters) << name;
    EXPECT_EQ(plan->info.weight_dtype, (*model)->info().weight_dtype) << name;
    EXPECT_EQ(plan->info.name, name);
    EXPECT_NE((*model)->info().fingerprint, 0u);
  }
}

TEST_F(WeightLoadingTest, APlanRefusesValuesThatLoadingWould) {
  SetElement("model.layers.1.attn.A_log", 1, std::numeric_limits<float>::infinity());
  const absl::Status loaded = Load();
  EXPECT_FALSE(loaded.ok());
  EXPECT_EQ(PlanModel(folder_.path(), *MakeReference()).status(), loaded);
}

// Upstream would draw a head at random, and say so.
TEST(PlanModelTest, AHeadThatIsMissingIsWarnedOfUnlessTheModelIsTied) {
  const auto warnings = [](bool head, const char* tied) {
    GatedDeltaSpec spec = TinySpec();
    const TestFolder folder;
    MakeFolder(spec, folder);
    StoredTensors tensors = ReadTensors(folder.File(kFile));
    if (!head) tensors.erase("lm_head.weight");
    WriteTensors(tensors, folder.File(kFile));
    std::string config = folder.Read("config.json");
    const size_t at = config.find("\"tie_word_embeddings\": false");
    CHECK(at != std::string::npos) << config;
    config.replace(at, 28, tied);
    folder.Write("config.json", config);
    const auto plan = PlanModel(folder.path(), *MakeReference());
    CHECK_OK(plan.status());
    return absl::StrJoin(plan->warnings, "; ");
  };
  const auto warns = AllOf(HasSubstr("there is no tensor \"lm_head.weight\""),
                           HasSubstr("does not say \"tie_word_embeddings\": true"));
  EXPECT_THAT(warnings(/*head=*/false, "\"tie_word_embeddings\": false"), warns);
  EXPECT_THAT(warnings(false, "\"unknown\": false"), warns);
  EXPECT_EQ(warnings(false, "\"tie_word_embeddings\": true"), "");
  EXPECT_EQ(warnings(true, "\"tie_word_embeddings\": false"), "");
  EXPECT_THAT(warnings(true, "\"tie_word_embeddings\": true"),
              HasSubstr("\"lm_head.weight\" is not \"model.embeddings.weight\""));
}

TEST(PlanModelTest, WindowsAreRoundedWhereWeightsAre) {
  std::vector<std::string> folders;
  for (const std::string& name : GatedDeltaGoldens()) folders.push_back(GoldenFolder(name));
  // The other rules have no convolutions.
  for (const char* name : {"delta_net", "kda"}) folders.push_back(GoldenFolder(name));
  GatedDeltaSpec spec = TinySpec("mom-tiny");
  spec.dtype = DType::kBF16;
  const TestFolder rounded;
  MakeFolder(spec, rounded);
  folders.push_back(rounded.path());
  for (const std::string& name : folders) {
    const auto plan = PlanModel(name, StateFormat{.bf16_window_dtype = DType::kBF16});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const DType expected = name == rounded.path() ? DType::kBF16 : DType::kF32;
    EXPECT_EQ(plan->info.weight_dtype, expected == DType::kBF16 ? "bf16" : "f32") << name;
    int windows = 0;
    for (const StateField& field : plan->state_layout.fields()) {
      if (field.name.find("_window") == std::string::npos) continue;
      ++windows;
      EXPECT_EQ(field.dtype, expected) << name << " " << field.name;
    }
    EXPECT_GT(windows, 0) << name;
  }
}

TEST(PlanModelTest, SlabsHaveOnePhaseWhereWritesAreHeldBack) {
  for (const int pending : {0, 16}) {
    const auto plan = PlanModel(GoldenFolder("mom"), StateFormat{.pending_writes = pending});
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<int> phases;
    for (const StateField& field : plan->state_layout.fields()) {
      if (field.initial == StateInitial::kPhase) phases.push_back(field.phases);
    }
    EXPECT_EQ(phases, pending == 0 ? std::vector<int>{} : std::vector{pending + 1});
  }
}

TEST(PlanModelTest, MeasuresMemoryAsTheLoadedModelDoes) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    for (const std::string& name : GoldenNames()) {
      const auto backend = MakeBackend("cpu", {.compute_dtype = compute, .threads = 1});
      ASSERT_TRUE(backend.ok()) << backend.status();
      const auto plan = PlanModel(GoldenFolder(name), **backend);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const auto model = LoadModel(GoldenFolder(name), **backend, nullptr);
      ASSERT_TRUE(model.ok()) << model.status();
      EXPECT_EQ(plan->info.weight_bytes, (*model)->info().weight_bytes) << name;
      EXPECT_EQ(plan->state_layout.slab_bytes(), (*model)->state_layout().slab_bytes()) << name;
      for (const auto& [tokens, rows, logit_rows] :
           {std::tuple{1, 1, 1}, std::tuple{512, 256, 320}, std::tuple{64, 3, 0}}) {
        const int64_t planned = plan->workspace_bytes(tokens, rows, logit_rows);
        EXPECT_GT(planned, 0);
        EXPECT_EQ(planned, (*model)->WorkspaceBytes(tokens, rows, logit_rows)) << name;
      }
    }
  }
}

TEST(PlanModelTest, ParameterCountsAreThePapers) {
  // Untied counts of the two published configurations, without weights on disk: from shapes alone.
  for (const auto& [shape, parameters] :
       {std::pair{"mom-340m", 545119424}, std::pair{"mom-1.3b", 1618419904}}) {
    const auto spec = SpecOfShape(shape);
    ASSERT_TRUE(spec.ok());
    int64_t count = 0;
    const std::vector<TensorSpec> tensors = TensorsOf(*spec).value();
    for (const TensorSpec& tensor : tensors) {
      int64_t elements = 1;
      for (const int64_t dim : tensor.shape) elements *= dim;
      count += elements;
    }
    EXPECT_EQ(count, parameters) << shape;
  }
}

}  // namespace
}  // namespace mneme
