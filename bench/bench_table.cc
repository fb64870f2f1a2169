#include "bench/bench_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"

namespace mneme {
namespace {

std::string Text(const BenchCell& cell, int decimals) {
  if (const auto* integer = std::get_if<int64_t>(&cell)) return absl::StrCat(*integer);
  if (const auto* real = std::get_if<double>(&cell))
    return absl::StrFormat("%.*f", decimals, *real);
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  return "-";
}

nlohmann::ordered_json Json(const BenchCell& cell) {
  if (const auto* integer = std::get_if<int64_t>(&cell)) return *integer;
  if (const auto* real = std::get_if<double>(&cell)) {
    return std::isfinite(*real) ? nlohmann::ordered_json(*real) : nlohmann::ordered_json();
  }
  if (const auto* text = std::get_if<std::string>(&cell)) return *text;
  return nullptr;
}

}  // namespace

void BenchTable::AddRow(std::vector<BenchCell> cells) {
  CHECK_EQ(cells.size(), columns_.size());
  rows_.push_back(std::move(cells));
}

void BenchTable::Print() const {
  std::vector<size_t> widths;
  for (const BenchColumn& column : columns_) widths.push_back(column.header.size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], Text(row[c], columns_[c].decimals).size());
    }
  }
  std::printf("\n%s\n\n", title_.c_str());
  const auto print = [&](const auto& text_of) {
    for (size_t c = 0; c < columns_.size(); ++c) {
      std::printf("%s %*s ", c == 0 ? "|" : "", static_cast<int>(widths[c]), text_of(c).c_str());
      std::printf("|");
    }
    std::printf("\n");
  };
  print([&](size_t c) { return columns_[c].header; });
  print([&](size_t c) { return std::string(widths[c] - 1, '-') + ":"; });
  for (const auto& row : rows_) {
    print([&](size_t c) { return Text(row[c], columns_[c].decimals); });
  }
  if (!notes_.empty()) std::printf("\n");
  for (const std::string& note : notes_) std::printf("%s\n", note.c_str());
  std::fflush(stdout);
}

nlohmann::ordered_json BenchTable::ToJson() const {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object;
    for (size_t c = 0; c < row.size(); ++c) object[columns_[c].key] = Json(row[c]);
    rows.push_back(std::move(object));
  }
  return {{"title", title_}, {"rows", std::move(rows)}, {"notes", notes_}};
}

absl::Status WriteJson(const nlohmann::ordered_json& report, const std::string& file) {
  std::ofstream out(file);
  out << report.dump(1) << "\n";
  out.close();
  if (out) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", file, " (--json)"));
}

}  // namespace mneme
