#include "kernels/engrams_on_host.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/log.h"

namespace mneme {
namespace {

// visit(crossing, slot, segment) for the sessions that cross.
template <typename Visit>
void ForEachCrossing(const Crossings& crossings, const Visit& visit) {
  for (int64_t c = 0; c < crossings.most(); ++c) {
    const int32_t slot = crossings.slots.as<int32_t>()[c];
    if (slot >= 0) visit(c, slot, crossings.segments.as<int32_t>()[c]);
  }
}

// `attended`: where it reports whom the segment attended to, or null.
template <typename Number>
void AddGains(const CommitEngramsArgs& args, const Engrams<Number>& engrams, int slot,
              int32_t* attended) {
  const int room = args.rules.recalled();
  const double shares = static_cast<double>(args.layers) * args.heads * args.segment;
  for (int i = 0; i < engrams.fact(kEngramsRecalled); ++i) {
    double weight = 0;
    for (int layer = 0; layer < args.layers; ++layer) {
      const Number* sums = args.sums.as<Number>(slot, layer);
      for (int head = 0; head < args.heads; ++head) weight += sums[head * room + i];
    }
    const double gain = weight / shares * engrams.fact(kEngramColumns) * args.rules.lifespan_scale;
    const int engram = engrams.recalled()[i];
    if (attended != nullptr) {
      *attended++ = static_cast<int32_t>(engrams.birth(engram));
      *attended++ = static_cast<int32_t>(engrams.type(engram));
      *attended++ = ReportWord(weight / (shares / args.segment));
    }
    engrams.gain(engram) = static_cast<Number>(gain);
    engrams.lifespan(engram) += engrams.gain(engram);
  }
}

template <typename Number>
void BuryTheDead(const Engrams<Number>& engrams) {
  for (int i = 0; i < engrams.capacity(); ++i) {
    if (engrams.type(i) != EngramType::kFree && !(engrams.lifespan(i) > 0)) {
      engrams.set_type(i, EngramType::kFree);
    }
  }
}

template <typename Number>
void MoveOn(const EngramRules& rules, const Engrams<Number>& engrams) {
  for (const int i : engrams.OfType(EngramType::kWorking)) {
    engrams.set_type(i, EngramType::kShortTerm);
  }
  const std::vector<int> short_term = engrams.OfType(EngramType::kShortTerm);
  const int over = static_cast<int>(short_term.size()) - rules.short_term;
  for (int i = 0; i < over; ++i) engrams.set_type(short_term[i], EngramType::kLongTerm);
}

template <typename Number>
void MakeRoom(const EngramRules& rules, const Engrams<Number>& engrams) {
  int free = 0;
  for (int i = 0; i < engrams.capacity(); ++i) free += engrams.type(i) == EngramType::kFree;
  if (free >= rules.working) return;
  std::vector<int> long_term = engrams.OfType(EngramType::kLongTerm);
  std::stable_sort(long_term.begin(), long_term.end(),
                   [&](int a, int b) { return engrams.lifespan(a) < engrams.lifespan(b); });
  const int evicted = rules.working - free;
  CHECK_LE(evicted, static_cast<int>(long_term.size())) << "a store that is too small";
  for (int i = 0; i < evicted; ++i) engrams.set_type(long_term[i], EngramType::kFree);
  engrams.fact(kEngramsEvicted) += evicted;
}

// The first `most` of `candidates`, oldest first, by score.
template <typename Number>
std::vector<int> Best(std::vector<int> candidates, const Number* scores, int most) {
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](int a, int b) { return scores[a] > scores[b]; });
  if (static_cast<int>(candidates.size()) > most) candidates.resize(static_cast<size_t>(most));
  return candidates;
}

// What the walk knows of long-term engrams.
template <typename Number>
class Walk {
 public:
  Walk(const Engrams<Number>& engrams, int segment, std::vector<int> long_term)
      : engrams_(engrams),
        segment_(segment),
        long_term_(std::move(long_term)),
        is_found_(static_cast<size_t>(engrams.capacity())) {}

  void Seed(const EngramRules& rules, int source, bool recalled) {
    const auto draw = [&](size_t n) -> int64_t {
      if (!rules.random_ties) return 0;
      return EngramDraw(engrams_.seed(rules), static_cast<uint64_t>(segment_),
                        engrams_.birth(source), static_cast<int64_t>(n));
    };
    if (!recalled) {
      if (rules.extra_seeds) Find(long_term_[static_cast<size_t>(draw(long_term_.size()))]);
      return;
    }
    engrams_.CountsWith(source, long_term_, segment_, counts_);
    const uint16_t largest = *std::max_element(counts_.begin(), counts_.end());
    std::vector<int> tied;
    for (size_t n = 0; n < long_term_.size(); ++n) {
      if (counts_[n] == largest) tied.push_back(long_term_[n]);
    }
    Find(tied[static_cast<size_t>(draw(tied.size()))]);
  }

