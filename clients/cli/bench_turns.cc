#include "clients/cli/bench_turns.h"

#include <algorithm>
#include <thread>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "clients/cli/bench_record.h"

namespace mneme::cli {
namespace {

class Conversations {
 public:
  Conversations(Client& client, const TurnSettings& settings,
                const std::vector<v1::GenerateRequest>& requests, TurnMetrics& metrics)
      : client_(client),
        settings_(settings),
        requests_(requests),
        metrics_(metrics),
        // Benchmarks that run at once must not meet in one session.
        prefix_(absl::StrFormat("bench-%08x-", absl::Uniform<uint32_t>(absl::BitGen()))),
        start_(Now()) {
    metrics_.records.resize(requests.size());
  }

  void Run() {
    std::vector<std::thread> threads;
    const int count = std::min(settings_.concurrency, settings_.conversations);
    for (int i = 0; i < count; ++i) threads.emplace_back([this] { Work(); });
    for (std::thread& thread : threads) thread.join();
    metrics_.duration = Now();
  }

 private:
  void Work() {
    while (true) {
      int index = 0;
      {
        absl::MutexLock lock(&mu_);
        if (next_ == settings_.conversations) return;
        index = next_++;
      }
      const std::string name = absl::StrCat(prefix_, index);
      if (Converse(name, index)) Fork(name);
      (void)client_.DeleteSession(name);  // there is none if the first turn failed
    }
  }

  // Whether all turns were answered.
  bool Converse(const std::string& name, int index) {
    for (int turn = 0; turn < settings_.turns; ++turn) {
      if (turn > 0 && settings_.gap > absl::ZeroDuration()) absl::SleepFor(settings_.gap);
      const size_t at = static_cast<size_t>(index) * settings_.turns + turn;
      v1::GenerateRequest request = requests_[at];
      request.mutable_session()->set_name(name);
      RecordFiller filler(metrics_.records[at], request, Now());
      const absl::Status status = client_.Generate(
          request,
          [&](const v1::GenerateResponse& response) { filler.OnMessage(response, Now()); });
      filler.OnEnd(status, Now());
      if (!status.ok()) return false;
    }
    return true;
  }

  void Fork(const std::string& name) {
    v1::ForkSessionRequest request;
    request.set_source_name(name);
    request.set_target_name(absl::StrCat(name, "-fork"));
    const double begin = Now();
    if (!client_.ForkSession(request).ok()) return;  // no room for another one
    const double latency = Now() - begin;
    (void)client_.DeleteSession(request.target_name());
    absl::MutexLock lock(&mu_);
    metrics_.fork_latency.push_back(latency);
  }

  double Now() const { return absl::ToDoubleSeconds(clock_.Monotonic()) - start_; }

  Client& client_;
  const TurnSettings& settings_;
  const std::vector<v1::GenerateRequest>& requests_;
  TurnMetrics& metrics_;  // a record belongs to the thread that has its conversation
  const std::string prefix_;
  const RealClock clock_;
  const double start_ = 0;
  absl::Mutex mu_;
  int next_ ABSL_GUARDED_BY(mu_) = 0;
};

// Of the turns [first, last) of every conversation.
std::vector<double> Ttfts(const TurnMetrics& metrics, const TurnSettings& settings, int first,
                          int last) {
  std::vector<double> values;
  for (size_t i = 0; i < metrics.records.size(); ++i) {
    const int turn = static_cast<int>(i) % settings.turns;
    if (metrics.records[i].ok && turn >= first && turn < last) {
      values.push_back(metrics.records[i].ttft);
    }
  }
  return values;
}

std::vector<double> ResumeTtfts(const TurnMetrics& metrics, const TurnSettings& settings) {
  return Ttfts(metrics, settings, 1, settings.turns);
}

// Tokens in the session when the turn began, and seconds per token after the first: means.
struct TurnMeans {
  double resumed_tokens = 0;
  double tpot = 0;
};
TurnMeans MeansOfTurn(const TurnMetrics& metrics, const TurnSettings& settings, int turn) {
  TurnMeans means;
  int count = 0;
  for (size_t i = turn; i < metrics.records.size(); i += settings.turns) {
    const RequestRecord& record = metrics.records[i];
    if (!record.ok) continue;
    ++count;
    means.resumed_tokens += static_cast<double>(record.resumed_tokens);
    means.tpot += (record.latency - record.ttft) / std::max(1, record.output_tokens - 1);
  }
  means.resumed_tokens /= std::max(1, count);
  means.tpot /= std::max(1, count);
  return means;
}

void AppendLines(absl::string_view name, const std::vector<double>& values,
                 const std::vector<double>& percentiles, std::string& out) {
  if (values.empty()) return;
  const Summary summary = Summarize(values, percentiles);
  const auto line = [&](absl::string_view what, double value) {
    absl::StrAppendFormat(&out, "%-40s %-10.2f\n", absl::StrCat(what, " ", name, " (ms):"), value);
  };
  line("Mean", summary.mean);
  line("Median", summary.median);
  for (const auto& [percentile, value] : summary.percentiles) {
    line(absl::StrCat("P", percentile), value);
  }
}

void AddJson(const std::string& name, const std::vector<double>& values,
             const std::vector<double>& percentiles, std::map<std::string, std::string>& json) {
  json[absl::StrCat(name, "s")] = absl::StrCat("[", absl::StrJoin(values, ", "), "]");
  if (values.empty()) return;
  const Summary summary = Summarize(values, percentiles);
  json[absl::StrCat("mean_", name, "_ms")] = absl::StrCat(summary.mean);
  json[absl::StrCat("median_", name, "_ms")] = absl::StrCat(summary.median);
  json[absl::StrCat("std_", name, "_ms")] = absl::StrCat(summary.std);
  for (const auto& [percentile, value] : summary.percentiles) {
    json[absl::StrCat("p", percentile, "_", name, "_ms")] = absl::StrCat(value);
  }
}

}  // namespace

TurnMetrics MeasureTurns(Client& client, const TurnSettings& settings,
                         const std::vector<v1::GenerateRequest>& requests) {
  TurnMetrics metrics;
  Conversations(client, settings, requests, metrics).Run();
  return metrics;
}

std::string FormatTurns(const TurnMetrics& metrics, const TurnSettings& settings) {
  std::string out = absl::StrFormat(
      "%d conversations of %d turns, each turn going on in its session:\n"
      "Turn   Tokens resumed   Mean TTFT (ms)   Mean TPOT (ms)\n",
      settings.conversations, settings.turns);
  for (int turn = 0; turn < settings.turns; ++turn) {
    const TurnMeans means = MeansOfTurn(metrics, settings, turn);
    absl::StrAppendFormat(&out, "%4d   %14.0f   %14.2f   %14.2f\n", turn + 1, means.resumed_tokens,
                          Summarize(Ttfts(metrics, settings, turn, turn + 1), {}).mean,
                          1e3 * means.tpot);
  }
  AppendLines("resume TTFT", ResumeTtfts(metrics, settings), settings.percentiles, out);
  AppendLines("fork latency", metrics.fork_latency, settings.percentiles, out);
  return out;
}

std::map<std::string, std::string> TurnsAsJson(const TurnMetrics& metrics,
                                               const TurnSettings& settings) {
  std::map<std::string, std::string> json = {{"turns", absl::StrCat(settings.turns)}};
  AddJson("resume_ttft", ResumeTtfts(metrics, settings), settings.percentiles, json);
  AddJson("fork_latency", metrics.fork_latency, settings.percentiles, json);
  return json;
}

}  // namespace mneme::cli
