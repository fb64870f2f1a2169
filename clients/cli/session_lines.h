// Sessions as `mneme session` and `mneme admin` print them: a line each.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "clients/cli/command.h"
#include "mneme/v1/sessions.pb.h"

namespace mneme::cli {

// `owners`: with a column for them.
void PrintSessionHeader(bool owners);
void PrintSession(const v1::Session& session, bool json, bool owners);
void PrintSessionUsage(const v1::SessionUsage& usage, bool json);

void PrintCheckpointHeader();
void PrintCheckpoint(const v1::Checkpoint& checkpoint, bool json);

// Asks `list` for one page of `request` after the other and prints them if all came; returns the
// exit code.
template <typename Request, typename List>
int PrintSessionPages(Request request, bool json, bool owners, List list) {
  request.set_page_size(1000);
  std::vector<v1::Session> sessions;
  do {
    const absl::StatusOr<v1::ListSessionsResponse> page = list(request);
    if (!page.ok()) return ReportError(page.status());
    sessions.insert(sessions.end(), page->sessions().begin(), page->sessions().end());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  if (!json) PrintSessionHeader(owners);
  for (const v1::Session& session : sessions) PrintSession(session, json, owners);
  return kOk;
}

}  // namespace mneme::cli
