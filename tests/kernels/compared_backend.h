// The fixture of operations of which tests need a backend and the reference alone.
#pragma once

#include <memory>

#include "gtest/gtest.h"
#include "tests/support/backends.h"

namespace mneme {

// Tests take it by a name of their own, so that cases are found by operation.
class ComparedBackendTest : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().Make();
  std::unique_ptr<Backend> reference_ = MakeReference();
};

}  // namespace mneme
