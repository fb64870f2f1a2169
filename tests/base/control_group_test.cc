#include "base/control_group.h"

#include <gtest/gtest.h>

namespace mneme {
namespace {

TEST(ControlGroupTest, GroupsLieInEachOtherUpToTheTop) {
  const std::vector<std::string> groups = ControlGroups();
  ASSERT_FALSE(groups.empty());
  EXPECT_EQ(groups.back(), "/sys/fs/cgroup");
  for (size_t i = 1; i < groups.size(); ++i) {
    EXPECT_EQ(groups[i - 1].substr(0, groups[i - 1].rfind('/')), groups[i]);
  }
}

}  // namespace
}  // namespace mneme
