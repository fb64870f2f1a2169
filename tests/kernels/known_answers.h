// The fixture of small cases worked out by hand. They hold the reference backend as well, which the
// other tests take on trust.
#pragma once

#include <memory>

#include "gtest/gtest.h"
#include "tests/support/backends.h"
#include "tests/support/bounds.h"
#include "tests/support/workbench.h"

namespace mneme {

// Every case is of size about 1 and a few operations long.
inline constexpr double kKnownBound = 32 * kUnitF32;

class KnownAnswersTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
  Workbench bench_{*backend_};
  Kernels& kernels_ = backend_->kernels();
};

}  // namespace mneme