  // Returns whether it ran out of engrams at the start of a round.
  bool Go(int depth) {
    size_t begin = 0;  // of those that were found in the round before
    for (int round = 0; round < depth; ++round) {
      std::vector<int> reach;
      for (const int j : long_term_) {
        if (!is_found_[static_cast<size_t>(j)]) reach.push_back(j);
      }
      if (reach.empty()) return true;
      const size_t end = found_.size();
      for (size_t c = begin; c < end; ++c) {
        engrams_.CountsWith(found_[c], reach, segment_, counts_);
        const auto next = std::max_element(counts_.begin(), counts_.end());
        Find(reach[static_cast<size_t>(next - counts_.begin())]);
      }
      begin = end;
    }
    return false;
  }

  // Oldest first.
  std::vector<int> Found() const {
    std::vector<int> found;
    for (const int j : long_term_) {
      if (is_found_[static_cast<size_t>(j)]) found.push_back(j);
    }
    return found;
  }

 private:
  void Find(int j) {
    if (is_found_[static_cast<size_t>(j)]) return;
    is_found_[static_cast<size_t>(j)] = true;
    found_.push_back(j);
  }

  const Engrams<Number>& engrams_;
  const int segment_;
  std::vector<int> long_term_;    // oldest first
  std::vector<bool> is_found_;    // by slot
  std::vector<int> found_;        // in the order in which they were
  std::vector<uint16_t> counts_;  // with those that a choice is made from
};

template <typename Number>
void Retrieve(const EngramRules& rules, const Engrams<Number>& engrams, int segment,
              const Number* scores) {
  const std::vector<int> short_term = engrams.OfType(EngramType::kShortTerm);
  const std::vector<int> long_term = engrams.OfType(EngramType::kLongTerm);
  std::vector<int> recalled = Best(short_term, scores, rules.recalled_short);
  bool left_out = recalled.size() < short_term.size();
  bool null_candidate = false, null_recalled = false;
  size_t found = 0;
  if (!long_term.empty()) {
    Walk<Number> walk(engrams, segment, long_term);
    for (const int i : short_term) {
      const bool is_recalled = std::find(recalled.begin(), recalled.end(), i) != recalled.end();
      walk.Seed(rules, i, is_recalled);
    }
    null_candidate = walk.Go(rules.depth) && rules.null_candidate;
    std::vector<int> candidates = walk.Found();
    found = candidates.size();
    const int null = engrams.capacity();  // whose score lies behind those of slots
    if (null_candidate) candidates.push_back(null);
    for (const int i : Best(candidates, scores, rules.recalled_long)) {
      if (i == null) {
        null_recalled = true;
      } else {
        recalled.push_back(i);
      }
    }
  } else if (rules.recalls_oldest && rules.recalled_long > 0 && !short_term.empty()) {
    const int oldest = short_term.front();
    if (std::find(recalled.begin(), recalled.end(), oldest) == recalled.end()) {
      recalled.push_back(oldest);
    }
  }
  std::sort(recalled.begin(), recalled.end(),
            [&](int a, int b) { return engrams.birth(a) < engrams.birth(b); });
  std::vector<int> active = engrams.OfType(EngramType::kWorking);
  active.insert(active.end(), recalled.begin(), recalled.end());
  engrams.Fire(active, segment);

  std::fill_n(engrams.recalled(), rules.recalled(), -1);
  std::copy(recalled.begin(), recalled.end(), engrams.recalled());
  left_out = left_out || null_recalled;
  const auto count = static_cast<int32_t>(recalled.size());
  engrams.fact(kEngramsRecalled) = count;
  engrams.fact(kEngramColumns) = count + (rules.null_column && left_out ? 1 : 0);
  engrams.fact(kEngramsFound) = static_cast<int32_t>(found);
  engrams.fact(kEngramNullCandidate) = null_candidate ? 1 : 0;
  engrams.fact(kEngramNullRecalled) = null_recalled ? 1 : 0;
}

