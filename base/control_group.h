// Where Linux keeps the limits of this process.
#pragma once

#include <string>
#include <vector>

namespace mneme {

// The folders of the process's control group (version 2) and of all groups above it, as far as they
// are visible; a limit in any of them holds. "/sys/fs/cgroup/system.slice/mneme.service",
// "/sys/fs/cgroup/system.slice", "/sys/fs/cgroup". In a container usually the last one alone.
std::vector<std::string> ControlGroups();

}  // namespace mneme
