// A device's memory and what is asked of it: errors that say how much, and sessions counted before
// and after a model is loaded.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/log.h"
#include "engine/capacity_plan.h"
#include "engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/models/golden.h"
#include "tests/models/run_tool.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"

namespace mneme {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class DeviceMemoryTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::string device() const { return GetParam().device; }
};

TEST_P(DeviceMemoryTest, AskingForTooMuchIsAnErrorWithTheNumbers) {
  const std::unique_ptr<Backend> backend = GetParam().Make();
  const absl::Status status = backend->Allocate(int64_t{1} << 50).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              ContainsRegex("asked for 1125899906842624 bytes .*[0-9]+ are available"));
  const absl::StatusOr<void*> after = backend->Allocate(1 << 20);  // the device is sound
  ASSERT_TRUE(after.ok()) << after.status();
  backend->Zero(*after, 1 << 20);
  EXPECT_EQ(backend->Synchronize(), absl::OkStatus());
  backend->Free(*after);
}

// A terabyte, of which the file holds nothing.
TEST_P(DeviceMemoryTest, WeightsBeyondItAreAnErrorWithTheNumbers) {
  GatedDeltaSpec spec = TinySpec();
  spec.config.vocab = 1 << 24;
  spec.config.model_dim = 1 << 14;
  spec.tied = true;
  std::vector<std::string> entries;
  int64_t at = 0;
  const std::vector<TensorSpec> tensors = TensorsOf(spec.ToModelSpec()).value();
  for (const TensorSpec& tensor : tensors) {
    int64_t bytes = sizeof(float);
    for (const int64_t dim : tensor.shape) bytes *= dim;
    entries.push_back(absl::StrCat("\"", tensor.name, "\":{\"dtype\":\"F32\",\"shape\":[",
                                   absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", at,
                                   ",", at + bytes, "]}"));
    at += bytes;
  }
  std::string header = absl::StrCat("{", absl::StrJoin(entries, ","), "}");
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  const TestFolder folder;
  const std::string file = folder.File("model.safetensors");
  std::ofstream(file, std::ios::binary)
      << std::string(reinterpret_cast<const char*>(&size), sizeof(size)) << header;
  std::filesystem::resize_file(file, sizeof(size) + size + at);
  folder.Write("config.json", ConfigJson(spec.ToModelSpec()));

  const std::unique_ptr<Backend> backend = GetParam().Make();
  const absl::Status status = LoadModel(folder.path(), *backend, nullptr).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), ContainsRegex("asked for [0-9]+ bytes of .*memory, "
                                                           "[0-9]+ are available"));
}

// --plan prints the capacity that the engine comes to, and as many slabs as there are.
TEST_P(DeviceMemoryTest, ThePlanCountsTheSessionsThatTheEngineHas) {
  const std::string model = GoldenFolder("mom");
  const ToolOutcome plan = RunTool(
      "mneme-server",
      absl::StrCat("--model ", model, " --device ", device(), " --plan --state-memory 64MiB"));
  ASSERT_EQ(plan.code, 0) << plan.output;
  BackendOptions options;
  std::unique_ptr<Backend> backend = MakeBackend(device(), options).value();
  auto loaded = LoadModel(model, *backend, nullptr);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const int64_t slab_bytes = (*loaded)->state_layout().slab_bytes();
  const int64_t sessions = (int64_t{64} << 20) / slab_bytes;
  EXPECT_THAT(plan.output,
              AllOf(HasSubstr(absl::StrCat("session   ", slab_bytes, " bytes")),
                    HasSubstr(absl::StrCat("capacity  ", sessions, " sessions fit in 64.0 MiB"))));
  RealClock clock;
  const auto engine =
      Engine::Create(std::move(backend), *std::move(loaded), /*tokenizer=*/nullptr, {},
                     {.state_memory_bytes = int64_t{64} << 20, .max_rows = 8}, clock);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->capacity().sessions, sessions);
}

// Without a budget both count what is available, the one before weights are loaded and the other
// after: what else they reckon with is the same, and weights take the bytes that the plan says, but
// for the blocks in which a GPU hands out memory. An engine that takes all would leave none to the
// tests beside this one, so the counts are made without it.
TEST_P(DeviceMemoryTest, OfAllThatIsLeftThePlanCountsTheSameSessionsButForABlock) {
  constexpr int64_t kBlockBytes = int64_t{2} << 20;
  GatedDeltaSpec spec = TinySpec();
  spec.config.vocab = 1 << 14;
  spec.config.model_dim = 256;
  const TestFolder folder;
  MakeFolder(spec, folder);
  const std::unique_ptr<Backend> backend = GetParam().Make();
  const absl::StatusOr<ModelPlan> plan = PlanModel(folder.path(), *backend);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const int64_t slab_bytes = plan->state_layout.slab_bytes();
  const int64_t weight_bytes = plan->info.weight_bytes;
  ASSERT_GT(weight_bytes, 8 * kBlockBytes);
  const auto sessions = [&](int64_t left) -> int64_t {
    const auto capacity = PlanCapacity(slab_bytes, left, backend->ReserveBytes(left), {});
    CHECK(capacity.ok()) << capacity.status();
    return capacity->sessions;
  };

  // Other programs take and give back memory meanwhile: once, nobody does.
  const int64_t bound = kBlockBytes / slab_bytes + 1;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int i = 0; i < 20 && least > bound; ++i) {
    const absl::StatusOr<int64_t> before = backend->AvailableBytes();
    const auto model = LoadModel(folder.path(), *backend, nullptr);
    ASSERT_TRUE(model.ok()) << model.status();
    const absl::StatusOr<int64_t> after = backend->AvailableBytes();
    ASSERT_TRUE(before.ok() && after.ok()) << before.status() << after.status();
    EXPECT_EQ((*model)->info().weight_bytes, weight_bytes);
    EXPECT_EQ((*model)->state_layout().slab_bytes(), slab_bytes);
    EXPECT_EQ((*model)->WorkspaceBytes(512, 256, 320), plan->workspace_bytes(512, 256, 320));
    if (device() != "cuda") return;  // a host's memory is every program's, and its files'
    least = std::min(least, std::abs(sessions(*before - weight_bytes) - sessions(*after)));
  }
  EXPECT_LE(least, bound) << "of weights that take the place of " << weight_bytes / slab_bytes;
}

INSTANTIATE_TEST_SUITE_P(Backends, DeviceMemoryTest, testing::Values(AvailableBackends().back()),
                         BackendName);

// One program for hosts with a GPU and without.
TEST(CudaOrCpuTest, AutoTakesTheGpuWhereThereIsOne) {
  const auto cuda = MakeBackend("cuda", {}), chosen = MakeBackend("auto", {});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  EXPECT_EQ((*chosen)->name(), cuda.ok() ? "cuda" : "cpu");
  if (cuda.ok()) return;
  EXPECT_TRUE(absl::IsFailedPrecondition(cuda.status())) << cuda.status();
  EXPECT_THAT(std::string(cuda.status().message()),
              AnyOf(HasSubstr("no GPU was found"), HasSubstr("this build has no CUDA backend")));
}

}  // namespace
}  // namespace mneme
