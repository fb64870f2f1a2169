#include "clients/cpp/client_session.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace mneme {

absl::StatusOr<Answer> ClientSession::Chat(absl::string_view text,
                                           const std::function<void(absl::string_view)>& on_text,
                                           CancelToken* cancel) {
  v1::ChatRequest request = request_;
  v1::ChatMessage& message = *request.add_messages();
  message.set_role("user");
  message.set_content(std::string(text));
  Answer answer;
  const auto take = [&](const v1::GenerateResponse& response) {
    for (const v1::Output& output : response.outputs()) {
      if (output.choice() != 0 || output.is_prompt()) continue;
      absl::string_view part = output.text();
      if (answer.text.empty()) part = absl::StripLeadingAsciiWhitespace(part);
      absl::StrAppend(&answer.text, part);
      answer.finish_reason = output.finish_reason();
      answer.context_full = output.context_full();
      if (on_text != nullptr && !part.empty()) on_text(part);
    }
    if (response.has_finished()) answer.finished = response.finished();
  };
  MNEME_RETURN_IF_ERROR(client_.Chat(request, take, cancel));
  return answer;
}

}  // namespace mneme
