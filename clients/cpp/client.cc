#include "clients/cpp/client.h"

#include <grpcpp/grpcpp.h>

#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "clients/cpp/error_details.h"
#include "clients/cpp/utf8_check.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "mneme/v1/admin.grpc.pb.h"
#include "mneme/v1/inference.grpc.pb.h"
#include "mneme/v1/sessions.grpc.pb.h"

namespace mneme {

// While it lives, its token can cancel the call of `context`.
class CancelScope {
 public:
  CancelScope(CancelToken* token, grpc::ClientContext& context) : token_(token) {
    if (token_ == nullptr) return;
    absl::MutexLock lock(&token_->mu_);
    if (token_->cancelled_) context.TryCancel();
    call_ = token_->calls_.insert(token_->calls_.end(), [&context] { context.TryCancel(); });
  }
  ~CancelScope() {
    if (token_ == nullptr) return;
    absl::MutexLock lock(&token_->mu_);
    token_->calls_.erase(call_);
  }
  CancelScope(const CancelScope&) = delete;
  CancelScope& operator=(const CancelScope&) = delete;

 private:
  CancelToken* const token_;
  std::list<std::function<void()>>::iterator call_;
};

void CancelToken::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  for (const std::function<void()>& cancel_call : calls_) cancel_call();
}

void CancelToken::Reset() {
  absl::MutexLock lock(&mu_);
  cancelled_ = false;
}

bool CancelToken::cancelled() const {
  absl::MutexLock lock(&mu_);
  return cancelled_;
}

namespace {

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return MakeStatus(status.error_code(), status.error_message(), status.error_details());
}

void SetUp(grpc::ClientContext& context, const ClientOptions& options) {
  if (!options.api_key.empty()) {
    context.AddMetadata("authorization", absl::StrCat("Bearer ", options.api_key));
  }
  if (options.timeout == absl::InfiniteDuration()) return;
  context.set_deadline(absl::ToChronoTime(absl::Now() + options.timeout));
}

// gRPC ends the process over a header that is none.
absl::Status CheckKey(const std::string& key) {
  for (const char c : key) {
    if (c > 0x20 && c < 0x7f) continue;
    return absl::InvalidArgumentError(
        "the API key has a space or a character that is not printable ASCII");
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::ChannelCredentials> MakeCredentials(const std::optional<ClientTls>& tls) {
  if (!tls.has_value()) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = tls->authorities,
                               .pem_private_key = tls->private_key,
                               .pem_cert_chain = tls->certificate});
}

std::shared_ptr<grpc::Channel> MakeChannel(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(options.max_message_bytes));
  // Channels to one target would share a connection otherwise; a client means one of its own.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (options.keepalive > absl::ZeroDuration()) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS,
                     static_cast<int>(absl::ToInt64Milliseconds(options.keepalive)));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  if (options.tls.has_value() && !options.tls->server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls->server_name);
  }
  return grpc::CreateCustomChannel(options.target, MakeCredentials(options.tls), arguments);
}

// Whether a stream of messages was whole, which OK alone does not say.
absl::Status EndOfStream(const grpc::Status& status, bool finished) {
  if (!status.ok()) return FromGrpc(status);
  if (!finished) return absl::DataLossError("the stream ended without its last message");
  return absl::OkStatus();
}

// One GenerateAsync; deletes itself before the last callback.
class AsyncCall final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  AsyncCall(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
            const ClientOptions& options,
            std::function<void(const v1::GenerateResponse&)> on_message,
            std::function<void(const absl::Status&)> on_done)
      : request_(request), on_message_(std::move(on_message)), on_done_(std::move(on_done)) {
    SetUp(context_, options);
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    finished_ = finished_ || response_.has_finished();
    on_message_(response_);
    response_.Clear();
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::function<void(const absl::Status&)> on_done = std::move(on_done_);
    const absl::Status result = EndOfStream(status, finished_);
    delete this;  // with its hold on the channel, which must not end last and on gRPC's own thread
    on_done(result);
  }

 private:
  grpc::ClientContext context_;
  const v1::GenerateRequest request_;
  v1::GenerateResponse response_;
  bool finished_ = false;
  const std::function<void(const v1::GenerateResponse&)> on_message_;
  std::function<void(const absl::Status&)> on_done_;
};

}  // namespace

struct Client::Stubs {
  explicit Stubs(std::shared_ptr<grpc::Channel> channel)
      : admin(channel), inference(channel), sessions(channel), health(channel) {}

  v1::Admin::Stub admin;
  v1::Inference::Stub inference;
  v1::Sessions::Stub sessions;
  grpc::health::v1::Health::Stub health;
};

namespace {

template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Call(Stub& stub,
                              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                           Response*),
                              const Request& request, const ClientOptions& options) {
  MNEME_RETURN_IF_ERROR(CheckUtf8(request));
  grpc::ClientContext context;
  SetUp(context, options);
  Response response;
  MNEME_RETURN_IF_ERROR(FromGrpc((stub.*method)(&context, request, &response)));
  return response;
}

}  // namespace

