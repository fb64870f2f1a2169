// The offline tools as programs: what they write, and how they fail.

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/models/golden.h"
#include "tests/models/run_tool.h"
#include "tests/models/test_folder.h"
#include "tests/support/matchers.h"
#include "tools/recall_comparison.h"

namespace mneme {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

class LogitsToolTest : public testing::Test {
 protected:
  void SetUp() override {
    golden_ = ReadGolden("mom");
    folder_.Write("ids.txt", absl::StrJoin(golden_.input_ids, "\n"));
    folder_.Write("ids16.txt",
                  absl::StrJoin(golden_.input_ids.begin(), golden_.input_ids.begin() + 16, " "));
  }
  ToolOutcome Logits(const std::string& arguments) {
    return RunTool("mneme-logits", absl::StrCat("--model ", GoldenFolder("mom"), " ", arguments));
  }
  // Runs with `arguments` and returns what was written.
  StoredTensors Written(const std::string& arguments) {
    const ToolOutcome outcome = Logits(absl::StrCat("--tokens ", folder_.File("ids.txt"), " --out ",
                                                    folder_.File("o"), " ", arguments));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.code == 0 ? ReadTensors(folder_.File("o")) : StoredTensors{};
  }

  Golden golden_;
  TestFolder folder_;
};

TEST_F(LogitsToolTest, WritesTheLogitsOfEveryToken) {
  const StoredTensors written = Written("");
  ASSERT_EQ(written.size(), 1u);
  EXPECT_EQ(written.at("logits").shape, (std::vector<int64_t>{48, 256}));
  EXPECT_LE(RelativeError(Values<float>(written, "logits"), golden_.logits), 2e-5);
}

TEST_F(LogitsToolTest, ChunksAndCompanyChangeNotOneBit) {
  const StoredTensors alone = Written("");
  for (const char* arguments : {"--chunks 7,1,13", "--batch 8", "--batch 40 --chunks 1,2"}) {
    EXPECT_EQ(Written(arguments).at("logits").bytes, alone.at("logits").bytes) << arguments;
  }
}

TEST_F(LogitsToolTest, ContinuesGreedily) {
  const std::vector<double> want(golden_.greedy.begin(), golden_.greedy.end());
  for (const char* arguments : {"", " --batch 5", " --device reference"}) {
    const ToolOutcome outcome =
        Logits(absl::StrCat("--tokens ", folder_.File("ids16.txt"), " --out ", folder_.File("o"),
                            " --greedy ", want.size(), arguments));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_EQ(Values<int32_t>(ReadTensors(folder_.File("o")), "tokens"), want) << arguments;
  }
}

// However the tokens are cut, and behind the prompt as in it, the error is the server's.
TEST_F(LogitsToolTest, AMemoryThatDivergedEndsIt) {
  const TestFolder model;
  ModelSpec spec = *SpecOfShape("titans-lmm-tiny");
  spec.config["memory_theta_max"] = 1e6;
  MakeFolder(spec, model);
  const auto message_of = [&](const std::string& arguments) {
    const ToolOutcome outcome =
        RunTool("mneme-logits", absl::StrCat("--model ", model.path(), " --out ", folder_.File("o"),
                                             " --tokens ", folder_.File(arguments)));
    EXPECT_EQ(outcome.code, 1) << outcome.output;
    return outcome.output;
  };
  const std::string message = message_of("ids.txt");
  EXPECT_THAT(message, HasSubstr("the memory of layer 0 diverged at position "));
  EXPECT_EQ(message_of("ids.txt --chunks 5,1 --batch 3"), message);
  folder_.Write("one.txt", "7");
  EXPECT_THAT(message_of("one.txt --greedy 30"), HasSubstr(" diverged at position "));
  EXPECT_EQ(folder_.Read("o"), "");
}

// A model that classifies: a document's last text in the golden, which has one token; and what
// such a model refuses.
TEST(ClassLogitsToolTest, WritesTheLogitsOfSegments) {
  const TestFolder folder;
  const StoredTensors golden = ReadTensors("tests/golden/roberta/golden.safetensors");
  const std::vector<double> ids = Values<int32_t>(golden, "input_ids");
  const std::vector<double> all = Values<float>(golden, "logits");
  folder.Write("ids.txt", absl::StrCat(ids[40]));
  const std::string arguments = absl::StrCat("--model tests/golden/roberta --tokens ",
                                             folder.File("ids.txt"), " --out ", folder.File("o"));
  const ToolOutcome outcome = RunTool("mneme-logits", arguments);
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const StoredTensors written = ReadTensors(folder.File("o"));
  EXPECT_EQ(written.at("logits").shape, (std::vector<int64_t>{1, 3}));
  EXPECT_LE(RelativeError(Values<float>(written, "logits"), {all.end() - 3, all.end()}), 2e-5);
  for (const char* flags : {" --greedy 3", " --chunks 5", " --batch 2"}) {
    const ToolOutcome refusal = RunTool("mneme-logits", arguments + flags);
    EXPECT_EQ(refusal.code, 2);
    EXPECT_THAT(refusal.output, HasSubstr("segments are never cut: expected none of"));
  }
  folder.Write("ids.txt", absl::StrJoin(std::vector<int>(21, 5), " "));
  const ToolOutcome too_long = RunTool("mneme-logits", arguments);
  EXPECT_EQ(too_long.code, 2);
  EXPECT_THAT(too_long.output, HasSubstr("a document of 21 tokens, expected 1 to 20"));
}

// Arithmetic that is not rounded has nothing to be compared with, and models without engrams have
// nothing to compare.
TEST(RecallToolTest, ComparesWhatArithmeticsRecall) {
  const TestFolder folder;
  const StoredTensors golden = ReadTensors("tests/golden/memoria_gpt2_deaths/golden.safetensors");
  const std::vector<double> ids = Values<int32_t>(golden, "input_ids");
  folder.Write("ids.txt", absl::StrJoin(ids, " "));
  const std::string tokens = absl::StrCat(" --tokens ", folder.File("ids.txt"));
  const std::string model = "--compare-recall --model tests/golden/memoria_gpt2_deaths" + tokens;
  const ToolOutcome rounded = RunTool("mneme-logits", model + " --compute-dtype bf16");
  EXPECT_EQ(rounded.code, 0);
  EXPECT_THAT(rounded.output, AnyOf(HasSubstr(" segments behind the first recalls the same"),
                                    HasSubstr("the first segment that recalls others")));
  const ToolOutcome same = RunTool("mneme-logits", model);
  EXPECT_EQ(same.code, 2);
  EXPECT_THAT(same.output, HasSubstr("expected --compute-dtype bf16"));
  folder.Write("ids.txt", "1 2 3");
  const ToolOutcome none = RunTool(
      "mneme-logits", "--compute-dtype bf16 --compare-recall --model tests/golden/mom" + tokens);
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.output, HasSubstr("makes no engrams"));
}

