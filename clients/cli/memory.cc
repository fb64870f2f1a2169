// mneme memory show|graph|forget
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "clients/cli/command.h"
#include "clients/cli/memory_picture.h"

namespace mneme::cli {
namespace {

constexpr absl::string_view kUsageText =
    R"(usage: mneme memory show SESSION [FLAGS]     how many engrams it holds, and which
       mneme memory graph SESSION [FLAGS]    which of them were recalled together most often
       mneme memory forget SESSION --segments A:B   delete those made of segments A to B - 1

An engram is a vector that the model made of a whole segment of the conversation: no word and no
text. It is named by its birth, a number that counts on. LIFESPAN is how many segments more it stays
without being recalled, FIRINGS how many segments it was there or recalled for, GAIN what its lifespan
got when it was recalled last, and TOKENS where in the conversation its segment is.

)";

struct Options {
  Connection connection;
  v1::EngramsView engrams;
  v1::EdgesView edges;
  v1::HistogramView histogram;
  v1::ContiguityView distances;
  std::string segments, png;
  bool json = false, contiguity = false, has_histogram = false;
  std::vector<std::string> given;  // flags that belong to one verb, by name
};

struct Named {
  absl::string_view name;
  int value;
};
constexpr Named kKinds[] = {{"working", v1::ENGRAM_KIND_WORKING},
                            {"short-term", v1::ENGRAM_KIND_SHORT_TERM},
                            {"long-term", v1::ENGRAM_KIND_LONG_TERM}};
constexpr Named kOrders[] = {{"birth", v1::EngramsView::ORDER_BIRTH},
                             {"newest", v1::EngramsView::ORDER_NEWEST},
                             {"lifespan", v1::EngramsView::ORDER_LIFESPAN},
                             {"firings", v1::EngramsView::ORDER_FIRINGS},
                             {"gain", v1::EngramsView::ORDER_GAIN}};
constexpr Named kQuantities[] = {{"lifespan", v1::HistogramView::QUANTITY_LIFESPAN},
                                 {"age", v1::HistogramView::QUANTITY_AGE},
                                 {"creation", v1::HistogramView::QUANTITY_CREATION}};

std::vector<std::string> NamesOf(std::span<const Named> all) {
  std::vector<std::string> names;
  for (const Named& each : all) names.emplace_back(each.name);
  return names;
}
int ValueOf(std::span<const Named> all, absl::string_view name) {
  return std::find_if(all.begin(), all.end(), [&](const Named& n) { return n.name == name; })
      ->value;
}
absl::string_view NameOf(std::span<const Named> all, int value) {
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Named& n) { return n.value == value; });
  return it == all.end() ? "?" : it->name;
}

std::string Bar(double value, double largest) {
  constexpr int kWidth = 50;
  if (!(largest > 0)) return "";
  return std::string(static_cast<size_t>(kWidth * value / largest + 0.5), '#');
}

void PrintSummary(const std::string& session, const v1::MemorySummary& summary) {
  absl::PrintF("%s: %d tokens; segment %d is open, of %d tokens\n", session, summary.position(),
               summary.segment(), summary.segment_tokens());
  absl::PrintF("engrams    %d working, %d short-term, %d long-term; %d places are free of %d\n",
               summary.working(), summary.short_term(), summary.long_term(), summary.free(),
               summary.capacity());
  absl::PrintF("recalled   %d for this segment; %d long-term ones were found along links\n",
               summary.recalled(), summary.found());
  absl::PrintF("lifespans  %.6g in all, %.6g at most\n", summary.lifespan_sum(),
               summary.max_lifespan());
  absl::PrintF(
      "evicted    %d%s\n", summary.evictions(),
      summary.evictions() > 0 ? ", as there was no place for them (--engram-capacity)" : "");
  if (summary.history_wrapped()) {
    absl::PrintF("firings    those of the earliest segments are no longer counted\n");
  }
}

void PrintNothing(absl::string_view what) { absl::PrintF("%s\n", what); }

