// EngineLoop: engrams of sessions. What crossings say of them, and what answers drew on.
#include <memory>

#include "engine/engine_loop.h"

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
  const auto recalled =
      parts_.model.ReadRecalled(parts_.pool.backend(), parts_.pool.slab(session.slot));
  if (recalled.ok()) g.memory_use->Leave(*recalled);
}

// Its slab is still there, and no step in flight feeds it.
void EngineLoop::EndMemoryUse(Generation& g) {
  const Session& session = *g.choices[0].session;
  if (g.memory_use == nullptr || g.spoilt || session.fed_tokens == 0) return;
  const auto recalled =
      parts_.model.ReadRecalled(parts_.pool.backend(), parts_.pool.slab(session.slot));
  if (recalled.ok()) g.memory_use->Add(*recalled);
}

}  // namespace mneme
