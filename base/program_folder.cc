#include "base/program_folder.h"

#include <unistd.h>

#include <climits>

#include "absl/strings/string_view.h"

namespace mneme {

std::string ProgramFolder() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  const absl::string_view program(path, size > 0 ? static_cast<size_t>(size) : 0);
  const size_t slash = program.rfind('/');
  return std::string(program.substr(0, slash == absl::string_view::npos ? 0 : slash));
}

}  // namespace mneme
