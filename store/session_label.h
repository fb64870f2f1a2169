// How logs name a session.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace mneme {

// Its name, its owner as in the request log, and the number that rows and snapshots know it by.
inline std::string SessionLabel(absl::string_view name, absl::string_view owner, uint64_t id) {
  return absl::StrCat(
      "session \"", absl::Utf8SafeCEscape(name), "\" of ",
      owner.empty() ? "nobody's key" : absl::StrCat("key \"", absl::Utf8SafeCEscape(owner), "\""),
      " (", id, ")");
}

}  // namespace mneme
