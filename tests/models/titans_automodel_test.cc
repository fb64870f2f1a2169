// Titans folders as NeMo Automodel writes them: the neutral format's function under other names.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model_config.h"
#include "tests/models/config_keys.h"
#include "tests/models/golden.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using nlohmann::ordered_json;
using testing::AllOf;
using testing::HasSubstr;

struct AutomodelCase {
  const char* name;
  const char* neutral;    // over the neutral shape's keys
  const char* automodel;  // over those that both have
};

constexpr const char* kShape = R"({"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2,
  "intermediate_size": 80, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "bos_token_id": 1,
  "eos_token_id": 2})";
// What Automodel's models all are.
constexpr const char* kAlways = R"({"model_type": "titans", "memory_num_heads": 2,
  "memory_head_dim": 16, "memory_depth": 2, "memory_expansion": 4.0, "memory_norm": "rms",
  "memory_loss": "mean", "memory_theta_max": 1.0, "memory_decay": "gdn",
  "memory_qkv_activation": "none", "attention_kind": "none"})";

constexpr AutomodelCase kAutomodelCases[] = {
    {"lmm_reference",
     R"({"variant": "lmm", "memory_step_size": 1, "memory_anchor_period": 16,
         "memory_read": "anchor"})",
     R"({"architecture_variant": "lmm", "mem_depth": 2})"},
    {"lmm_public",
     R"({"variant": "lmm", "memory_step_size": 4, "memory_anchor_period": 8,
         "memory_read": "running", "memory_gate_pooling": "gate_mean", "memory_expansion": 1.5,
         "num_persistent_tokens": 3, "persistent_kind": "prefix"})",
     R"({"architecture_variant": "lmm", "mem_depth": 2, "chunk_size": 4,
         "deep_memory_backend": "titans_pytorch", "memory_batch_size": 8,
         "memory_expansion_factor": 1.5, "num_persistent_memory_tokens": 3})"},
    {"lmm_plain",
     R"({"variant": "lmm", "memory_step_size": 1, "memory_anchor_period": 1,
         "memory_read": "anchor", "memory_depth": 3, "memory_norm": "none",
         "memory_momentum_order": 0, "memory_forget": false, "memory_conv_kernel": 0})",
     R"({"architecture_variant": "lmm", "mem_depth": 3, "chunk_size": 1, "momentum": false,
         "forget": false, "memory_residual_norm": false, "qkv_conv_kernel_size": 0})"},
    {"mag",
     R"({"variant": "mag", "memory_step_size": 1, "memory_anchor_period": 4,
         "memory_read": "anchor", "attention_kind": "full", "num_attention_heads": 2,
         "head_dim": 16, "mag_activation": "silu", "mag_gate_both": true,
         "num_persistent_tokens": 2, "persistent_kind": "prefix"})",
     R"({"architecture_variant": "mag", "mem_depth": 2, "chunk_size": 4,
         "num_persistent_memory_tokens": 2})"},
    {"mal",
     R"({"variant": "mal", "memory_step_size": 1, "memory_anchor_period": 4,
         "memory_read": "anchor", "attention_kind": "full", "num_attention_heads": 2,
         "head_dim": 16, "mal_inner_residual": true})",
     R"({"architecture_variant": "mal", "mem_depth": 2, "chunk_size": 4,
         "attention_segment_size": 512, "num_longterm_memory_tokens": 256})"},
};

ordered_json Merged(std::initializer_list<const char*> objects) {
  ordered_json all = ordered_json::object();
  for (const char* object : objects) all.update(ordered_json::parse(object));
  return all;
}

ordered_json AutomodelConfig(const char* own) {
  return Merged({kShape,
                 R"({"architectures": ["TitansForCausalLM"], "model_type": "titans",
                     "num_attention_heads": 2, "head_dim": 16, "hidden_act": "silu",
                     "torch_dtype": "float32"})",
                 own});
}

