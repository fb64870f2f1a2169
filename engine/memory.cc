// EngineLoop: engrams of sessions. What crossings say of them, what answers drew on, and what is to
// be forgotten.
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/engine_loop.h"
#include "engine/status_payload.h"
#include "models/state_codec.h"

namespace mneme {

// A row's crossings, of a session that `choice` feeds.
void EngineLoop::CountCrossings(Generation& g, Choice& choice) {
  const StepReports& reports = pipeline_.result().reports;
  EngramStats& stats = parts_.stats.engrams;
  for (int i = 0; i < reports.count(); ++i) {
    const CrossingReport report = reports[i];
    if (report[kReportSlot] != choice.session->slot) continue;
    stats.long_term.Observe(report[kReportLongTerm]);
    stats.lifespans.Observe(report.number(kReportLifespans));
    if (report[kReportLongTerm] > 0) stats.found.Observe(report[kReportFound]);
    if (const int recalled = report[kReportRecalledLong]; recalled > 0) {
      stats.recalled_age.Observe(report.number(kReportRecalledAges) / recalled);
    }
    stats.evictions.Add(report[kReportEvicted] - choice.session->evictions);
    choice.session->evictions = report[kReportEvicted];
    if (report[kReportSegment] == parts_.model.info().counted_segments + 1) stats.wraps.Add();
    if (g.memory_use != nullptr && choice.index == 0) g.memory_use->Add(report.Attended());
  }
  g.memory_evicted = g.memory_evicted || choice.session->evictions > 0;
}

// What the first choice drew on, whose session the request goes on with. Where the device cannot
// say, nothing is told, and the next step ends the request.
void EngineLoop::BeginMemoryUse(Generation& g) {
  const Session& session = *g.choices[0].session;
  g.memory_evicted = session.evictions > 0;
  if (!g.request.memory_use) return;
  g.memory_use = std::make_unique<MemoryUseTally>();
  if (session.fed_tokens == 0) return;
  const auto recalled = parts_.model.ReadRecalled(parts_.pool.backend(), SlabOf(session));
  if (recalled.ok()) g.memory_use->Leave(*recalled);
}

// Its slab is still there, and no step in flight feeds it.
void EngineLoop::EndMemoryUse(Generation& g) {
  const Session& session = *g.choices[0].session;
  if (g.memory_use == nullptr || g.spoilt || session.fed_tokens == 0) return;
  const auto recalled = parts_.model.ReadRecalled(parts_.pool.backend(), SlabOf(session));
  if (recalled.ok()) g.memory_use->Add(*recalled);
}

// A copy of the state is changed on the host, and written back as a whole. Any error but one of the
// device leaves the session as it was. What is kept beside the state goes also where the engrams of
// these segments have died: going back would bring them back.
absl::StatusOr<ForgottenEngrams> EngineLoop::ForgetSegments(const SessionKey& key, int64_t first,
                                                            int64_t end, Done done,
                                                            std::span<const int32_t> logged) {
  const Model& model = parts_.model;
  MNEME_RETURN_IF_ERROR(CheckKind(/*classify=*/false, bounds_.classes));
  if (model.info().engrams == 0) {
    return WithReason(absl::UnimplementedError(absl::StrCat(
                          "the memory of a model of type ", model.info().architecture,
                          " is of one piece: expected a model that makes engrams (Memoria)")),
                      kReasonWrongKind);
  }
  if (first < 0) {
    return FieldError("first", absl::StrCat("is ", first, ", expected a segment from 0 on"));
  }
  if (end <= first) {
    return FieldError("end", absl::StrCat("is ", end, ", expected one above first, ", first));
  }
  MNEME_ASSIGN_OR_RETURN(Session * session, sessions_.FindWithSlab(key));
  absl::StatusOr<ForgottenEngrams> forgotten = ForgetIn(*session, first, end);
  if (absl::IsFailedPrecondition(forgotten.status())) {
    return WithPosition(WithReason(forgotten.status(), kReasonSegmentOpen), session->position());
  }
  MNEME_RETURN_IF_ERROR(forgotten.status());
  const int64_t segment = model.info().segment;
  // Nothing is left of what it forgot before, and a client may ask again whose answer was lost.
  if (forgotten->total() == 0 && session->forgotten.Has(first * segment, end * segment)) {
    done(absl::OkStatus());
    return forgotten;
  }
  ForgetBeside(*session, first * segment, logged);
  session->path = 0;  // what it holds is no longer what its tokens lead to
  sessions_.LogForgetting(*session, first * segment, end * segment, std::move(done));
  return forgotten;
}

// What others have of the session from that position on: answers, and states behind its prompt. Of
// those all go: what it was fed is not known when something else of it is forgotten.
void EngineLoop::ForgetBeside(const Session& session, int64_t position,
                              std::span<const int32_t> logged) {
  keys_.ForgetAnswers(session.id, position);
  if (prefixes_ == nullptr) return;
  const std::vector<int32_t> fed = prefixes_->TokensOf(session.path, session.fed_tokens);
  prefixes_->ForgetPath(PrefixOwner(session.key), fed.empty() ? logged : std::span(fed), 0);
}

absl::StatusOr<ForgottenEngrams> EngineLoop::ForgetIn(const Session& session, int64_t first,
                                                      int64_t end) {
  const Model& model = parts_.model;
  Backend& backend = parts_.pool.backend();
  MNEME_ASSIGN_OR_RETURN(CanonicalState state,
                         DecodeState(backend, model, SlabOf(session), session.fed_tokens));
  MNEME_ASSIGN_OR_RETURN(ForgottenEngrams forgotten, model.ForgetSegments(state, first, end));
  if (forgotten.total() > 0) {
    MNEME_RETURN_IF_ERROR(EncodeState(backend, model, state, SlabOf(session)));
  }
  return forgotten;
}

}  // namespace mneme
