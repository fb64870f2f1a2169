// Sessions as `mneme session` and `mneme admin` print them: a line each.
#pragma once

#include "absl/status/statusor.h"
#include "clients/cli/command.h"
#include "mneme/v1/sessions.pb.h"

namespace mneme::cli {

// `owners`: with a column for them.
void PrintSessionHeader(bool owners);
void PrintSession(const v1::Session& session, bool json, bool owners);

// Asks `list` for one page of `request` after the other and prints them; returns the exit code.
template <typename Request, typename List>
int PrintSessionPages(Request request, bool json, bool owners, List list) {
  request.set_page_size(1000);
  if (!json) PrintSessionHeader(owners);
  do {
    const absl::StatusOr<v1::ListSessionsResponse> page = list(request);
    if (!page.ok()) return ReportError(page.status());
    for (const v1::Session& session : page->sessions()) PrintSession(session, json, owners);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return kOk;
}

}  // namespace mneme::cli
