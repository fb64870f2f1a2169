#include "tools/session_view.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/human_bytes.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "engine/sessions/session_file.h"
#include "kernels/tensor.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

// Metadata that are numbers, but for hashes, as such.
Json FactsJson(const SessionFile& file) {
  Json facts = Json::object();
  for (const auto& [key, value] : file.metadata()) facts[key] = value;
  const SessionFacts& f = file.facts();
  facts["format_version"] = file.version();
  facts["position"] = f.position();
  facts["fed_tokens"] = f.fed_tokens;
  facts["pending_token"] = f.pending_token.has_value() ? Json(*f.pending_token) : Json();
  facts["conversation_bytes"] = f.fed.bytes;
  facts["has_text"] = f.has_text;
  facts["evictions"] = f.evictions;
  return facts;
}

void PrintJson(const SessionFile& file, bool intact) {
  Json json = FactsJson(file);
  json["history"] = file.facts().history;
  json["bytes"] = file.bytes();
  json["sha256"] = file.Sha256Text();
  json["intact"] = intact;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", tensor.dtype_name},
                               {"shape", tensor.shape},
                               {"bytes", tensor.bytes()}});
  }
  absl::PrintF("%s\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void PrintTable(const SessionFile& file, const std::string& path, bool intact) {
  absl::PrintF("%s: a session, %s\n", path, HumanBytes(file.bytes()));
  for (const auto& [key, value] : file.metadata()) {
    absl::PrintF("  %-20s %s\n", absl::CHexEscape(key), absl::CHexEscape(value));
  }
  absl::PrintF("  %-20s %d tokens\n", "history", file.facts().history.size());
  absl::PrintF("  %-20s %s, %s\n", "sha256", file.Sha256Text(),
               intact ? "as the bytes have it" : "NOT THAT OF THE BYTES");
  for (const SafetensorsTensor& tensor : file.tensors()) {
    absl::PrintF("  %-40s %-4s %-20s %13d bytes\n", absl::CHexEscape(tensor.name),
                 tensor.dtype_name, ShapeToString(tensor.shape), tensor.bytes());
  }
}

}  // namespace

absl::Status PrintSessionFile(const std::string& path, bool json) {
  MNEME_ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::Open(path));
  MNEME_ASSIGN_OR_RETURN(const SessionFile file, SessionFile::Parse(mapped.bytes(), path));
  const absl::Status sum = file.CheckSum();
  if (json) {
    PrintJson(file, sum.ok());
  } else {
    PrintTable(file, path, sum.ok());
  }
  return sum;
}

}  // namespace mneme