void PrintEngrams(const v1::InspectMemoryResponse& memory) {
  if (memory.engrams().empty()) return PrintNothing("no engrams to show");
  absl::PrintF("\n%9s %-10s %7s %10s %8s %9s %9s %-8s  %s\n", "BIRTH", "KIND", "AGE", "LIFESPAN",
               "FIRINGS", "GAIN", "NORM", "RECALLED", "TOKENS");
  for (const v1::Engram& engram : memory.engrams()) {
    absl::PrintF("%9d %-10s %7d %10.5g %8d %9.4g %9.4g %-8s  %d-%d\n", engram.birth(),
                 NameOf(kKinds, engram.kind()), engram.age(), engram.lifespan(), engram.firings(),
                 engram.last_gain(), engram.norm(), engram.recalled() ? "yes" : "no",
                 engram.source().first_token(), engram.source().end_token() - 1);
  }
}

void PrintHistogram(const v1::InspectMemoryResponse& memory, absl::string_view quantity) {
  if (memory.histogram().empty()) return PrintNothing("no engrams to count");
  int64_t most = 0;
  for (const v1::HistogramBin& bin : memory.histogram()) most = std::max(most, bin.engrams());
  absl::PrintF("\n%10s %10s %8s  engrams by %s\n", "FROM", "TO", "ENGRAMS", quantity);
  for (const v1::HistogramBin& bin : memory.histogram()) {
    absl::PrintF("%10.5g %10.5g %8d  %s\n", bin.from(), bin.to(), bin.engrams(),
                 Bar(static_cast<double>(bin.engrams()), static_cast<double>(most)));
  }
}

void PrintContiguity(const v1::InspectMemoryResponse& memory) {
  if (memory.contiguity().empty()) return PrintNothing("no two engrams are linked");
  double largest = 0;
  for (const v1::ContiguityBin& bin : memory.contiguity()) {
    largest = std::max(largest, bin.mean_weight());
  }
  absl::PrintF("\n%8s %9s %8s  how likely one is recalled where the other is\n", "SEGMENTS",
               "PAIRS", "MEAN");
  for (const v1::ContiguityBin& bin : memory.contiguity()) {
    absl::PrintF("%8d %9d %8.4f  %s\n", bin.distance(), bin.pairs(), bin.mean_weight(),
                 Bar(bin.mean_weight(), largest));
  }
}

void PrintEdges(const v1::InspectMemoryResponse& memory) {
  if (memory.edges().empty()) return PrintNothing("no edges to show");
  absl::PrintF("%9s %9s %7s %8s %8s\n", "FROM", "TO", "COUNT", "WEIGHT", "BACK");
  for (const v1::EngramEdge& edge : memory.edges()) {
    absl::PrintF("%9d %9d %7d %8.4f %8.4f\n", edge.from(), edge.to(), edge.count(), edge.weight(),
                 edge.weight_back());
  }
}

int Show(Client& client, const std::string& session, const Options& options) {
  v1::InspectMemoryRequest request;
  request.set_name(session);
  if (options.has_histogram) {
    *request.mutable_histogram() = options.histogram;
    request.mutable_histogram()->set_kind(options.engrams.kind());
  }
  if (options.contiguity) *request.mutable_contiguity() = options.distances;
  const bool lists = !options.has_histogram && !options.contiguity;
  if (lists) *request.mutable_engrams() = options.engrams;
  const absl::StatusOr<v1::InspectMemoryResponse> memory = client.InspectMemory(request);
  if (!memory.ok()) return ReportError(memory.status());
  if (options.json) {
    WriteOut(absl::StrCat(ToJson(*memory), "\n"));
    return kOk;
  }
  PrintSummary(session, memory->summary());
  if (lists) PrintEngrams(*memory);
  if (options.has_histogram) {
    PrintHistogram(*memory, NameOf(kQuantities, options.histogram.quantity()));
  }
  if (options.contiguity) PrintContiguity(*memory);
  return kOk;
}