template <typename Stub, typename Method, typename Request>
auto Client::Ask(Stub& stub, Method method, const Request& request) {
  using Answer = decltype(Call(stub, method, request, options_));
  return key_status_.ok() ? Call(stub, method, request, options_) : Answer(key_status_);
}

Client::Client(ClientOptions options)
    : options_(std::move(options)),
      key_status_(CheckKey(options_.api_key)),
      stubs_(std::make_unique<Stubs>(MakeChannel(options_))) {}
Client::~Client() = default;

template <typename Method, typename Request>
absl::Status Client::Stream(Method method, const Request& request,
                            absl::FunctionRef<void(const v1::GenerateResponse&)> on_message,
                            CancelToken* cancel) {
  MNEME_RETURN_IF_ERROR(key_status_);
  MNEME_RETURN_IF_ERROR(CheckUtf8(request));
  grpc::ClientContext context;
  SetUp(context, options_);
  const CancelScope scope(cancel, context);
  const std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader =
      (stubs_->inference.*method)(&context, request);
  v1::GenerateResponse response;
  bool finished = false;
  while (reader->Read(&response)) {
    finished = finished || response.has_finished();
    on_message(response);
    response.Clear();
  }
  return EndOfStream(reader->Finish(), finished);
}

absl::Status Client::Generate(const v1::GenerateRequest& request,
                              absl::FunctionRef<void(const v1::GenerateResponse&)> on_message,
                              CancelToken* cancel) {
  return Stream(&v1::Inference::Stub::Generate, request, on_message, cancel);
}

absl::Status Client::Chat(const v1::ChatRequest& request,
                          absl::FunctionRef<void(const v1::GenerateResponse&)> on_message,
                          CancelToken* cancel) {
  return Stream(&v1::Inference::Stub::Chat, request, on_message, cancel);
}

void Client::GenerateAsync(const v1::GenerateRequest& request,
                           std::function<void(const v1::GenerateResponse&)> on_message,
                           std::function<void(const absl::Status&)> on_done) {
  if (!key_status_.ok()) return on_done(key_status_);
  if (const absl::Status text = CheckUtf8(request); !text.ok()) return on_done(text);
  new AsyncCall(stubs_->inference, request, options_, std::move(on_message), std::move(on_done));
}

absl::StatusOr<v1::ClassifyResponse> Client::Classify(const v1::ClassifyRequest& request) {
  return Ask(stubs_->inference, &v1::Inference::Stub::Classify, request);
}

absl::StatusOr<v1::TokenizeResponse> Client::Tokenize(const v1::TokenizeRequest& request) {
  return Ask(stubs_->inference, &v1::Inference::Stub::Tokenize, request);
}

absl::StatusOr<v1::DetokenizeResponse> Client::Detokenize(const v1::DetokenizeRequest& request) {
  return Ask(stubs_->inference, &v1::Inference::Stub::Detokenize, request);
}

absl::StatusOr<v1::GetInfoResponse> Client::GetInfo() {
  return Ask(stubs_->inference, &v1::Inference::Stub::GetInfo, v1::GetInfoRequest());
}

absl::StatusOr<v1::Session> Client::CreateSession(const v1::CreateSessionRequest& request) {
  return Ask(stubs_->sessions, &v1::Sessions::Stub::Create, request);
}

absl::StatusOr<v1::Session> Client::GetSession(const std::string& name) {
  v1::GetSessionRequest request;
  request.set_name(name);
  return Ask(stubs_->sessions, &v1::Sessions::Stub::Get, request);
}

absl::StatusOr<v1::ListSessionsResponse> Client::ListSessions(
    const v1::ListSessionsRequest& request) {
  return Ask(stubs_->sessions, &v1::Sessions::Stub::List, request);
}

absl::StatusOr<v1::Session> Client::ForkSession(const v1::ForkSessionRequest& request) {
  return Ask(stubs_->sessions, &v1::Sessions::Stub::Fork, request);
}

absl::StatusOr<v1::Session> Client::RewindSession(const v1::RewindSessionRequest& request) {
  return Ask(stubs_->sessions, &v1::Sessions::Stub::Rewind, request);
}

absl::StatusOr<v1::Checkpoint> Client::CreateCheckpoint(
    const v1::CreateCheckpointRequest& request) {
  return Ask(stubs_->sessions, &v1::Sessions::Stub::CreateCheckpoint, request);
}

absl::StatusOr<v1::ListCheckpointsResponse> Client::ListCheckpoints(const std::string& session) {
  v1::ListCheckpointsRequest request;
  request.set_session(session);
  return Ask(stubs_->sessions, &v1::Sessions::Stub::ListCheckpoints, request);
}

absl::Status Client::DeleteCheckpoint(const std::string& session, const std::string& name) {
  v1::DeleteCheckpointRequest request;
  request.set_session(session);
  request.set_name(name);
  return Ask(stubs_->sessions, &v1::Sessions::Stub::DeleteCheckpoint, request).status();
}

absl::StatusOr<v1::InspectMemoryResponse> Client::InspectMemory(
    const v1::InspectMemoryRequest& request) {
  return Ask(stubs_->sessions, &v1::Sessions::Stub::InspectMemory, request);
}