TEST(RecallToolTest, NamesTheFirstSegmentThatDiffers) {
  EXPECT_EQ(FirstDifference({{}, {1, 2}, {3}}, {{}, {1, 2}, {3}}),
            "each of 3 segments behind the first recalls the same");
  EXPECT_EQ(
      FirstDifference({{}, {1, 2, 5}, {3}}, {{}, {1, 4, 5}, {7}}),
      "the first segment that recalls others is 2 of 3: without rounding also engrams 2; with "
      "it also 4");
  EXPECT_EQ(
      FirstDifference({{1, 2}}, {{1}}),
      "the first segment that recalls others is 1 of 1: without rounding also engrams 2; with "
      "it also none");
}

TEST_F(LogitsToolTest, RoutingIsRecordedAndForced) {
  Written("--batch 6 --chunks 5,3 --routing-out " + folder_.File("r"));
  const StoredTensors routing = ReadTensors(folder_.File("r"));
  EXPECT_EQ(routing.at("routing").shape, (std::vector<int64_t>{48, 3, 2}));
  // A tape on which each token's memories are moved on by one gives other logits; played back it
  // repeats itself.
  StoredTensors moved = routing;
  auto* indices = reinterpret_cast<int32_t*>(moved.at("routing").bytes.data());
  for (int i = 0; i < 48 * 3 * 2; ++i) indices[i] = (indices[i] + 1) % 4;
  WriteTensors(moved, folder_.File("moved"));
  const StoredTensors free = Written("");
  EXPECT_EQ(Written("--routing-in " + folder_.File("r")).at("logits").bytes,
            free.at("logits").bytes);
  const StoredTensors forced =
      Written("--routing-in " + folder_.File("moved") + " --routing-out " + folder_.File("again"));
  EXPECT_NE(forced.at("logits").bytes, free.at("logits").bytes);
  EXPECT_EQ(ReadTensors(folder_.File("again")).at("routing").bytes, moved.at("routing").bytes);
}

