// Models of tests, from the JSON of "model".
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tokenizers/huggingface/subword_model.h"

namespace mneme {

inline absl::StatusOr<std::unique_ptr<SubwordModel>> SubwordModelOf(
    absl::string_view json, PieceAlphabet alphabet = PieceAlphabet::kText) {
  auto parsed = ParseTokenizerJson(absl::StrCat(R"({"model": )", json, "}"), "t.json");
  if (!parsed.ok()) return parsed.status();
  return MakeSubwordModel(std::move(parsed->model), alphabet, "t.json");
}

inline absl::StatusOr<std::vector<int32_t>> IdsOf(const SubwordModel& model,
                                                  absl::string_view piece) {
  WorkMeter meter;
  std::vector<int32_t> ids;
  const absl::Status status = model.Append(piece, meter, ids);
  if (!status.ok()) return status;
  return ids;
}

// Units of work that `piece` takes.
inline int64_t WorkOf(const SubwordModel& model, absl::string_view piece) {
  WorkMeter meter;
  std::vector<int32_t> ids;
  return model.Append(piece, meter, ids).ok() ? meter.done() : -1;
}

}  // namespace mneme