int Graph(Client& client, const std::string& session, const Options& options) {
  constexpr int kMostEngrams = 10000;  // that a server tells at once
  v1::InspectMemoryRequest request;
  request.set_name(session);
  *request.mutable_edges() = options.edges;
  const bool draws = !options.png.empty();
  if (draws || options.json) request.mutable_engrams()->set_limit(kMostEngrams);
  const absl::StatusOr<v1::InspectMemoryResponse> memory = client.InspectMemory(request);
  if (!memory.ok()) return ReportError(memory.status());
  if (draws) {
    const absl::Status written = WritePng(DrawMemory(*memory), options.png);
    if (!written.ok()) {
      absl::FPrintF(stderr, "mneme: %s\n", written.message());
      return kFailed;
    }
  }
  if (options.json) {
    WriteOut(absl::StrCat(ToJson(*memory), "\n"));
  } else if (draws) {
    absl::PrintF("%d engrams and %d edges in %s\n", memory->engrams_size(), memory->edges_size(),
                 options.png);
  } else {
    PrintEdges(*memory);
  }
  return kOk;
}

int Forget(Client& client, const std::string& session, const Options& options) {
  const std::vector<absl::string_view> ends = absl::StrSplit(options.segments, ':');
  int64_t first = 0, end = 0;
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &first) || !absl::SimpleAtoi(ends[1], &end)) {
    return ReportUsage("memory", "forget takes --segments A:B, such as 3:5 for segments 3 and 4");
  }
  v1::ForgetSegmentsRequest request;
  request.set_name(session);
  request.set_first(first);
  request.set_end(end);
  const absl::StatusOr<v1::ForgetSegmentsResponse> gone = client.ForgetSegments(request);
  if (!gone.ok()) return ReportError(gone.status());
  if (options.json) {
    WriteOut(absl::StrCat(ToJson(*gone), "\n"));
  } else {
    absl::PrintF("forgotten: %d working, %d short-term and %d long-term engrams\n", gone->working(),
                 gone->short_term(), gone->long_term());
    for (const std::string& name : gone->dropped_checkpoints()) {
      absl::PrintF("dropped with them: checkpoint %s\n", name);
    }
  }
  return kOk;
}

// Flags are registered for all verbs; which of them each takes.
bool Takes(absl::string_view verb, absl::string_view flag) {
  if (flag == "segments") return verb == "forget";
  if (flag == "png" || flag == "min-weight" || flag == "min-count" || flag == "birth") {
    return verb == "graph";
  }
  if (flag == "limit") return verb != "forget";
  return verb == "show";
}