// The report of a session whose segment has begun.
template <typename Number>
void Report(const EngramRules& rules, const Engrams<Number>& engrams, int segment,
            int32_t* report) {
  double lifespans = 0, ages = 0;
  int32_t of_type[4] = {}, recalled_long = 0;
  for (int i = 0; i < engrams.capacity(); ++i) {
    ++of_type[static_cast<int>(engrams.type(i))];
    if (engrams.type(i) != EngramType::kFree) lifespans += engrams.lifespan(i);
  }
  for (int i = 0; i < engrams.fact(kEngramsRecalled); ++i) {
    const int engram = engrams.recalled()[i];
    if (engrams.type(engram) != EngramType::kLongTerm) continue;
    ++recalled_long;
    ages += segment - 1 -
            static_cast<double>(engrams.birth(engram) / static_cast<uint32_t>(rules.working));
  }
  report[kReportShortTerm] = of_type[static_cast<int>(EngramType::kShortTerm)];
  report[kReportLongTerm] = of_type[static_cast<int>(EngramType::kLongTerm)];
  report[kReportFound] = engrams.fact(kEngramsFound);
  report[kReportRecalled] = engrams.fact(kEngramsRecalled);
  report[kReportRecalledLong] = recalled_long;
  report[kReportRecalledAges] = ReportWord(ages);
  report[kReportLifespans] = ReportWord(lifespans);
  report[kReportEvicted] = engrams.fact(kEngramsEvicted);
}

}  // namespace

int32_t* ReportOf(const EngramReports& reports, int64_t crossing) {
  if (reports.words.empty()) return nullptr;
  const int64_t place = reports.range.as<int32_t>()[0] + crossing;
  CHECK_LT(place, reports.words.shape[0]) << "more reports than there is room for";
  return reports.words.as<int32_t>() + place * reports.words.shape[1];
}

double ExpMeanScore(std::span<const double> distances) {
  const double least = *std::min_element(distances.begin(), distances.end());
  double sum = 0;
  for (const double distance : distances) sum += std::exp(least - distance);
  return std::log(sum / static_cast<double>(distances.size())) - least;
}

double NegSquareScore(double distance_to_mean, double spread) {
  return -(distance_to_mean + spread);
}

void FindCrossingsOnHost(const FindCrossingsArgs& args) {
  const int64_t most = args.crossings.most();
  const int32_t* offsets = args.row_offsets.as<int32_t>();
  auto* const slots = args.crossings.slots.as<int32_t>();
  auto* const segments = args.crossings.segments.as<int32_t>();
  int32_t count = 0, before = 0;
  for (int64_t row = 0; row < args.slots.shape[0] && count < most; ++row) {
    const int32_t slot = args.slots.as<int32_t>()[row];
    const int64_t position = args.positions.as<int64_t>()[row];
    if (slot < 0 || offsets[row] == offsets[row + 1]) continue;
    if (position == 0 || position % args.segment != 0 || before++ < args.first) continue;
    slots[count] = slot;
    segments[count++] = static_cast<int32_t>(position / args.segment);
  }
  std::fill(slots + count, slots + most, -1);
  std::fill(segments + count, segments + most, 0);
  args.working_entries.as<int32_t>()[0] = args.attended_entries.as<int32_t>()[0] = 0;
  if (!args.report_range.empty()) {
    auto* const range = args.report_range.as<int32_t>();
    range[0] = range[1];
    range[1] += count;
  }
  args.working_entries.as<int32_t>()[1] = count * args.working;
  args.attended_entries.as<int32_t>()[1] = count * args.attended;
}

template <typename Number>
void CommitEngramsOnHost(const CommitEngramsArgs& args) {
  ForEachCrossing(args.crossings, [&](int64_t crossing, int slot, int segment) {
    const Engrams<Number> engrams(args.store, slot);
    int32_t* const report = ReportOf(args.reports, crossing);
    if (report != nullptr) {
      report[kReportSlot] = slot;
      report[kReportSegment] = segment;
      report[kReportAttended] = segment < 2 ? 0 : engrams.fact(kEngramsRecalled);
    }
    if (segment < 2) return;
    AddGains(args, engrams, slot, report == nullptr ? nullptr : report + kEngramReportWords);
    for (int i = 0; i < engrams.capacity(); ++i) {
      if (engrams.type(i) != EngramType::kFree) engrams.lifespan(i) -= 1;
    }
    if (!args.rules.deaths_last) BuryTheDead(engrams);
    MoveOn(args.rules, engrams);
    if (args.rules.deaths_last) BuryTheDead(engrams);
    MakeRoom(args.rules, engrams);
    for (int layer = 0; layer < args.layers; ++layer) {
      std::fill_n(args.sums.as<Number>(slot, layer), args.heads * args.rules.recalled(), Number{0});
    }
  });
}

