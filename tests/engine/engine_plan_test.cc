// What sessions leave of the memory to others.
#include "engine/engine_plan.h"

#include <cstdint>

#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/support/fake_model.h"

namespace mneme {
namespace {

constexpr int64_t kSlab = int64_t{1} << 20;

TEST(EnginePlanTest, SnapshotsOnTheirWayAreTakenFromMemoryThatIsTheHostsToo) {
  FaultyBackend backend;
  backend.set_available_bytes(1000 * kSlab);
  const auto sessions = [&](int64_t snapshot_bytes) {
    EngineOptions options;
    const ModelNeeds needs = {.slab_bytes = kSlab,
                              .outputs = 16,
                              .workspace_bytes = [](int, int, int) { return kSlab; },
                              .snapshot_bytes = snapshot_bytes};
    const auto plan = PlanEngine(backend, needs, options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? plan->capacity.sessions : 0;
  };
  const int without = sessions(0);
  EXPECT_GT(without, 500);
  const int with = sessions(100 * kSlab);
  EXPECT_LE(with, without - 80);
  backend.set_asynchronous(true);  // with memory of its own
  EXPECT_EQ(sessions(100 * kSlab), sessions(0));
}

}  // namespace
}  // namespace mneme
