// The fixture of tests that a GPU alone can run.
#pragma once

#include "gtest/gtest.h"
#include "tests/support/backends.h"

namespace mneme {

// A fixture that sets more up calls this SetUp() first, and returns where it IsSkipped().
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (AvailableBackends()[0].device != "cuda") GTEST_SKIP() << "needs MNEME_TEST_DEVICE=cuda";
  }
};

}  // namespace mneme