TEST_F(LogitsToolTest, BadTapesAreRefused) {
  Written("--routing-out " + folder_.File("r"));
  StoredTensors tape = ReadTensors(folder_.File("r"));
  auto* indices = reinterpret_cast<int32_t*>(tape.at("routing").bytes.data());
  const std::string arguments =
      absl::StrCat("--tokens ", folder_.File("ids.txt"), " --out ", folder_.File("o"),
                   " --routing-in ", folder_.File("bad"));
  indices[3] = 4;
  WriteTensors(tape, folder_.File("bad"));
  EXPECT_THAT(Logits(arguments).output,
              HasSubstr("element 3 of tensor \"routing\" is 4, expected a memory from 0 to 3"));
  indices[3] = indices[2];
  WriteTensors(tape, folder_.File("bad"));
  EXPECT_THAT(Logits(arguments).output, HasSubstr("expected memories that differ"));
  indices[2] = indices[3] = -1;  // of the first token's second layer
  WriteTensors(tape, folder_.File("bad"));
  EXPECT_THAT(Logits(arguments).output, HasSubstr("expected -1, as its layer has no router"));
}

TEST_F(LogitsToolTest, LayersWithAttentionHaveNoRouting) {
  const TestFolder model;
  MakeFolder(*SpecOfShape("mom-hybrid-tiny"), model);
  const auto run = [&](const std::string& out, const std::string& arguments) {
    const ToolOutcome outcome =
        RunTool("mneme-logits",
                absl::StrCat("--model ", model.path(), " --tokens ", folder_.File("ids.txt"),
                             " --out ", folder_.File(out), " ", arguments));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return ReadTensors(folder_.File(out));
  };
  const StoredTensors free = run("free", "--routing-out " + folder_.File("tape"));
  const StoredTensors tape = ReadTensors(folder_.File("tape"));
  const std::vector<double> memories = Values<int32_t>(tape, "routing");
  for (size_t i = 0; i < memories.size(); ++i) {
    EXPECT_EQ(memories[i] == -1, i / 2 % 3 == 1) << "choice " << i << " of two in three layers";
  }
  EXPECT_EQ(run("forced", "--routing-in " + folder_.File("tape")).at("logits").bytes,
            free.at("logits").bytes);
  const ToolOutcome shown =
      RunTool("mneme-inspect",
              absl::StrCat("routing ", model.path(), " --tokens ", folder_.File("ids.txt")));
  EXPECT_EQ(shown.code, 0);
  EXPECT_THAT(shown.output,
              AllOf(HasSubstr("layer 0 "), Not(HasSubstr("layer 1 ")), HasSubstr("layer 2 ")));
}

TEST_F(LogitsToolTest, BadArgumentsAreNamed) {
  const std::string good =
      absl::StrCat("--tokens ", folder_.File("ids.txt"), " --out ", folder_.File("x"), " ");
  folder_.Write("empty.txt", "");
  folder_.Write("blank.txt", " \n\t ");
  folder_.Write("outside.txt", "3 4 256 5");
  folder_.Write("words.txt", "3 four");
  const struct {
    std::string arguments;
    int code;
    std::string message;
  } cases[] = {
      {"--out " + folder_.File("x"), 2, "--tokens is required"},
      {good + "--chunks 4,0", 2, "--chunks: \"0\", expected an integer from 1"},
      {good + "--batch 0", 2, "--batch: \"0\""},
      {good + "--device tpu", 2, "tpu"},
      {good + "--compute-dtype f8", 2, "--compute-dtype: \"f8\", expected f32 or bf16"},
      {good + "--gredy 5", 2, "unknown flag --gredy, did you mean --greedy?"},
      {good + "--batch 2 --routing-in r", 2, "--routing-in"},
      {good + "extra", 2, "unexpected argument \"extra\""},
      {good + "--model /nowhere", 3, "model folder \"/nowhere\" does not exist"},
      {"--tokens /nowhere --out x", 2, "\"/nowhere\""},
      {absl::StrCat("--out x --tokens ", folder_.File("empty.txt")), 2, "is empty"},
      {absl::StrCat("--out x --tokens ", folder_.File("blank.txt")), 2, "holds no token"},
      {absl::StrCat("--out x --tokens ", folder_.File("outside.txt")), 2,
       "token 2 is \"256\", expected an id from 0 to 255"},
      {absl::StrCat("--out x --tokens ", folder_.File("words.txt")), 2, "token 1 is \"four\""},
      {absl::StrCat("--out /nowhere/x --tokens ", folder_.File("ids.txt")), 1, "/nowhere/x"},
  };
  for (const auto& [arguments, code, message] : cases) {
    const ToolOutcome outcome = Logits(arguments);
    EXPECT_EQ(outcome.code, code) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(message)) << arguments;
  }
  EXPECT_EQ(folder_.Read("x"), "");
}