// The tensors of a neutral folder as Automodel's `folder`, with what only it has.
void WriteAutomodel(StoredTensors tensors, const ordered_json& config, const TestFolder& folder) {
  StoredTensors renamed;
  for (auto& [name, tensor] : tensors) {
    std::string to = name;
    for (const char* parameter : {"memory.A_log", "memory.dt_bias"}) {
      if (const size_t at = to.find(parameter); at != std::string::npos) {
        to.insert(at + std::string("memory.").size(), "_fp32_params.");
      }
    }
    renamed[to] = std::move(tensor);
  }
  if (!config.value("forget", true)) {
    for (int layer = 0; layer < 2; ++layer) {
      const std::string memory = "model.layers." + std::to_string(layer) + ".memory.";
      renamed[memory + "a_proj.weight"] = renamed.at(memory + "b_proj.weight");
    }
  }
  WriteTensors(renamed, folder.File("model.safetensors"));
  folder.Write("config.json", config.dump());
}

std::vector<double> Logits(const std::string& folder, std::span<const int32_t> ids,
                           std::unique_ptr<Backend> backend = MakeReference()) {
  const auto driver =
      Drive(folder, std::move(backend), {.slots = 1, .max_rows = 1, .max_tokens = 64});
  return FeedSlot(*driver, 0, ids);
}

class TitansAutomodelTest : public testing::TestWithParam<AutomodelCase> {};

TEST_P(TitansAutomodelTest, IsTheNeutralFunction) {
  ModelSpec spec;
  spec.config = Merged({kShape, kAlways, GetParam().neutral});
  spec.dtype = DType::kF32;
  spec.initializer_range = 0.1;
  const TestFolder neutral, automodel;
  MakeFolder(spec, neutral);
  WriteAutomodel(ReadTensors(neutral.File("model.safetensors")),
                 AutomodelConfig(GetParam().automodel), automodel);
  std::vector<int32_t> ids;
  for (int i = 0; i < 41; ++i) ids.push_back((i * 37 + 5) % 97);
  EXPECT_EQ(Logits(automodel.path(), ids), Logits(neutral.path(), ids));
}

INSTANTIATE_TEST_SUITE_P(Variants, TitansAutomodelTest, testing::ValuesIn(kAutomodelCases),
                         [](const auto& info) { return std::string(info.param.name); });

// The checkpoint of a golden, in the other format.
class TitansAutomodelGoldenTest : public testing::TestWithParam<BackendUnderTest> {};

TEST_P(TitansAutomodelGoldenTest, TheGoldenOfTheNeutralFormatInTheOther) {
  const std::string golden_folder = GoldenFolder("titans_lmm_chunk");
  if (!std::filesystem::exists(golden_folder)) GTEST_SKIP() << "no " << golden_folder;
  ordered_json stored = ordered_json::parse(std::ifstream(golden_folder + "/config.json"));
  StoredTensors tensors = ReadTensors(golden_folder + "/model.safetensors");
  const Golden golden = ReadGolden("titans_lmm_chunk");
  ordered_json config = {{"model_type", "titans"},
                         {"architecture_variant", "lmm"},
                         {"num_attention_heads", stored["memory_num_heads"]},
                         {"head_dim", stored["memory_head_dim"]},
                         {"mem_depth", stored["memory_depth"]},
                         {"memory_expansion_factor", stored["memory_expansion"]},
                         {"chunk_size", stored["memory_step_size"]},
                         {"memory_batch_size", stored["memory_anchor_period"]},
                         {"deep_memory_backend", "titans_pytorch"},
                         {"num_persistent_memory_tokens", stored["num_persistent_tokens"]}};
  for (const char* key :
       {"vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "rms_norm_eps",
        "tie_word_embeddings", "bos_token_id", "eos_token_id", "memory_theta_max"}) {
    config[key] = stored[key];
  }
  const TestFolder folder;
  WriteAutomodel(std::move(tensors), config, folder);
  const bool is_reference = GetParam().device == "reference";
  const double bound = is_reference ? 5e-7 : GetParam().device == "cuda" ? 1e-4 : 2e-5;
  const double error = WorstRowError(Logits(folder.path(), golden.input_ids, GetParam().Make()),
                                     golden.logits, golden.vocab);
  EXPECT_LE(error, bound);
  std::printf("  worst relative error of a token's logits %.2e, bound %.0e\n", error, bound);
}

