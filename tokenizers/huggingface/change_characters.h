// Texts of which single characters change, whatever stands around them.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "tokenizers/unicode/code_point.h"

namespace mneme {

// `text` itself if no character `changes`; else a view of `storage`, where `append(c, storage)` put
// what stands in the place of each that does, if anything.
template <typename Changes, typename Append>
absl::string_view ChangeCharacters(absl::string_view text, const Changes& changes,
                                   const Append& append, std::string& storage) {
  bool changed = false;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = CodePointAt(text, at);
    if (changes(c.value)) {
      if (!changed) {
        storage.clear();
        storage.reserve(text.size() + text.size() / 8);
        changed = true;
      }
      storage.append(text.data() + done, at - done);
      append(c.value, storage);
      done = at + c.length;
    }
    at += c.length;
  }
  if (!changed) return text;
  storage.append(text.data() + done, text.size() - done);
  return storage;
}

}  // namespace mneme
