#include "clients/cli/usage_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace mneme::cli {

std::string SurpriseText(const v1::Usage& usage) {
  return absl::StrFormat("surprise %.4g", usage.surprise());
}

std::vector<std::string> MemoryUseTexts(const v1::MemoryUse& use, int most) {
  std::vector<std::string> texts;
  const int shown = std::min(most, use.sources_size());
  for (int i = 0; i < shown; ++i) {
    const v1::MemoryUse::Source& source = use.sources(i);
    texts.push_back(
        absl::StrFormat("%.0f%% of %s segment %d (tokens %d to %d)", 100 * source.weight(),
                        source.kind() == v1::ENGRAM_KIND_LONG_TERM ? "long-term" : "short-term",
                        source.segment().segment(), source.segment().first_token(),
                        source.segment().end_token() - 1));
  }
  if (shown < use.sources_size()) {
    double rest = 0;
    for (int i = shown; i < use.sources_size(); ++i) rest += use.sources(i).weight();
    texts.push_back(absl::StrFormat("%.0f%% of %d more", 100 * rest, use.sources_size() - shown));
  }
  return texts;
}

}  // namespace mneme::cli