INSTANTIATE_TEST_SUITE_P(Backends, TitansAutomodelGoldenTest, testing::ValuesIn(AllBackends()),
                         BackendName);

struct AutomodelRefusal {
  const char* name;
  const char* changes;
  absl::StatusCode code;
  const char* message;
};

// Automodel's folders have the gate whether the network forgets or not. A neutral one that has it
// and says that nothing is forgotten may be mistaken.
TEST(TitansAutomodelTest, AForgetGateOfANeutralFolderIsNotSilentlyUnused) {
  const TestFolder folder;
  ModelSpec spec = *SpecOfShape("titans-lmm-tiny");
  spec.config["memory_forget"] = false;
  MakeFolder(spec, folder);
  StoredTensors tensors = ReadTensors(folder.File("model.safetensors"));
  const std::string memory = "model.layers.1.memory.";
  tensors[memory + "a_proj.weight"] = tensors.at(memory + "b_proj.weight");
  WriteTensors(tensors, folder.File("model.safetensors"));
  testing::internal::CaptureStderr();
  Logits(folder.path(), std::vector<int32_t>{1, 2, 3});
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("tensors is not used: model.layers.1.memory.a_proj.weight"),
                    HasSubstr("in config.json \"memory_forget\" is false")));
}

class TitansAutomodelConfigTest : public testing::TestWithParam<AutomodelRefusal> {};

TEST_P(TitansAutomodelConfigTest, IsRefusedByName) {
  ordered_json config = AutomodelConfig(R"({"architecture_variant": "mag", "mem_depth": 2})");
  config.update(ordered_json::parse(GetParam().changes));
  const auto parsed = ParseModelConfig(config.dump(), "config.json");
  EXPECT_EQ(parsed.status().code(), GetParam().code) << parsed.status();
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(GetParam().message));
}

constexpr AutomodelRefusal kAutomodelRefusals[] = {
    {"context", R"({"architecture_variant": "mac"})", kUnimplemented,
     "\"architecture_variant\" is \"mac\", which is not supported; expected one of \"lmm\", "
     "\"mag\", \"mal\": there \"mac\" adds what the memory says to the tokens of a segment"},
    {"variant", R"({"architecture_variant": "mam"})", kUnimplemented,
     "\"architecture_variant\" is \"mam\", which is not supported; expected one of \"lmm\", "
     "\"mag\", "
     "\"mal\""},
    {"call_length", R"({"deep_memory_backend": "titans_pytorch"})", kUnimplemented,
     "\"memory_batch_size\" is null"},
    {"period", R"({"deep_memory_backend": "titans_pytorch", "memory_batch_size": 24})", kInvalid,
     "\"memory_batch_size\" is 24, expected a multiple of chunk_size (16)"},
    {"backend", R"({"deep_memory_backend": "fast"})", kUnimplemented,
     "\"deep_memory_backend\" is \"fast\""},
    {"wide", R"({"memory_expansion_factor": 4000})", kInvalid,
     "\"memory_expansion_factor\" is 4000"},
    {"odd_head", R"({"head_dim": 15})", kInvalid, "\"head_dim\" is 15"},
    {"unknown", R"({"chunksize": 8})", kInvalid, "did you mean \"chunk_size\"?"},
};

INSTANTIATE_TEST_SUITE_P(Keys, TitansAutomodelConfigTest, testing::ValuesIn(kAutomodelRefusals),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace mneme
