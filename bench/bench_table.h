// A table of results: Markdown for people, JSON for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"

namespace mneme {

struct BenchColumn {
  std::string key;     // in JSON: unit included, e.g. "ms_per_step"
  std::string header;  // in the table
  int decimals = 0;    // of floating-point values
};

// std::monostate: not measured; "-" in the table, null in JSON.
using BenchCell = std::variant<std::monostate, int64_t, double, std::string>;

class BenchTable {
 public:
  BenchTable(std::string title, std::vector<BenchColumn> columns)
      : title_(std::move(title)), columns_(std::move(columns)) {}

  // One cell per column.
  void AddRow(std::vector<BenchCell> cells);
  // A line below the table, and an entry of "notes" in JSON.
  void AddNote(std::string note) { notes_.push_back(std::move(note)); }

  void Print() const;  // on standard output
  // {"title": ..., "rows": [{key: value, ...}, ...], "notes": [...]}
  nlohmann::ordered_json ToJson() const;

 private:
  const std::string title_;
  const std::vector<BenchColumn> columns_;
  std::vector<std::vector<BenchCell>> rows_;
  std::vector<std::string> notes_;
};

// UNAVAILABLE names the file.
absl::Status WriteJson(const nlohmann::ordered_json& report, const std::string& file);

}  // namespace mneme