TEST_F(LogitsToolTest, OutputsThatWouldDestroyInputsAreRefused) {
  const TestFolder model;
  MakeFolder(TinySpec(), model);
  folder_.Write("in", "a tape");
  const std::string ids = folder_.File("ids16.txt"), out = folder_.File("new");
  std::filesystem::create_symlink(model.path(), folder_.File("link"));
  std::filesystem::create_hard_link(ids, folder_.File("hard"));
  const struct {
    std::string arguments, flag, other;
  } cases[] = {
      {"--out " + model.File("model.safetensors"), "--out: ", "--model"},
      {"--out " + folder_.File("link/config.json"), "--out: ", "--model"},
      {"--out " + model.File("nowhere/../config.json"), "--out: ", "--model"},
      {"--out " + ids, "--out: ", "--tokens"},
      {"--out " + folder_.File("./hard"), "--out: ", "--tokens"},
      {"--out " + out + " --routing-out " + folder_.File("../") +
           std::filesystem::path(folder_.path()).filename().string() + "/new",
       "--routing-out: ", "--out"},
      {"--out " + out + " --routing-out " + ids, "--routing-out: ", "--tokens"},
      {"--out " + folder_.File("in") + " --routing-in " + folder_.File("in"),
       "--out: ", "--routing-in"},
      {"--out " + out + " --routing-out " + model.File("config.json"),
       "--routing-out: ", "--model"},
  };
  const std::string weights = model.Read("model.safetensors"), config = model.Read("config.json");
  const std::string tokens = folder_.Read("ids16.txt");
  for (const auto& [arguments, flag, other] : cases) {
    const ToolOutcome outcome = RunTool(
        "mneme-logits", absl::StrCat("--model ", model.path(), "/ --tokens ", ids, " ", arguments));
    EXPECT_EQ(outcome.code, 2) << arguments << "\n" << outcome.output;
    EXPECT_THAT(outcome.output, AllOf(HasSubstr(flag), HasSubstr(other))) << arguments;
  }
  EXPECT_EQ(model.Read("model.safetensors"), weights);
  EXPECT_EQ(model.Read("config.json"), config);
  EXPECT_EQ(folder_.Read("ids16.txt"), tokens);
  EXPECT_EQ(folder_.Read("in"), "a tape");
  EXPECT_FALSE(std::filesystem::exists(out));
  // A new file beside the model is nobody's loss.
  const ToolOutcome beside =
      RunTool("mneme-logits", absl::StrCat("--model ", model.path(), " --tokens ", ids, " --out ",
                                           model.File("logits.safetensors")));
  EXPECT_EQ(beside.code, 0) << beside.output;
}

TEST_F(LogitsToolTest, TensorsThatAnIndexDoesNotNameAreListed) {
  const TestFolder model;
  MakeFolder(TinySpec(), model);
  std::filesystem::rename(model.File("model.safetensors"), model.File("part.safetensors"));
  std::string map;
  for (const auto& [name, tensor] : ReadTensors(model.File("part.safetensors"))) {
    if (name == "model.norm.weight") continue;
    absl::StrAppend(&map, map.empty() ? "" : ", ", "\"", name, "\": \"part.safetensors\"");
  }
  model.Write("model.safetensors.index.json", absl::StrCat("{\"weight_map\": {", map, "}}"));
  const ToolOutcome outcome = RunTool(
      "mneme-logits", absl::StrCat("--model ", model.path(), " --tokens ",
                                   folder_.File("ids16.txt"), " --out ", folder_.File("o")));
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("model.safetensors.index.json: 1 tensor of the shards is "
                                        "not in \"weight_map\", and read all the same: "
                                        "model.norm.weight"));
}

