#include "kernels/cpu/host_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "base/control_group.h"

namespace mneme {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
constexpr int64_t kHugePage = int64_t{2} << 20;

// The number in a file that holds one; kUnlimited for "max" or no such file.
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t value;
  return file >> value ? value : kUnlimited;
}

// The value of "key value" or "key: value" in a file of such lines; -1 if it has none.
int64_t ValueOf(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value;
    if (words >> name >> value && name == key) return value;
  }
  return -1;
}

// Limit minus use of one control group; cached file pages can be dropped, so they count as free.
int64_t LeftInGroup(const std::string& limit, const std::string& usage, const std::string& stat,
                    const std::string& cached) {
  const int64_t bytes = NumberIn(limit);
  const int64_t used = NumberIn(usage);
  if (bytes == kUnlimited || used == kUnlimited) return kUnlimited;
  return std::max<int64_t>(0, bytes - used + std::max<int64_t>(0, ValueOf(stat, cached)));
}

int64_t LeftInControlGroup() {
  const std::string v1 = "/sys/fs/cgroup/memory/memory.";
  int64_t left =
      LeftInGroup(v1 + "limit_in_bytes", v1 + "usage_in_bytes", v1 + "stat", "total_inactive_file");
  for (const std::string& folder : ControlGroups()) {
    const std::string group = folder + "/memory.";
    left = std::min(left,
                    LeftInGroup(group + "max", group + "current", group + "stat", "inactive_file"));
  }
  return left;
}

// The rest of a limit set on this process (ulimit): less what /proc/self/status says is in use.
int64_t LeftOfLimit(__rlimit_resource_t resource, const std::string& used) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  const int64_t kilobytes = ValueOf("/proc/self/status", used);
  if (kilobytes < 0) return kUnlimited;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - kilobytes * 1024);
}

}  // namespace

absl::StatusOr<int64_t> AvailableHostBytes() {
  const int64_t kilobytes = ValueOf("/proc/meminfo", "MemAvailable:");
  if (kilobytes < 0) return absl::UnavailableError("/proc/meminfo does not tell MemAvailable");
  return std::min({kilobytes * 1024, LeftInControlGroup(), LeftOfLimit(RLIMIT_AS, "VmSize:"),
                   LeftOfLimit(RLIMIT_DATA, "VmData:")});
}

void* AllocateHost(int64_t bytes) {
  const bool large = bytes >= 4 * kHugePage;
  const int64_t alignment = large ? kHugePage : 64;
  const int64_t padded = (std::max<int64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  void* data = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(padded));
  // A hint; without it the block works the same.
  if (large && data != nullptr) madvise(data, static_cast<size_t>(padded), MADV_HUGEPAGE);
  return data;
}

}  // namespace mneme
