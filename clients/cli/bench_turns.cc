#include "clients/cli/bench_turns.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace mneme::cli {
namespace {

// Times to first token of the turns [first, last) of every conversation, without failed ones.
std::vector<double> Ttfts(const LoadResult& result, const TurnSettings& settings, int first,
                          int last) {
  std::vector<double> values;
  for (size_t i = 0; i < result.records.size(); ++i) {
    const int turn = static_cast<int>(i) % settings.turns;
    if (result.records[i].ok && turn >= first && turn < last) {
      values.push_back(result.records[i].ttft);
    }
  }
  return values;
}

std::vector<double> ResumeTtfts(const LoadResult& result, const TurnSettings& settings) {
  return Ttfts(result, settings, 1, settings.turns);
}

// Tokens in the session when the turn began, and seconds per token after the first: means.
struct TurnMeans {
  double resumed_tokens = 0;
  double tpot = 0;
};
TurnMeans MeansOfTurn(const LoadResult& result, const TurnSettings& settings, int turn) {
  TurnMeans means;
  int count = 0;
  for (size_t i = turn; i < result.records.size(); i += settings.turns) {
    const RequestRecord& record = result.records[i];
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

std::string FormatTurns(const LoadResult& result, const TurnSettings& settings) {
  std::string out = absl::StrFormat(
      "%d conversations of %d turns, each turn going on in its session:\n"
      "Turn   Tokens resumed   Mean TTFT (ms)   Mean TPOT (ms)\n",
      settings.conversations, settings.turns);
  for (int turn = 0; turn < settings.turns; ++turn) {
    const TurnMeans means = MeansOfTurn(result, settings, turn);
    absl::StrAppendFormat(&out, "%4d   %14.0f   %14.2f   %14.2f\n", turn + 1, means.resumed_tokens,
                          Summarize(Ttfts(result, settings, turn, turn + 1), {}).mean,
                          1e3 * means.tpot);
  }
  AppendLines("resume TTFT", ResumeTtfts(result, settings), settings.percentiles, out);
  AppendLines("fork latency", result.fork_latency, settings.percentiles, out);
  return out;
}

std::map<std::string, std::string> TurnsAsJson(const LoadResult& result,
                                               const TurnSettings& settings) {
  std::map<std::string, std::string> json = {{"turns", absl::StrCat(settings.turns)}};
  AddJson("resume_ttft", ResumeTtfts(result, settings), settings.percentiles, json);
  AddJson("fork_latency", result.fork_latency, settings.percentiles, json);
  return json;
}

}  // namespace mneme::cli