void AddFlags(Options& options, FlagSet& flags) {
  const auto given = [&options](const char* name) { options.given.emplace_back(name); };
  options.connection.AddFlags(flags);
  flags.Bool("json", "Print a line of JSON.", [&](bool value) { options.json = value; });
  flags.Choice(
      "order", NamesOf(kOrders), "show: which engrams come first; birth is the default.",
      [&, given](const std::string& name) {
        given("order");
        options.engrams.set_order(static_cast<v1::EngramsView::Order>(ValueOf(kOrders, name)));
      });
  flags.Choice("kind", NamesOf(kKinds), "show: only engrams of this kind.",
               [&, given](const std::string& name) {
                 given("kind");
                 options.engrams.set_kind(static_cast<v1::EngramKind>(ValueOf(kKinds, name)));
               });
  flags.Choice("histogram", NamesOf(kQuantities),
               "show: how many engrams there are of which lifespan, age or segment.",
               [&, given](const std::string& name) {
                 given("histogram");
                 options.has_histogram = true;
                 options.histogram.set_quantity(
                     static_cast<v1::HistogramView::Quantity>(ValueOf(kQuantities, name)));
               });
  const auto whole = [](int64_t value) {  // out of range stays so
    return static_cast<int32_t>(std::clamp<int64_t>(value, INT32_MIN, INT32_MAX));
  };
  flags.Integer("bins", "show: lines of a histogram; 20 by default.",
                [&, given, whole](int64_t value) {
                  given("bins");
                  options.histogram.set_bins(whole(value));
                });
  flags.Bool("log", "show: lines of a histogram stand for wider and wider ranges.",
             [&, given](bool value) {
               given("log");
               options.histogram.set_logarithmic(value);
             });
  flags.Bool("contiguity",
             "show: how strongly engrams are linked that were born so many segments apart.",
             [&, given](bool value) {
               given("contiguity");
               options.contiguity = value;
             });
  flags.Integer("max-distance", "show: --contiguity up to so many segments apart; 200 by default.",
                [&, given, whole](int64_t value) {
                  given("max-distance");
                  options.distances.set_max_distance(whole(value));
                });
  flags.Integer("limit", "show, graph: so many engrams or edges at most; 100 by default.",
                [&, given, whole](int64_t value) {
                  given("limit");
                  options.engrams.set_limit(whole(value));
                  options.edges.set_limit(whole(value));
                });
  flags.Integer("min-count",
                "graph: only edges of engrams that fired together so often; 1 by default.",
                [&, given, whole](int64_t value) {
                  given("min-count");
                  options.edges.set_min_count(whole(value));
                });
  flags.Number("min-weight", "graph: only edges that are at least so strong, from 0 to 1.",
               [&, given](double value) {
                 given("min-weight");
                 options.edges.set_min_weight(value);
               });
  flags.Add("birth", "N", "graph: only edges of this engram.",
            [&, given](absl::string_view text) -> absl::Status {
              uint32_t birth = 0;
              if (!absl::SimpleAtoi(text, &birth)) {
                return absl::InvalidArgumentError("expected an engram's number");
              }
              given("birth");
              options.edges.set_birth(birth);
              return absl::OkStatus();
            });
  flags.String("png", "FILE",
               "graph: draw it: a column for each segment, the oldest on the left, a dot for each "
               "engram (working green, short-term orange, long-term blue), edges darker the "
               "stronger they are.",
               [&, given](std::string value) {
                 given("png");
                 options.png = std::move(value);
               });
  flags.String("segments", "A:B", "forget: from segment A on, before segment B.",
               [&, given](std::string value) {
                 given("segments");
                 options.segments = std::move(value);
               });
}

}  // namespace

int RunMemory(const Arguments& arguments) {
  Options options;
  FlagSet flags;
  AddFlags(options, flags);
  int code = kOk;
  const auto words = ParseWords("memory", kUsageText, flags, arguments, code);
  if (!words.has_value()) return code;
  if (words->size() != 2) {
    return ReportUsage("memory", "show, graph or forget, and the name of one session?");
  }
  const std::string &verb = words->front(), &session = words->back();
  if (verb != "show" && verb != "graph" && verb != "forget") {
    return ReportUsage("memory", absl::StrCat("\"", verb, "\" is nothing this command can do"));
  }
  for (const std::string& flag : options.given) {
    if (!Takes(verb, flag)) {
      return ReportUsage("memory", absl::StrCat("--", flag, " is not for ", verb));
    }
  }
  const auto is_given = [&options](absl::string_view flag) {
    return std::ranges::find(options.given, flag) != options.given.end();
  };
  if (options.has_histogram && options.contiguity) {
    return ReportUsage("memory", "--histogram or --contiguity?");
  }
  if (options.has_histogram || options.contiguity) {
    for (const absl::string_view flag : {"order", "limit", "kind"}) {
      if (!is_given(flag) || (flag == "kind" && options.has_histogram)) continue;
      return ReportUsage("memory", absl::StrCat("--", flag, " does not go with --",
                                                options.contiguity ? "contiguity" : "histogram"));
    }
  }
  if (is_given("max-distance") && !options.contiguity) {
    return ReportUsage("memory", "--max-distance goes with --contiguity");
  }
  if (!options.has_histogram &&
      (options.histogram.bins() != 0 || options.histogram.logarithmic())) {
    return ReportUsage("memory", "--bins and --log go with --histogram");
  }
  Client client = options.connection.Connect();
  if (verb == "show") return Show(client, session, options);
  return verb == "graph" ? Graph(client, session, options) : Forget(client, session, options);
}

}  // namespace mneme::cli
