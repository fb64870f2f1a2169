// The commands of `mneme session` on a session's past.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "clients/cpp/client.h"

namespace mneme::cli {

// A place in the past, as the command line names it.
struct Place {
  std::optional<int64_t> position;
  std::string checkpoint;
};
// A number is a position, and anything else a checkpoint's name; "checkpoint:" in front of a name
// that is a number, or begins so, says that it is one.
// INVALID_ARGUMENT for a position below 0, and for no name.
absl::StatusOr<Place> ParsePlace(const std::string& text);

// Prints the new checkpoint; returns the exit code.
int MakeCheckpoint(Client& client, const std::string& session, const std::string& name, bool json);
int ListCheckpoints(Client& client, const std::string& session, bool json);
// `words`: names of checkpoints.
int DropCheckpoints(Client& client, const std::string& session,
                    const std::vector<std::string>& words);
absl::StatusOr<v1::Session> Rewind(Client& client, const std::string& session, const Place& to);

}  // namespace mneme::cli
