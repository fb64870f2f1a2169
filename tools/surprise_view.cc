#include "tools/surprise_view.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/inserted_positions.h"

namespace mneme {
namespace {

constexpr const char* kTracks[] = {"loss", "theta", "eta", "alpha"};

// The numbers of one layer, or of one head of it: a line of a map.
struct Lane {
  int layer = 0;
  int heads = 1;  // of the layer
  int head = -1;  // -1: the mean over all
};

class Reader {
 public:
  // `tokens`: of the sequence, behind a prefix and among the positions that the model inserts.
  Reader(const SurpriseView& view, const ModelInfo& model, const LayerTape& tape, int64_t tokens)
      : tape_(tape), inserted_(model.inserted), prefix_(tape.tokens() - model.inserted.Of(tokens)) {
    for (const TrainedLayer& trained : model.trained) {
      const bool wanted = view.layers.empty() || absl::c_linear_search(view.layers, trained.layer);
      if (!wanted) continue;
      if (!view.by_head) lanes_.push_back({.layer = trained.layer});
      for (int head = 0; view.by_head && head < trained.heads; ++head) {
        lanes_.push_back({.layer = trained.layer, .heads = trained.heads, .head = head});
      }
    }
  }

  const std::vector<Lane>& lanes() const { return lanes_; }

  // Empty for a memory that has no such gate.
  std::optional<double> At(const Lane& lane, const std::string& name, int64_t token) const {
    const LayerTape::Track* const track = tape_.Find(lane.layer, name);
    if (track == nullptr) return std::nullopt;
    const double* const row = track->values.data() + RowOf(token) * track->width;
    const int64_t width = lane.head < 0 ? track->width : track->width / lane.heads;
    const int64_t first = lane.head < 0 ? 0 : lane.head * width;
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += row[first + i];
    return sum / static_cast<double>(width);
  }

 private:
  // Inserted positions are fed in front of their token.
  int64_t RowOf(int64_t token) const { return prefix_ + inserted_.Of(token + 1) - 1; }

