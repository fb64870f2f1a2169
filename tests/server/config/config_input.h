// Command lines, environments and files for tests of the configuration.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/config/config.h"

namespace mneme {

using Environment = std::map<std::string, std::string>;

// Reads `environment`, which has to outlive it.
inline GetEnvironment Getter(const Environment& environment) {
  return [&environment](const char* name) -> const char* {
    const auto it = environment.find(name);
    return it == environment.end() ? nullptr : it->second.c_str();
  };
}

inline absl::StatusOr<CommandLine> Parse(const std::vector<const char*>& arguments,
                                         const Environment& environment = {}) {
  return ParseCommandLine(arguments, Getter(environment));
}

// The configuration, which has to be in order.
inline v1::ServerConfig ParseConfig(const std::vector<const char*>& arguments,
                                    const Environment& environment = {}) {
  absl::StatusOr<CommandLine> line = Parse(arguments, environment);
  EXPECT_TRUE(line.ok()) << line.status();
  return line.ok() ? line->config : v1::ServerConfig();
}

// The message that refuses it; "" if it is in order.
inline std::string ErrorOf(const std::vector<const char*>& arguments,
                           const Environment& environment = {}) {
  return std::string(Parse(arguments, environment).status().message());
}

// A file with this text, which goes with the object.
class ConfigFile {
 public:
  explicit ConfigFile(const std::string& text) : path_(testing::TempDir() + "mneme_config_XXXXXX") {
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    std::ofstream(path_) << text;
  }
  ~ConfigFile() { std::remove(path_.c_str()); }
  ConfigFile(const ConfigFile&) = delete;
  ConfigFile& operator=(const ConfigFile&) = delete;
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
};

}  // namespace mneme
