// Every golden through mneme-logits on a GPU: exact arithmetic, and rounded arithmetic at the
// routing that the exact one took down.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/models/golden.h"
#include "tests/models/recorded_routing.h"
#include "tests/models/rounded_weights.h"
#include "tests/models/run_tool.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

class CudaLogitsToolTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (AvailableBackends()[0].device != "cuda") GTEST_SKIP() << "needs MNEME_TEST_DEVICE=cuda";
    golden_ = ReadGolden(GetParam());
    folder_.Write("ids", absl::StrJoin(golden_.input_ids, " "));
    folder_.Write("prompt", absl::StrJoin(golden_.input_ids.begin(),
                                          golden_.input_ids.begin() + golden_.greedy_begin, " "));
  }
  // The tensors that a run with these arguments writes.
  StoredTensors Run(const std::string& arguments, const std::string& ids = "ids") {
    const ToolOutcome outcome =
        RunTool("mneme-logits",
                absl::StrCat("--device cuda --model ", GoldenFolder(GetParam()), " --tokens ",
                             folder_.File(ids), " --out ", folder_.File("out"), " ", arguments));
    EXPECT_EQ(outcome.code, 0) << arguments << "\n" << outcome.output;
    return outcome.code == 0 ? ReadTensors(folder_.File("out")) : StoredTensors{};
  }
  double WorstPosition(const std::string& arguments) {
    const StoredTensors written = Run(arguments);
    if (written.empty()) return INFINITY;
    return WorstRowError(Values<float>(written, "logits"), golden_.logits, golden_.vocab);
  }
  RoutingChoices Choices(const std::string& file) const {
    const std::vector<double> values = Values<int32_t>(ReadTensors(folder_.File(file)), "routing");
    return {{values.begin(), values.end()}};
  }

  Golden golden_;
  TestFolder folder_;
};

TEST_P(CudaLogitsToolTest, ExactArithmeticGivesTheGoldenLogits) {
  for (const char* arguments : {"", "--chunks 7,1,13 --batch 5"}) {
    const double worst = WorstPosition(absl::StrCat("--compute-dtype f32 ", arguments));
    EXPECT_LE(worst, 1e-4) << arguments;
    std::printf("  %s, f32 %s: worst position %.1e\n", GetParam().c_str(), arguments, worst);
  }
  const std::vector<double> want(golden_.greedy.begin(), golden_.greedy.end());
  const StoredTensors written = Run(absl::StrCat("--greedy ", want.size()), "prompt");
  ASSERT_FALSE(written.empty());
  EXPECT_EQ(Values<int32_t>(written, "tokens"), want);
}

TEST_P(CudaLogitsToolTest, RoundedArithmeticIsCloseAtEqualRouting) {
  const auto plan = PlanModel(GoldenFolder(GetParam()), StateFormat{});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int top_k = plan->info.top_k;
  const bool routed = top_k > 0;
  std::string forced, record;
  if (routed) {
    Run(absl::StrCat("--routing-out ", folder_.File("exact")));
    forced = absl::StrCat(" --routing-in ", folder_.File("exact"));
    record = absl::StrCat(" --routing-out ", folder_.File("rounded"));
  }
  const double bound = std::max(2e-2, MeasureSensitivity(GetParam()).worst_bound());
  for (const char* chunks : {"", " --chunks 1"}) {
    const double worst = WorstPosition(absl::StrCat("--compute-dtype bf16", forced, chunks));
    EXPECT_LE(worst, bound) << chunks;
    std::printf("  %s, bf16%s: worst position %.1e\n", GetParam().c_str(), chunks, worst);
  }
  if (!routed) return;
  Run(absl::StrCat("--compute-dtype bf16", record));
  const FlippedChoices flips = CompareChoices(Choices("rounded"), Choices("exact"), top_k);
  EXPECT_LE(flips.share(), 0.05);  // as in rounded_golden_test
  std::printf("  %s, bf16: %lld of %lld choices flipped\n", GetParam().c_str(),
              static_cast<long long>(flips.flipped), static_cast<long long>(flips.all));
}

INSTANTIATE_TEST_SUITE_P(Cuda, CudaLogitsToolTest, testing::ValuesIn(GoldenNames()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

}  // namespace
}  // namespace mneme