  const LayerTape& tape_;
  const InsertedPositions inserted_;
  const int64_t prefix_;
  std::vector<Lane> lanes_;
};

std::string Shown(const std::optional<double>& value) {
  return value.has_value() ? absl::StrFormat("%10.4g", *value) : absl::StrFormat("%10s", "-");
}

void PrintTable(const SurpriseView& view, const Reader& reader, std::span<const int32_t> ids,
                std::span<const std::string> texts) {
  absl::PrintF("%6s %7s %-16s %5s%s %10s %10s %10s %10s\n", "token", "id", "text", "layer",
               view.by_head ? " head" : "", "surprise", "theta", "eta", "alpha");
  const auto tokens = static_cast<int64_t>(ids.size());
  for (int64_t token = 0; token < std::min<int64_t>(view.rows, tokens); ++token) {
    for (const Lane& lane : reader.lanes()) {
      const std::string text =
          texts.empty() ? "" : absl::StrCat("\"", absl::CHexEscape(texts[token]), "\"");
      absl::PrintF("%6d %7d %-16s %5d", token, ids[token], text, lane.layer);
      if (view.by_head) absl::PrintF(" %4d", lane.head);
      for (const char* name : kTracks) absl::PrintF(" %s", Shown(reader.At(lane, name, token)));
      absl::PrintF("\n");
    }
  }
  if (tokens > view.rows) absl::PrintF("... %d tokens more, see --rows\n", tokens - view.rows);
}

void PrintCsv(const SurpriseView& view, const Reader& reader, std::span<const int32_t> ids) {
  absl::PrintF("token,id,layer,%ssurprise,theta,eta,alpha\n", view.by_head ? "head," : "");
  for (int64_t token = 0; token < static_cast<int64_t>(ids.size()); ++token) {
    for (const Lane& lane : reader.lanes()) {
      absl::PrintF("%d,%d,%d", token, ids[token], lane.layer);
      if (view.by_head) absl::PrintF(",%d", lane.head);
      for (const char* name : kTracks) {
        const std::optional<double> value = reader.At(lane, name, token);
        absl::PrintF(",%s", value.has_value() ? absl::StrFormat("%.9g", *value) : "");
      }
      absl::PrintF("\n");
    }
  }
}

// A line for each token: it can be read as it comes.
void PrintJson(const SurpriseView& view, const Reader& reader, std::span<const int32_t> ids,
               std::span<const std::string> texts) {
  using nlohmann::json;
  for (int64_t token = 0; token < static_cast<int64_t>(ids.size()); ++token) {
    json lanes = json::array();
    for (const Lane& lane : reader.lanes()) {
      json one = {{"layer", lane.layer}};
      if (view.by_head) one["head"] = lane.head;
      for (const char* name : kTracks) {
        const std::optional<double> value = reader.At(lane, name, token);
        if (!value.has_value()) continue;
        const char* const key = absl::string_view(name) == "loss" ? "surprise" : name;
        one[key] = std::isfinite(*value) ? json(*value) : json(nullptr);
      }
      lanes.push_back(std::move(one));
    }
    json line = {{"token", token}, {"id", ids[token]}, {"memories", std::move(lanes)}};
    if (!texts.empty()) line["text"] = texts[token];
    absl::PrintF("%s\n",
                 line.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace));
  }
}

enum class Colours { kNone, k256, k24Bit };

Colours ColoursOf(const std::string& name) {
  if (name == "24bit") return Colours::k24Bit;
  if (name == "256") return Colours::k256;
  const char* const none = std::getenv("NO_COLOR");
  if (name == "none" || (none != nullptr && none[0] != '\0') || !isatty(STDOUT_FILENO)) {
    return Colours::kNone;
  }
  const char* const colour_term = std::getenv("COLORTERM");
  const char* const term = std::getenv("TERM");
  if (colour_term != nullptr &&
      (absl::StrContains(colour_term, "truecolor") || absl::StrContains(colour_term, "24bit"))) {
    return Colours::k24Bit;
  }
  return term != nullptr && absl::StrContains(term, "256") ? Colours::k256 : Colours::kNone;
}

// One cell, from 0 to 1: dark blue over orange to white, or a shade.
std::string Cell(Colours colours, double level) {
  const auto channel = [](double x) {
    return static_cast<int>(std::lround(255 * std::clamp(x, 0.0, 1.0)));
  };
  if (std::isnan(level)) return colours == Colours::kNone ? "!" : "\x1b[48;2;255;0;0m!\x1b[0m";
  const double l = std::clamp(level, 0.0, 1.0);
  const int red = channel(2 * l), green = channel(1.8 * l - 0.5);
  const int blue = channel(l < 0.5 ? 0.35 * (1 - l) : 3 * l - 2);
  switch (colours) {
    case Colours::kNone: {
      constexpr const char* kShades[] = {" ", "░", "▒", "▓", "█"};
      return kShades[std::min(4, static_cast<int>(l * 5))];
    }
    case Colours::k256: {  // a cube of six steps a channel
      const auto step = [](int value) { return (value * 5 + 127) / 255; };
      return absl::StrFormat("\x1b[48;5;%dm \x1b[0m",
                             16 + 36 * step(red) + 6 * step(green) + step(blue));
    }
    case Colours::k24Bit:
      return absl::StrFormat("\x1b[48;2;%d;%d;%dm \x1b[0m", red, green, blue);
  }
  return "";
}

// The least and the largest finite number above 0, and levels between them. Losses differ by orders
// of magnitude; gates do not.
struct Scale {
  double low = std::numeric_limits<double>::infinity(), high = 0;
  bool logarithmic = false;

