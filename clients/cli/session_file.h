// `mneme session export` and `import`.
#pragma once

#include <cstdint>
#include <string>

#include "clients/cpp/client.h"

namespace mneme::cli {

// Each returns the exit code. The file is written whole or not at all. "-" is standard output,
// which has whatever came before an error, or standard input.
int ExportSession(Client& client, const std::string& name, const std::string& path, bool force,
                  bool json);
// An empty name is chosen by the server.
int ImportSession(Client& client, const std::string& path, const std::string& name, int64_t ttl_ms,
                  bool json);

}  // namespace mneme::cli
