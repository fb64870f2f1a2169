#include "clients/cli/session_rewind.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "clients/cli/command.h"
#include "clients/cli/session_lines.h"

namespace mneme::cli {

absl::StatusOr<Place> ParsePlace(const std::string& text) {
  int64_t position = 0;
  if (absl::SimpleAtoi(text, &position)) {
    if (position >= 0) return Place{.position = position};
    return absl::InvalidArgumentError(
        absl::StrCat("position ", position, " is below 0, where every session begins"));
  }
  absl::string_view name = text;
  absl::ConsumePrefix(&name, "checkpoint:");
  if (!name.empty()) return Place{.checkpoint = std::string(name)};
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no place, expected a position or the name of a checkpoint"));
}

int MakeCheckpoint(Client& client, const std::string& session, const std::string& name, bool json) {
  v1::CreateCheckpointRequest request;
  request.set_session(session);
  request.set_name(name);
  const absl::StatusOr<v1::Checkpoint> made = client.CreateCheckpoint(request);
  if (!made.ok()) return ReportError(made.status());
  if (!json) PrintCheckpointHeader();
  PrintCheckpoint(*made, json);
  return kOk;
}

int ListCheckpoints(Client& client, const std::string& session, bool json) {
  const absl::StatusOr<v1::ListCheckpointsResponse> all = client.ListCheckpoints(session);
  if (!all.ok()) return ReportError(all.status());
  if (!json) PrintCheckpointHeader();
  for (const v1::Checkpoint& one : all->checkpoints()) PrintCheckpoint(one, json);
  return kOk;
}

int DropCheckpoints(Client& client, const std::string& session,
                    const std::vector<std::string>& words) {
  int code = kOk;
  for (const std::string& name : words) {
    const absl::Status status = client.DeleteCheckpoint(session, name);
    if (!status.ok()) code = ReportError(status);
  }
  return code;
}

absl::StatusOr<v1::Session> Rewind(Client& client, const std::string& session, const Place& to) {
  v1::RewindSessionRequest request;
  request.set_name(session);
  if (to.position.has_value()) {
    request.set_position(*to.position);
  } else {
    request.set_checkpoint(to.checkpoint);
  }
  return client.RewindSession(request);
}

}  // namespace mneme::cli