TEST_F(LogitsToolTest, KeysOfTheConfigurationThatLookMisspelledAreNamed) {
  const TestFolder model;
  MakeFolder(TinySpec(), model);
  const auto output_with = [&](const std::string& key) {
    std::string config = model.Read("config.json");
    config.insert(config.rfind('}'), absl::StrCat(", \"", key, "\": 3"));
    const TestFolder changed;
    std::filesystem::copy(model.path(), changed.path());
    changed.Write("config.json", config);
    const ToolOutcome outcome = RunTool(
        "mneme-logits", absl::StrCat("--model ", changed.path(), " --tokens ",
                                     folder_.File("ids16.txt"), " --out ", folder_.File("o")));
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(
      output_with("hiden_size"),
      HasSubstr("key \"hiden_size\" is unknown and ignored; did you mean \"hidden_size\"?"));
  EXPECT_THAT(output_with("num_memorys"), HasSubstr("did you mean \"num_memories\"?"));
  EXPECT_THAT(output_with("eos_tokn_id"), HasSubstr("did you mean \"eos_token_id\"?"));
  EXPECT_THAT(output_with("topkk"), HasSubstr("did you mean \"topk\"?"));
  for (const char* key : {"expand_k", "num_kv_heads", "pad_token_id", "use_cache", "my_own_note",
                          "top_k", "norm_bias"}) {
    EXPECT_THAT(output_with(key), Not(HasSubstr("did you mean"))) << key;
  }
}

TEST(MakeModelToolTest, EqualSeedsGiveEqualFilesThatLoad) {
  const TestFolder folder;
  for (const auto& [name, seed] : {std::pair{"a", 5}, std::pair{"b", 5}, std::pair{"c", 6}}) {
    const ToolOutcome outcome =
        RunTool("mneme-make-model",
                absl::StrCat("--shape tiny --seed ", seed, " --out ", folder.File(name)));
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("mean decay"));
    EXPECT_THAT(outcome.output, HasSubstr("routing share"));
  }
  EXPECT_EQ(folder.Read("a/model.safetensors"), folder.Read("b/model.safetensors"));
  EXPECT_NE(folder.Read("a/model.safetensors"), folder.Read("c/model.safetensors"));
  EXPECT_EQ(RunTool("mneme-make-model", "--shape tiny --out " + folder.File("a")).code, 2);
  EXPECT_EQ(RunTool("mneme-make-model",
                    "--shape gdn-tiny --vocab 300 --dtype f16 --shards 3 --overwrite --out " +
                        folder.File("a"))
                .code,
            0);
}

TEST(MakeModelToolTest, VocabularyAndDepthHaveTheNamesAndTokensOfTheShape) {
  const TestFolder folder;
  const auto config_of = [&](const std::string& arguments) {
    const ToolOutcome made = RunTool(
        "mneme-make-model", absl::StrCat(arguments, " --overwrite --out ", folder.File("m")));
    EXPECT_EQ(made.code, 0) << arguments << "\n" << made.output;
    return nlohmann::json::parse(folder.Read("m/config.json"));
  };
  const nlohmann::json deep = config_of("--shape titans-pytorch-tiny --layers 3 --vocab 1000");
  EXPECT_EQ(deep["depth"], 3);
  EXPECT_EQ(deep["num_tokens"], 1000);
  EXPECT_EQ(deep["neural_memory_layers"], nlohmann::json({2}));
  EXPECT_EQ(config_of("--shape titans-pytorch-tiny --layers 1")["neural_memory_layers"],
            nlohmann::json::array());
  const nlohmann::json small = config_of("--shape gpt2-124m --layers 1 --vocab 300");
  EXPECT_EQ(small["n_layer"], 1);
  EXPECT_EQ(small["bos_token_id"], 299);
  EXPECT_EQ(small["eos_token_id"], 299);
}

TEST(MakeModelToolTest, WeightsWithoutConfigurationAreKept) {
  const TestFolder folder;
  folder.Write("model-00001-of-00002.safetensors", "weights");
  const ToolOutcome outcome = RunTool("mneme-make-model", "--shape tiny --out " + folder.path());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("model-00001-of-00002.safetensors\" exists"));
  EXPECT_EQ(folder.Read("model-00001-of-00002.safetensors"), "weights");
}

