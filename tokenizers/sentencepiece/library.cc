#include "tokenizers/sentencepiece/library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/program_folder.h"

namespace mneme {
namespace {

#ifdef MNEME_SENTENCEPIECE_LIBRARY

// The library must see its own protocol buffers and not those of the program, whose version
// differs. DEEPBIND makes it look at its own first. The sanitizers' interceptors do not survive
// that, but they do a namespace for the library and all that it needs: there it has a C library of
// its own, and nothing of the program's. Without sanitizers that would be a second heap, which the
// server could not trim.
void* Open(const char* path) {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
#ifdef MNEME_SANITIZED
  return dlmopen(LM_ID_NEWLM, path, kMode);
#else
  return dlopen(path, kMode | RTLD_DEEPBIND);
#endif
}

absl::StatusOr<const mneme_sentencepiece_api*> Load() {
  const absl::string_view built = MNEME_SENTENCEPIECE_LIBRARY;
  const absl::string_view name = built.substr(built.rfind('/') + 1);
  const std::string folder = ProgramFolder();
  std::vector<std::string> candidates;
  if (!folder.empty()) {
    candidates.push_back(absl::StrCat(folder, "/", name));
    candidates.push_back(absl::StrCat(folder, "/../lib/", name));
  }
  candidates.emplace_back(built);

  std::string tried;
  for (const std::string& path : candidates) {
    if (access(path.c_str(), F_OK) != 0) {
      absl::StrAppend(&tried, tried.empty() ? "" : "; ", path, " (does not exist)");
      continue;
    }
    // Never closed: its protocol buffers register themselves for the life of the process.
    void* library = Open(path.c_str());
    if (library == nullptr) {
      absl::StrAppend(&tried, tried.empty() ? "" : "; ", path, " (", dlerror(), ")");
      continue;
    }
    using Entry = const mneme_sentencepiece_api* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(library, MNEME_SENTENCEPIECE_ENTRY));
    const mneme_sentencepiece_api* api = entry == nullptr ? nullptr : entry();
    if (api != nullptr && api->abi == MNEME_SENTENCEPIECE_ABI) return api;
    absl::StrAppend(&tried, tried.empty() ? "" : "; ", path, " (of another version)");
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot load the SentencePiece library; tried ", tried));
}

#else

absl::StatusOr<const mneme_sentencepiece_api*> Load() {
  return absl::UnimplementedError("this build has no SentencePiece (libsentencepiece-dev)");
}

#endif

}  // namespace

absl::StatusOr<const mneme_sentencepiece_api*> SentencePieceLibrary() {
  // A library is loaded into a process, not into an object.
  static const auto* const library = new absl::StatusOr<const mneme_sentencepiece_api*>(Load());
  return *library;
}

}  // namespace mneme
