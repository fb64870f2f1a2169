// Tensors of a file that its configuration leaves unused: which keys are named for it.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/models/test_folder.h"
#include "tools/model_maker.h"

namespace mneme {
namespace {

using testing::HasSubstr;

struct LeftOutCase {
  const char* shape;
  const char* made_with;  // JSON, changes of the shape's config.json
  const char* changes;
  std::vector<const char*> said;
};
const LeftOutCase kLeftOutCases[] = {
    {"ttt-linear-tiny",
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
     {"\"memory_momentum_order\" is 0, \"memory_forget\" is false"}},
    {"gdn-tiny",
     "{}",
     R"({"use_gate": false, "use_short_conv": false})",
     {"layers.0.attn.g_proj.weight", "\"use_short_conv\" is false, \"use_gate\" is"}},
    {"mom-tiny",
     "{}",
     R"({"use_output_gate": false, "shared_mem": false})",
     {"layers.0.attn.g_proj.weight", "\"use_output_gate\" is false, \"shared_mem\" is"}},
    {"gla-tiny",
     R"({"use_short_conv": true})",
     R"({"use_short_conv": null, "use_output_gate": false, "elementwise_affine": false})",
     {"\"use_short_conv\" is false, \"use_output_gate\" is false, "
      "\"elementwise_affine\" is false"}},
    {"retnet-tiny",
     "{}",
     R"({"use_output_gate": false})",
     {"2 of ", "in config.json \"use_output_gate\" is false"}},
    {"delta-net-tiny",
     "{}",
     R"({"use_beta": false, "use_short_conv": false})",
     {"\"use_short_conv\" is false, \"use_beta\" is false"}},
    {"kda-tiny",
     "{}",
     R"({"use_short_conv": false})",
     {"6 of ", "in config.json \"use_short_conv\" is false"}},
    {"hgrn2-tiny",
     R"({"use_short_conv": true})",
     R"({"use_short_conv": false, "use_lower_bound": false})",
     {"\"use_short_conv\" is false, \"use_lower_bound\" is false"}},
    {"gsa-tiny",
     R"({"use_short_conv": true})",
     R"({"use_short_conv": false, "elementwise_affine": false})",
     {"\"use_short_conv\" is false, \"elementwise_affine\" is false"}},
    {"linear-attn-tiny",
     "{}",
     R"({"elementwise_affine": false})",
     {"in config.json \"elementwise_affine\" is false"}},
    {"mom-gla-tiny",
     "{}",
     R"({"single_kv_proj": true})",
     {"attn.gk_proj.0.0.weight", "in config.json \"single_kv_proj\" is true"}},
    {"mamba-tiny",
     R"({"use_bias": true})",
     R"({"use_bias": false})",
     {"in config.json \"use_bias\" is false"}},
    {"llama-tiny",
     R"({"attention_bias": true, "mlp_bias": true})",
     R"({"attention_bias": false, "mlp_bias": false})",
     {"\"attention_bias\" is false", "\"mlp_bias\" is false"}}};

// A key with another value than the weights were made with.
TEST(UnusedTensorsTest, TheKeyThatLeavesThemOutIsNamed) {
  for (const LeftOutCase& one : kLeftOutCases) {
    const TestFolder folder;
    ModelSpec spec = *SpecOfShape(one.shape);
    spec.config.merge_patch(nlohmann::ordered_json::parse(one.made_with));
    MakeFolder(spec, folder);
    const auto warnings = [&] {
      const auto plan = PlanModel(folder.path(), StateFormat{}, ModelOptions{});
      EXPECT_TRUE(plan.ok()) << one.shape << " " << one.changes << ": " << plan.status();
      return plan.ok() ? absl::StrJoin(plan->warnings, "\n") : "";
    };
    EXPECT_EQ(warnings(), "") << one.shape << " " << one.made_with;
    nlohmann::ordered_json config = nlohmann::ordered_json::parse(folder.Read("config.json"));
    config.merge_patch(nlohmann::ordered_json::parse(one.changes));
    folder.Write("config.json", config.dump());
    for (const char* part : one.said) {
      EXPECT_THAT(warnings(), HasSubstr(part)) << one.shape << " " << one.changes;
    }
  }
}

}  // namespace
}  // namespace mneme