TEST(MakeModelToolTest, EveryShardHoldsATensorOrThereAreTooMany) {
  const TestFolder folder;
  const auto make = [&](int shards) {
    return RunTool("mneme-make-model", absl::StrCat("--shape tiny --overwrite --shards ", shards,
                                                    " --out ", folder.File("m")));
  };
  const ToolOutcome many = make(1000);
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.output, HasSubstr("--shards: 1000, expected at most "));
  const size_t at = many.output.find("at most ") + 8;
  const int most = std::atoi(many.output.c_str() + at);
  ASSERT_GT(most, 10);
  EXPECT_EQ(make(most + 1).code, 2);
  for (const int shards : {most, most - 1}) {
    const ToolOutcome made = make(shards);
    ASSERT_EQ(made.code, 0) << made.output;
    for (int i = 1; i <= shards; ++i) {
      const std::string name = absl::StrFormat("m/model-%05d-of-%05d.safetensors", i, shards);
      EXPECT_FALSE(ReadTensors(folder.File(name)).empty()) << name;
    }
  }
}

TEST(InspectToolTest, TensorsThatAreNoNumbersDifferByTheirBits) {
  const TestFolder folder;
  // One U8 tensor of two elements, with other bytes in each file.
  const std::string header = R"({"flags":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  const std::string size = {static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0};
  folder.Write("a.safetensors", size + header + "xy");
  folder.Write("b.safetensors", size + header + "xz");
  const ToolOutcome outcome = RunTool(
      "mneme-inspect",
      absl::StrCat("diff ", folder.File("a.safetensors"), " ", folder.File("b.safetensors")));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("flags"), HasSubstr(" bits differ")));
}

TEST(InspectToolTest, ShowsWeightsStateRoutingAndDifferences) {
  const TestFolder folder;
  const std::string model = GoldenFolder("mom");
  EXPECT_THAT(RunTool("mneme-inspect", "weights " + model).output,
              HasSubstr("model.layers.0.attn.k_proj.0.weight"));
  EXPECT_THAT(RunTool("mneme-inspect", "state " + model).output, HasSubstr("layers.0-2.memory"));
  folder.Write("ids.txt", "1 2 3");
  std::string png;
#ifdef MNEME_HAVE_PNG
  png = " --png " + folder.File("r.png");
#endif
  const ToolOutcome routing = RunTool(
      "mneme-inspect", absl::StrCat("routing ", model, " --tokens ", folder.File("ids.txt"), png));
  EXPECT_EQ(routing.code, 0) << routing.output;
  EXPECT_THAT(routing.output, HasSubstr("layer 2"));
  EXPECT_THAT(routing.output, HasSubstr("norm of each memory after the prompt\nlayer 0  "));
  EXPECT_EQ(folder.Read("r.png").substr(0, 4), png.empty() ? "" : "\x89PNG");
  const std::string ids = folder.File("ids.txt");
  for (const auto& [file, other] :
       {std::pair(ids, "--tokens"), std::pair(model + "/config.json", "FOLDER")}) {
    const ToolOutcome refused = RunTool(
        "mneme-inspect", absl::StrCat("routing ", model, " --tokens ", ids, " --png ", file));
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.output, AllOf(HasSubstr("--png: "), HasSubstr(other)));
  }
  EXPECT_EQ(folder.Read("ids.txt"), "1 2 3");
  const std::string golden = model + "/golden.safetensors";
  EXPECT_EQ(RunTool("mneme-inspect", absl::StrCat("diff ", golden, " ", golden)).code, 0);
  const ToolOutcome differs = RunTool(
      "mneme-inspect",
      absl::StrCat("diff ", golden, " ", GoldenFolder("gated_deltanet"), "/golden.safetensors"));
  EXPECT_EQ(differs.code, 1);
  EXPECT_THAT(differs.output, HasSubstr("relative error"));
  EXPECT_EQ(RunTool("mneme-inspect", "weights /etc/passwd").code, 3);
  EXPECT_EQ(RunTool("mneme-inspect", "").code, 2);
  EXPECT_THAT(RunTool("mneme-inspect", "--help").output, HasSubstr("usage: mneme-inspect"));
}

}  // namespace
}  // namespace mneme
