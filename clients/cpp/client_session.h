// A conversation of the client's with one session: only what is new is ever sent.
//
//   ClientSession session(client, "anna");
//   absl::StatusOr<Answer> answer = session.Chat("My name is Anna.");
//   if (answer.ok()) std::cout << answer->text;
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cpp/client.h"
#include "mneme/v1/inference.pb.h"

namespace mneme {

struct Answer {
  std::string text;  // less the white space that it began with
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  bool context_full = false;  // it ended because the session has no room for more tokens
  v1::Finished finished;      // what was counted, and where the session stands
};

// One thread at a time. The client must outlive it.
class ClientSession {
 public:
  ClientSession(Client& client, std::string name) : client_(client) {
    request_.mutable_session()->set_name(std::move(name));
  }

  const std::string& name() const { return request_.session().name(); }

  // The request of every turn, without messages: sampling, stopping, whether the session must
  // exist, template_arguments.
  v1::ChatRequest& request() { return request_; }

  // Says `text` as the user, in the words of the model's chat template, and waits for the answer.
  // `on_text` gets its parts as they come. Errors are those of Inference.Chat; what was shown
  // before one is in the session.
  absl::StatusOr<Answer> Chat(absl::string_view text,
                              const std::function<void(absl::string_view)>& on_text = nullptr,
                              CancelToken* cancel = nullptr);

 private:
  Client& client_;
  v1::ChatRequest request_;
};

}  // namespace mneme
