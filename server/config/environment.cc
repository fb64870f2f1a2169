#include "server/config/environment.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <regex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/spelling.h"
#include "server/config/flags.h"

namespace mneme {
namespace {

constexpr absl::string_view kPrefix = "MNEME_";

// Read by `mneme` and the libraries, which may well share the server's environment.
constexpr absl::string_view kClientVariables[] = {
    "MNEME_API_KEY",  "MNEME_SERVER",  "MNEME_TIMEOUT",        "MNEME_TLS_CA",
    "MNEME_TLS_CERT", "MNEME_TLS_KEY", "MNEME_TLS_SERVER_NAME"};

bool IsOfClients(absl::string_view name) {
  return std::count(std::begin(kClientVariables), std::end(kClientVariables), name) > 0;
}

// MNEME_SERVICE_HOST, MNEME_PORT_50051_TCP_ADDR, MNEME_HTTP_SERVICE_PORT_GRPC, ...; MNEME_PORT is
// Kubernetes' if it holds an address, tcp://10.0.0.1:50051, and else somebody's mistake.
bool IsOfKubernetes(const std::string& name, absl::string_view value) {
  static const std::regex* const kService = new std::regex(
      "MNEME_(\\w+_)?(SERVICE_HOST|SERVICE_PORT(_\\w+)?|"
      "PORT_[0-9]+_(TCP|UDP|SCTP)(_PROTO|_PORT|_ADDR)?)");
  if (std::regex_match(name, *kService)) return true;
  return absl::EndsWith(name, "_PORT") && absl::StrContains(value, "://");
}

}  // namespace

std::vector<UnknownVariable> UnknownVariables(std::span<const char* const> environment) {
  const FlagTable table;
  std::map<std::string, std::string> meant = {{"MNEME_CONFIG", "MNEME_CONFIG"}};  // by spelling
  for (const FlagSpec& flag : table.flags()) {
    meant[flag.env] = flag.env;
    for (const std::string& alias : flag.aliases) meant.emplace(VariableOf(alias), flag.env);
  }
  std::vector<std::string> spellings;
  for (const auto& [spelling, variable] : meant) spellings.push_back(spelling);

  std::vector<UnknownVariable> unknown;
  for (const absl::string_view entry : environment) {
    const std::pair<std::string, absl::string_view> variable =
        absl::StrSplit(entry, absl::MaxSplits('=', 1));
    const auto& [name, value] = variable;
    const auto known = meant.find(name);
    if (!absl::StartsWith(name, kPrefix) || IsOfClients(name) || IsOfKubernetes(name, value) ||
        (known != meant.end() && known->second == name)) {
      continue;
    }
    const std::string nearest = NearestSpelling(name, spellings);
    unknown.push_back({name, nearest.empty() ? "" : meant[nearest]});
  }
  return unknown;
}

}  // namespace mneme
