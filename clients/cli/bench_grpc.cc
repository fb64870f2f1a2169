// The gRPC transport of a load test.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "clients/cli/bench_transport.h"
#include "clients/cpp/error_details.h"

namespace mneme::cli {
namespace {

// A connection carries so many calls at once, less than servers allow by default.
constexpr int kStreamsPerConnection = 500;
constexpr int kMaxConnections = 64;

class GrpcTransport final : public BenchTransport {
 public:
  GrpcTransport(const Connection& connection, const BenchSampling& sampling, int streams) {
    common_.mutable_sampling()->set_temperature(static_cast<float>(sampling.temperature));
    common_.mutable_stopping()->set_ignore_eos(sampling.ignore_eos);
    const int count = std::clamp((streams - 1) / kStreamsPerConnection + 1, 1, kMaxConnections);
    for (int i = 0; i < count; ++i) {
      clients_.emplace_back(new Client(connection.Connect()));
    }
  }

  absl::StatusOr<ServedModel> Connect(absl::Duration timeout) override {
    MNEME_RETURN_IF_ERROR(WaitWhileLoading(*clients_[0], timeout));
    MNEME_ASSIGN_OR_RETURN(const v1::GetInfoResponse info, clients_[0]->GetInfo());
    return ServedModel{.name = info.model().name(),
                       .vocab = info.model().vocab_size(),
                       .slab_bytes = info.capacity().slab_bytes()};
  }

  absl::StatusOr<int> CountTokens(const std::string& text) override {
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_add_special_tokens(false);
    MNEME_ASSIGN_OR_RETURN(const v1::TokenizeResponse response, clients_[0]->Tokenize(request));
    return response.token_ids_size();
  }

  absl::StatusOr<ServerCounts> Counts() override {
    MNEME_ASSIGN_OR_RETURN(const v1::GetInfoResponse info, clients_[0]->GetInfo());
    const v1::Statistics& statistics = info.statistics();
    const auto mean = [](const v1::Histogram& histogram, double unit) {
      return ServerCounts::Mean{histogram.sum() * unit, static_cast<double>(histogram.count())};
    };
    return ServerCounts{.decode_rows = mean(statistics.decode_rows(), 1),
                        .step_seconds = mean(statistics.step_ms(), 1e-3),
                        .queue_seconds = mean(statistics.queue_ms(), 1e-3)};
  }

  void Send(const PlannedTurn& turn, const std::string& session,
            std::shared_ptr<RecordFiller> filler, std::function<void(bool)> on_done) override {
    v1::GenerateRequest request = common_;
    if (turn.token_ids.empty()) {
      request.set_text(turn.text);
    } else {
      request.mutable_token_ids()->mutable_ids()->Add(turn.token_ids.begin(), turn.token_ids.end());
    }
    request.mutable_stopping()->set_max_tokens(turn.max_tokens);
    if (!session.empty()) request.mutable_session()->set_name(session);
    const bool is_text = turn.token_ids.empty();
    clients_[next_++ % clients_.size()]->GenerateAsync(
        request,
        [filler, is_text](const v1::GenerateResponse& response) {
          int tokens = 0;
          std::string text;
          for (const v1::Output& output : response.outputs()) {
            tokens += output.token_ids_size();
            text += output.text();
          }
          if (response.has_started()) filler->OnResumed(response.started().resumed_tokens());
          filler->OnText(tokens, text);
          if (!response.has_finished()) return;
          const v1::Finished& finished = response.finished();
          filler->OnQueue(finished.timings().queue_ms() / 1e3);
          filler->OnUsage(static_cast<int>(finished.usage().completion_tokens()));
          if (is_text) filler->OnPrompt(static_cast<int>(finished.usage().prompt_tokens()));
        },
        [filler, on_done = std::move(on_done)](const absl::Status& status) {
          filler->OnEnd(status.ok() ? "" : ReadableError(status));
          on_done(status.ok());
        });
  }

  absl::StatusOr<double> ForkAndDelete(const std::string& session) override {
    v1::ForkSessionRequest request;
    request.set_source_name(session);
    request.set_target_name(absl::StrCat(session, "-fork"));
    const RealClock clock;
    const absl::Duration begin = clock.Monotonic();
    const absl::Status forked = clients_[0]->ForkSession(request).status();
    const absl::Duration latency = clock.Monotonic() - begin;
    if (forked.ok()) (void)clients_[0]->DeleteSession(request.target_name());
    (void)clients_[0]->DeleteSession(session);  // there is none if the first turn failed
    if (!forked.ok()) return forked;            // no room for another one, say
    return absl::ToDoubleSeconds(latency);
  }

 private:
  v1::GenerateRequest common_;
  std::vector<std::unique_ptr<Client>> clients_;  // a connection each
  std::atomic<size_t> next_{0};
};

}  // namespace

std::unique_ptr<BenchTransport> MakeGrpcTransport(const Connection& connection,
                                                  const BenchSampling& sampling, int streams) {
  return std::make_unique<GrpcTransport>(connection, sampling, streams);
}

}  // namespace mneme::cli