absl::StatusOr<v1::ForgetSegmentsResponse> Client::ForgetSegments(
    const v1::ForgetSegmentsRequest& request) {
  return Ask(stubs_->sessions, &v1::Sessions::Stub::ForgetSegments, request);
}

absl::Status Client::ExportSession(
    const std::string& name,
    absl::FunctionRef<absl::Status(const v1::ExportSessionResponse&)> on_message) {
  v1::ExportSessionRequest request;
  request.set_name(name);
  MNEME_RETURN_IF_ERROR(key_status_);
  MNEME_RETURN_IF_ERROR(CheckUtf8(request));
  grpc::ClientContext context;
  SetUp(context, options_);
  const auto reader = stubs_->sessions.Export(&context, request);
  v1::ExportSessionResponse response;
  int64_t bytes = 0, expected = -1;
  absl::Status taken;
  while (taken.ok() && reader->Read(&response)) {
    if (expected < 0) expected = response.file_bytes();
    bytes += static_cast<int64_t>(response.data().size());
    taken = on_message(response);
  }
  if (!taken.ok()) context.TryCancel();
  const absl::Status end = FromGrpc(reader->Finish());
  MNEME_RETURN_IF_ERROR(taken);
  MNEME_RETURN_IF_ERROR(end);
  if (bytes == expected) return end;
  return absl::DataLossError(
      absl::StrCat("the session's file ended after ", bytes, " bytes, expected ", expected));
}

absl::StatusOr<v1::ImportSessionResponse> Client::ImportSession(
    v1::ImportSessionRequest first, absl::FunctionRef<absl::StatusOr<std::string>()> next) {
  MNEME_RETURN_IF_ERROR(key_status_);
  MNEME_RETURN_IF_ERROR(CheckUtf8(first));
  grpc::ClientContext context;
  SetUp(context, options_);
  v1::ImportSessionResponse response;
  const auto writer = stubs_->sessions.Import(&context, &response);
  bool goes_on = writer->Write(first);  // false: the server has ended the call
  absl::Status read;
  while (goes_on) {
    absl::StatusOr<std::string> data = next();
    read = data.status();
    if (!read.ok() || data->empty()) break;
    v1::ImportSessionRequest request;
    request.set_data(*std::move(data));
    goes_on = writer->Write(request);
  }
  if (read.ok()) {
    writer->WritesDone();
  } else {
    context.TryCancel();
  }
  const absl::Status end = FromGrpc(writer->Finish());
  MNEME_RETURN_IF_ERROR(read);
  MNEME_RETURN_IF_ERROR(end);
  return response;
}

absl::Status Client::DeleteSession(const std::string& name) {
  v1::DeleteSessionRequest request;
  request.set_name(name);
  return Ask(stubs_->sessions, &v1::Sessions::Stub::Delete, request).status();
}

absl::StatusOr<v1::SetLogLevelResponse> Client::SetLogLevel(v1::LogLevel level) {
  v1::SetLogLevelRequest request;
  request.set_level(level);
  return Ask(stubs_->admin, &v1::Admin::Stub::SetLogLevel, request);
}

absl::StatusOr<v1::ReloadResponse> Client::Reload() {
  return Ask(stubs_->admin, &v1::Admin::Stub::Reload, v1::ReloadRequest());
}

absl::StatusOr<v1::ListSessionsResponse> Client::ListAllSessions(
    const v1::AdminListSessionsRequest& request) {
  return Ask(stubs_->admin, &v1::Admin::Stub::ListSessions, request);
}

absl::Status Client::DeleteSessionOf(const std::string& owner, const std::string& name) {
  v1::AdminDeleteSessionRequest request;
  request.set_owner(owner);
  request.set_name(name);
  return Ask(stubs_->admin, &v1::Admin::Stub::DeleteSession, request).status();
}

absl::StatusOr<bool> Client::IsServing(const std::string& service) {
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  MNEME_ASSIGN_OR_RETURN(const grpc::health::v1::HealthCheckResponse response,
                         Ask(stubs_->health, &grpc::health::v1::Health::Stub::Check, request));
  return response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
}

absl::Status Client::WaitUntilServing(
    absl::Duration timeout,
    absl::FunctionRef<void(int64_t loaded_bytes, int64_t total_bytes)> on_loading) {
  const absl::Time end = absl::Now() + timeout;
  while (true) {
    const absl::StatusOr<v1::GetInfoResponse> info = GetInfo();
    absl::Status status = info.status();
    if (info.ok()) {
      const v1::ServerInfo& server = info->server();
      if (server.state() == v1::SERVER_STATE_SERVING) return absl::OkStatus();
      if (server.state() == v1::SERVER_STATE_LOADING) {
        on_loading(server.loaded_bytes(), server.total_bytes());
        status = absl::UnavailableError("the model is still loading");
      } else {
        return absl::UnavailableError("the server is shutting down");
      }
    } else if (!absl::IsUnavailable(status)) {
      return status;
    }
    if (absl::Now() >= end) return status;
    absl::SleepFor(absl::Milliseconds(100));
  }
}

}  // namespace mneme
