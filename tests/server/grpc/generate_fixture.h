// Calls of Inference.Generate to a server whose engine a test plays.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "tests/server/grpc/server_fixture.h"

namespace mneme {

// One Generate on a thread of its own, with all that came.
class Call {
 public:
  Call(Client& client, v1::GenerateRequest request)
      : thread_([this, &client, request = std::move(request)] {
          status_ = client.Generate(
              request,
              [this](const v1::GenerateResponse& response) {
                if (response.has_started()) started_.push_back(response.started());
                if (response.has_finished()) finished_.push_back(response.finished());
                outputs_.insert(outputs_.end(), response.outputs().begin(),
                                response.outputs().end());
                messages_ += 1;
                if (!first_.HasBeenNotified()) first_.Notify();
              },
              &cancel_);
        }) {}
  ~Call() { Join(); }

  void WaitForFirstMessage() { first_.WaitForNotification(); }
  void Cancel() { cancel_.Cancel(); }
  const absl::Status& Join() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  std::string Text(int choice = 0) {
    Join();
    std::string text;
    for (const v1::Output& output : outputs_) {
      if (output.choice() == choice) text += output.text();
    }
    return text;
  }

  std::vector<v1::Started> started_;
  std::vector<v1::Finished> finished_;
  std::vector<v1::Output> outputs_;
  int messages_ = 0;

 private:
  absl::Notification first_;
  CancelToken cancel_;
  absl::Status status_;
  std::thread thread_;
};

class GenerateTest : public ServerTest {
 protected:
  // The request that the engine is given for `request`.
  Request Converted(const v1::GenerateRequest& request) {
    Call call(*client_, request);
    FakeRequest& fake = engine_.WaitForRequest(count_++);
    fake.PushEnd();
    return fake.request;
  }
  absl::Status Refused(const v1::GenerateRequest& request) {
    return client_->Generate(request, [](const v1::GenerateResponse&) {});
  }

  size_t count_ = 0;
};

inline v1::GenerateRequest TextRequest(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

}  // namespace mneme
