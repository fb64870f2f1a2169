#include "base/control_group.h"

#include <fstream>

namespace mneme {

std::vector<std::string> ControlGroups() {
  std::ifstream groups("/proc/self/cgroup");
  std::string line, path;
  while (std::getline(groups, line)) {
    if (line.rfind("0::", 0) == 0) path = line.substr(3);
  }
  std::vector<std::string> folders;
  while (true) {
    if (!path.empty() && path.back() == '/') path.pop_back();
    folders.push_back("/sys/fs/cgroup" + path);
    if (path.empty()) return folders;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace mneme
