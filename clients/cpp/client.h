// A thin C++ client: one blocking call per RPC, absl::Status for errors, and streams as callbacks.
//
//   Client client({.target = "127.0.0.1:50051"});
//   v1::GenerateRequest request;
//   request.set_text("The sea");
//   absl::Status status = client.Generate(request, [](const v1::GenerateResponse& response) {
//     for (const v1::Output& output : response.outputs()) std::cout << output.text();
//   });
//
// gRPC itself does not show here, so that including this file stays cheap.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "mneme/v1/admin.pb.h"
#include "mneme/v1/inference.pb.h"
#include "mneme/v1/sessions.pb.h"

namespace mneme {

// How to know the server, and to be known to it. PEM texts, not paths.
struct ClientTls {
  std::string authorities;  // that may have signed the server's certificate; empty: the system's
  std::string certificate;  // for servers that ask for one (mutual TLS), with private_key
  std::string private_key;
  std::string server_name;  // in the server's certificate, where it is not that of the target
};

struct ClientOptions {
  std::string target = "127.0.0.1:50051";
  std::optional<ClientTls> tls;  // unset: a connection without encryption
  // Sent with every call. A key that no header can carry makes every call INVALID_ARGUMENT.
  std::string api_key;
  // Deadline of each call, counted from its start. Infinite: none.
  absl::Duration timeout = absl::InfiniteDuration();
  int64_t max_message_bytes = int64_t{64} << 20;
  // Pings that keep an idle connection alive through networks that forget; zero: none.
  absl::Duration keepalive = absl::ZeroDuration();
};

// Ends calls from another thread. One token may be given to any number of calls, at once or one
// after the other; once cancelled, later ones end at once, too, until Reset.
class CancelToken {
 public:
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);
  void Reset() ABSL_LOCKS_EXCLUDED(mu_);
  bool cancelled() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class CancelScope;  // of client.cc

  mutable absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::list<std::function<void()>> calls_ ABSL_GUARDED_BY(mu_);  // each cancels one
};

// Thread-safe. Errors are those of inference.proto; DetailsOf() of error_details.h reads the rest.
// A text that is not UTF-8 is INVALID_ARGUMENT at once, with its field and byte offset.
class Client {
 public:
  explicit Client(ClientOptions options);
  ~Client();

  // Calls `on_message` for each message, on the calling thread. OK only after one with `finished`.
  absl::Status Generate(const v1::GenerateRequest& request,
                        absl::FunctionRef<void(const v1::GenerateResponse&)> on_message,
                        CancelToken* cancel = nullptr);

  // The same for messages, which the server writes as the model's chat template has them;
  // client_session.h says it with less.
  absl::Status Chat(const v1::ChatRequest& request,
                    absl::FunctionRef<void(const v1::GenerateResponse&)> on_message,
                    CancelToken* cancel = nullptr);

  // Generate without a thread of its own: callbacks run on gRPC's threads, one at a time, `on_done`
  // last. The client must live until then and must not be destroyed by a callback: gRPC joins its
  // threads with the last channel.
  void GenerateAsync(const v1::GenerateRequest& request,
                     std::function<void(const v1::GenerateResponse&)> on_message,
                     std::function<void(const absl::Status&)> on_done);

  absl::StatusOr<v1::ClassifyResponse> Classify(const v1::ClassifyRequest& request);
  absl::StatusOr<v1::TokenizeResponse> Tokenize(const v1::TokenizeRequest& request);
  absl::StatusOr<v1::DetokenizeResponse> Detokenize(const v1::DetokenizeRequest& request);
  absl::StatusOr<v1::GetInfoResponse> GetInfo();

  absl::StatusOr<v1::Session> CreateSession(const v1::CreateSessionRequest& request);
  absl::StatusOr<v1::Session> GetSession(const std::string& name);
  absl::StatusOr<v1::ListSessionsResponse> ListSessions(const v1::ListSessionsRequest& request);
  absl::StatusOr<v1::Session> ForkSession(const v1::ForkSessionRequest& request);
  absl::Status DeleteSession(const std::string& name);
  absl::StatusOr<v1::Session> RewindSession(const v1::RewindSessionRequest& request);
  absl::StatusOr<v1::Checkpoint> CreateCheckpoint(const v1::CreateCheckpointRequest& request);
  absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(const std::string& session);
  absl::Status DeleteCheckpoint(const std::string& session, const std::string& name);
  absl::StatusOr<v1::InspectMemoryResponse> InspectMemory(const v1::InspectMemoryRequest& request);
  absl::StatusOr<v1::ForgetSegmentsResponse> ForgetSegments(
      const v1::ForgetSegmentsRequest& request);
  // Calls `on_message` for each message, on the calling thread; an error that it returns ends the
  // call. OK only after all bytes that the first message promised.
  absl::Status ExportSession(
      const std::string& name,
      absl::FunctionRef<absl::Status(const v1::ExportSessionResponse&)> on_message);
  // `first` with the new session's name; `next` gives the file's next bytes, none at its end. An
  // error of its own ends the call.
  absl::StatusOr<v1::ImportSessionResponse> ImportSession(
      v1::ImportSessionRequest first, absl::FunctionRef<absl::StatusOr<std::string>()> next);

  // For keys marked admin.
  absl::StatusOr<v1::SetLogLevelResponse> SetLogLevel(v1::LogLevel level);
  absl::StatusOr<v1::ReloadResponse> Reload();
  absl::StatusOr<v1::ListSessionsResponse> ListAllSessions(
      const v1::AdminListSessionsRequest& request);
  absl::Status DeleteSessionOf(const std::string& owner, const std::string& name);

  // grpc.health.v1: whether the server, or one of its services, says SERVING.
  absl::StatusOr<bool> IsServing(const std::string& service = "");

  // Polls until the server serves. `on_loading` hears of the progress of a load. UNAVAILABLE, with
  // the last error, once `timeout` has passed.
  absl::Status WaitUntilServing(
      absl::Duration timeout,
      absl::FunctionRef<void(int64_t loaded_bytes, int64_t total_bytes)> on_loading);

 private:
  struct Stubs;

  template <typename Method, typename Request>
  absl::Status Stream(Method method, const Request& request,
                      absl::FunctionRef<void(const v1::GenerateResponse&)> on_message,
                      CancelToken* cancel);

  // A unary call.
  template <typename Stub, typename Method, typename Request>
  auto Ask(Stub& stub, Method method, const Request& request);

  const ClientOptions options_;
  const absl::Status key_status_;  // of options_.api_key
  const std::unique_ptr<Stubs> stubs_;
};

}  // namespace mneme