template <typename Number>
void ReadEncoderOnHost(const ReadEncoderArgs& args) {
  const int64_t dim = args.x.shape[1];
  ForEachCrossing(args.crossings, [&](int64_t crossing, int slot, int) {
    for (int w = 0; w < args.working; ++w) {
      const Number* sums = args.sums.as<Number>(slot, 0) + w * dim;
      const Number total =
          args.total.base == nullptr ? Number{1} : args.total.as<Number>(slot, 0)[w];
      Number* x = args.x.as<Number>() + (crossing * args.working + w) * dim;
      for (int64_t i = 0; i < dim; ++i) x[i] = sums[i] / total;
    }
  });
}

template <typename Number>
void WriteEngramsOnHost(const WriteEngramsArgs& args) {
  const int64_t dim = args.store.dim;
  const int working = args.rules.working;
  ForEachCrossing(args.crossings, [&](int64_t crossing, int slot, int segment) {
    const Engrams<Number> engrams(args.store, slot);
    const Number* x = args.x.as<Number>() + crossing * working * dim;
    int i = 0;
    for (int w = 0; w < working; ++w, ++i) {
      while (i < engrams.capacity() && engrams.type(i) != EngramType::kFree) ++i;
      CHECK_LT(i, engrams.capacity()) << "no free slot for a working engram";
      engrams.set_type(i, EngramType::kWorking);
      std::copy_n(x + w * dim, dim, engrams.vector(i));
      engrams.lifespan(i) = static_cast<Number>(args.rules.lifespan);
      engrams.gain(i) = 0;
      engrams.birth(i) = static_cast<uint32_t>(segment - 1) * static_cast<uint32_t>(working) +
                         static_cast<uint32_t>(w);
    }
    engrams.ForgetFirings(engrams.OfType(EngramType::kWorking));
    engrams.fact(kEngramsWorking) = working;
  });
}

template <typename Number>
void RetrieveEngramsOnHost(const RetrieveEngramsArgs& args) {
  ForEachCrossing(args.crossings, [&](int64_t crossing, int slot, int segment) {
    const Engrams<Number> engrams(args.store, slot);
    Retrieve(args.rules, engrams, segment,
             args.scores.as<Number>() + crossing * args.scores.shape[1]);
    if (int32_t* report = ReportOf(args.reports, crossing)) {
      Report(args.rules, engrams, segment, report);
    }
  });
}

template <typename Number>
void GatherEngramsOnHost(const GatherEngramsArgs& args) {
  const int64_t dim = args.store.dim, attended = args.rules.attended();
  ForEachCrossing(args.crossings, [&](int64_t crossing, int slot, int) {
    const Engrams<Number> engrams(args.store, slot);
    Number* x = args.x.as<Number>() + crossing * attended * dim;
    std::fill_n(x, attended * dim, Number{0});
    const std::vector<int> working = engrams.OfType(EngramType::kWorking);
    for (size_t w = 0; w < working.size(); ++w) {
      std::copy_n(engrams.vector(working[w]), dim, x + static_cast<int64_t>(w) * dim);
    }
    for (int i = 0; i < engrams.fact(kEngramsRecalled); ++i) {
      std::copy_n(engrams.vector(engrams.recalled()[i]), dim, x + (args.rules.working + i) * dim);
    }
  });
}

template <typename Number>
void StoreEngramContextOnHost(const StoreEngramContextArgs& args) {
  const int64_t numbers = args.k.shape.elements() / args.crossings.most();
  ForEachCrossing(args.crossings, [&](int64_t crossing, int slot, int) {
    std::copy_n(args.k.as<Number>() + crossing * numbers, numbers, args.keys.as<Number>(slot, 0));
    std::copy_n(args.v.as<Number>() + crossing * numbers, numbers, args.values.as<Number>(slot, 0));
  });
}

#define MNEME_ENGRAMS_OF(Number)                                           \
  template void CommitEngramsOnHost<Number>(const CommitEngramsArgs&);     \
  template void ReadEncoderOnHost<Number>(const ReadEncoderArgs&);         \
  template void WriteEngramsOnHost<Number>(const WriteEngramsArgs&);       \
  template void RetrieveEngramsOnHost<Number>(const RetrieveEngramsArgs&); \
  template void GatherEngramsOnHost<Number>(const GatherEngramsArgs&);     \
  template void StoreEngramContextOnHost<Number>(const StoreEngramContextArgs&);
MNEME_ENGRAMS_OF(float)
MNEME_ENGRAMS_OF(double)
#undef MNEME_ENGRAMS_OF

}  // namespace mneme
