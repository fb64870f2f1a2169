// A configuration in protobuf's text format: the file of --config, and the texts of --set.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "mneme/v1/config.pb.h"

namespace mneme {

// Where the value of a field came from, by FlagSpec::path, as messages about it begin: "--device",
// "MNEME_DEVICE", "mneme.textproto:3:5: device.kind". Fields that nobody set have none.
using FieldOrigins = std::map<std::string, std::string>;

// Merges `text` into `config`: fields that the text sets replace those already there. `source` is
// what messages call the text, "--set" or a path. INVALID_ARGUMENT names line and column, the
// field, what was found and what was expected; for a field that does not exist the nearest one, or
// all of its section.
absl::Status MergeConfigText(const std::string& text, absl::string_view source,
                             v1::ServerConfig& config, FieldOrigins& origins);

// The same of the file at `path`, which may be a pipe; NOT_FOUND if it cannot be read.
absl::Status MergeConfigFile(const std::string& path, v1::ServerConfig& config,
                             FieldOrigins& origins);

}  // namespace mneme