  double Level(double value) const {
    if (!std::isfinite(value)) return std::numeric_limits<double>::quiet_NaN();
    if (!(high > low)) return 1;
    if (!logarithmic) return (value - low) / (high - low);
    return value <= low ? 0 : std::log(value / low) / std::log(high / low);
  }
};

void PrintMap(const SurpriseView& view, const Reader& reader, int64_t tokens) {
  Scale scale{.logarithmic = view.value == "loss"};
  for (const Lane& lane : reader.lanes()) {
    for (int64_t token = 0; token < tokens; ++token) {
      const std::optional<double> value = reader.At(lane, view.value, token);
      if (!value.has_value() || !std::isfinite(*value) || *value <= 0) continue;
      scale.low = std::min(scale.low, *value);
      scale.high = std::max(scale.high, *value);
    }
  }
  const Colours colours = ColoursOf(view.colours);
  absl::PrintF("%s of each token: darkest %.4g, brightest %.4g%s\n",
               view.value == "loss" ? "surprise" : view.value, scale.low, scale.high,
               scale.logarithmic ? ", logarithmic" : "");
  for (int64_t first = 0; first < tokens; first += view.columns) {
    const int64_t end = std::min<int64_t>(first + view.columns, tokens);
    absl::PrintF("tokens %d to %d\n", first, end - 1);
    for (const Lane& lane : reader.lanes()) {
      std::string line = lane.head < 0 ? absl::StrFormat("layer %-8d ", lane.layer)
                                       : absl::StrFormat("layer %-3d.%-4d ", lane.layer, lane.head);
      for (int64_t token = first; token < end; ++token) {
        const std::optional<double> value = reader.At(lane, view.value, token);
        absl::StrAppend(&line, value.has_value() ? Cell(colours, scale.Level(*value)) : " ");
      }
      absl::PrintF("%s\n", line);
    }
  }
}

absl::Status CheckOneOf(absl::string_view flag, const std::string& value,
                        std::initializer_list<absl::string_view> names) {
  if (absl::c_linear_search(names, value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": \"", value, "\", expected ", absl::StrJoin(names, " or ")));
}

}  // namespace

absl::Status CheckSurpriseView(const SurpriseView& view, const ModelInfo& model) {
  for (const absl::Status& status :
       {CheckOneOf("--format", view.format, {"table", "csv", "json", "map"}),
        CheckOneOf("--value", view.value, {"loss", "theta", "eta", "alpha"}),
        CheckOneOf("--colours", view.colours, {"auto", "24bit", "256", "none"})}) {
    if (!status.ok()) return status;
  }
  if (model.trained.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no memory of a model of type ", model.architecture, " is trained as it reads"));
  }
  for (const int layer : view.layers) {
    if (absl::c_none_of(model.trained, [&](const TrainedLayer& t) { return t.layer == layer; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("--layers: ", layer, ", expected a layer whose memory is trained, such as ",
                       model.trained.front().layer));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSurpriseValue(const SurpriseView& view, const ModelInfo& model,
                                const LayerTape& tape) {
  std::vector<std::string> has;
  for (const char* name : kTracks) {
    const bool has_it = absl::c_any_of(model.trained, [&](const TrainedLayer& trained) {
      return tape.Find(trained.layer, name) != nullptr;
    });
    if (has_it) has.push_back(name);
  }
  if (view.format != "map" || absl::c_linear_search(has, view.value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--value: \"", view.value, "\", which memories of a model of type ",
                   model.architecture, " do not have, expected ", absl::StrJoin(has, " or ")));
}

void PrintSurprise(const SurpriseView& view, const ModelInfo& model, const LayerTape& tape,
                   std::span<const int32_t> ids, std::span<const std::string> texts) {
  const auto tokens = static_cast<int64_t>(ids.size());
  const Reader reader(view, model, tape, tokens);
  if (view.format == "csv") return PrintCsv(view, reader, ids);
  if (view.format == "json") return PrintJson(view, reader, ids, texts);
  if (view.format == "map") return PrintMap(view, reader, tokens);
  PrintTable(view, reader, ids, texts);
}

}  // namespace mneme
