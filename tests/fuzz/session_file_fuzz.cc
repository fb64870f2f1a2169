// Files that claim to be sessions: as they are, and with the right checksum at their end, which
// gets the input past that. The seed is a whole file of the layout below.

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "engine/sessions/session_file.h"
#include "engine/sessions/session_import.h"
#include "tests/fuzz/bounds.h"
#include "tests/support/layout_model.h"

namespace mneme {
namespace {

const LayoutModel& Model() {
  static const LayoutModel* model = [] {
    StateLayout layout;
    const StateField flags = layout.Add({.name = "written", .dtype = DType::kU8, .shape = {2}});
    layout.Add({.name = "memory",
                .dtype = DType::kF16,
                .shape = {2, 3},
                .guard = StateGuard::kFlags,
                .flags = flags.index});
    layout.Add({.name = "keys",
                .shape = {1, 70, 2},
                .guard = StateGuard::kFirstRows,
                .role = StateRole::kAppendOnly});
    return new LayoutModel(layout, {.vocab = 32, .max_context = 70});
  }();
  return *model;
}

void Check(std::string file) {
  const auto parsed = SessionFile::Parse(std::as_bytes(std::span(file)), "input");
  Require(parsed.ok() || !parsed.status().message().empty(), "an error says what is wrong");
  SessionModel own{.state_dtype = "f16"};
  if (parsed.ok()) {
    const SessionFacts& facts = parsed->facts();
    Require(static_cast<int64_t>(facts.history.size()) <= facts.position(),
            "a history is of the conversation");
    own = facts.model;
  }
  auto import = SessionImport::Read(Model(), own, 1 << 20, std::move(file));
  if (!import.ok()) return;
  Require(import->facts.fed_tokens <= 70, "a session fits its context");
  // What was taken is written again.
  SessionFileSource source(import->facts, std::move(import->state));
  std::string again;
  for (std::string piece = source.Next(); !piece.empty(); piece = source.Next()) again += piece;
  const auto same = SessionImport::Read(Model(), own, 1 << 20, again);
  Require(same.ok(), "a session that was imported can be exported and imported");
  Require(same->facts.position() == import->facts.position(), "and is at its position");
}

}  // namespace
}  // namespace mneme

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const mneme::TimeLimit limit(10);
  std::string file(reinterpret_cast<const char*>(data), size);
  mneme::Check(file);
  if (file.size() < sizeof(mneme::Sha256::Digest)) return 0;
  mneme::Sha256 sum;
  const size_t end = file.size() - sizeof(mneme::Sha256::Digest);
  sum.Add(std::as_bytes(std::span(file)).first(end));
  const mneme::Sha256::Digest digest = sum.Finish();
  std::memcpy(file.data() + end, digest.data(), digest.size());
  mneme::Check(file);
  return 0;
}
