// What every architecture owes its users, whatever its memory: a small random network of each
// model_type goes through splits, batch mates, forks, the codec and a change of device. A
// model_type that has no network here fails RegistryTest.

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "engine/sessions/session_file.h"
#include "engine/sessions/session_import.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/architecture.h"
#include "models/state_bytes.h"
#include "models/state_codec.h"
#include "tests/models/conformance_specs.h"
#include "tests/models/test_folder.h"
#include "tests/support/backends.h"
#include "tests/support/matchers.h"

namespace mneme {
namespace {

using testing::HasSubstr;

constexpr int kSlots = 6;
constexpr int kMaxTokens = 128;

TEST(RegistryTest, EveryModelTypeIsHere) {
  for (const Architecture& architecture : Architectures()) {
    EXPECT_FALSE(ConformanceSpecs(architecture.model_type).empty())
        << architecture.model_type << " has no network: see Architecture::ways";
  }
}

// mneme-make-model makes each, small for tests and as large as a published one.
TEST(RegistryTest, EveryModelTypeHasShapes) {
  std::set<std::string> tiny, larger;
  for (const std::string& name : ShapeNames()) {
    const std::string type = SpecOfShape(name)->config["model_type"];
    (name.ends_with("-tiny") ? tiny : larger).insert(type);
  }
  for (const Architecture& architecture : Architectures()) {
    const std::string type = architecture.model_type;
    EXPECT_TRUE(tiny.contains(type)) << type;
    // The larger shape of Mamba stands for these, which are scans like it.
    if (type == "falcon_mamba" || type == "samba") continue;
    EXPECT_TRUE(larger.contains(type)) << type;
  }
}

class ConformanceTest
    : public testing::TestWithParam<std::tuple<const Architecture*, BackendUnderTest>> {
 protected:
  std::unique_ptr<Backend> MakeBackend() const {
    const BackendUnderTest& under_test = std::get<1>(GetParam());
    return under_test.Make();
  }
  bool bit_exact() const { return std::get<1>(GetParam()).bit_exact(); }
  // Calls check(driver) for each network of the model_type.
  template <typename Check>
  void ForEachNetwork(const Check& check) {
    for (const ModelSpec& spec : ConformanceSpecs(std::get<0>(GetParam())->model_type)) {
      SCOPED_TRACE(spec.config.dump());
      const TestFolder folder;
      MakeFolder(spec, folder);
      const auto driver = Drive(folder.path(), MakeBackend(),
                                {.slots = kSlots, .max_rows = kSlots, .max_tokens = kMaxTokens});
      if (!bit_exact()) bound_ = SameBoundOf(*driver, folder.path());
      check(*driver);
    }
  }
  testing::Matcher<const std::vector<double>&> IsTheSame(std::vector<double> want) const {
    return IsSame(bit_exact(), std::move(want), bound_);
  }
  // After how many tokens something of a state may be full, begin anew or be passed on: all up to
  // the longest period of what its fields keep of the last tokens, as far as that is short; of
  // longer ones those around it.
  static std::vector<int> Phases(const Model& model) {
    constexpr int64_t kShort = 20;
    std::set<int64_t> periods = {1};
    for (const StateField& field : model.state_layout().fields()) {
      if (field.initial == StateInitial::kPhase) {
        periods.insert(field.phases);  // held-back writes, and the one that folds them
      } else if (field.grows()) {
        periods.insert(kContextBlock);
        if (field.guard == StateGuard::kRing) periods.insert(field.rows());
      } else if (field.shape.rank == 3 && field.role == StateRole::kRewritten &&
                 field.row_values == 0) {
        periods.insert(field.shape[1] + 1);  // a convolution's window, and the token it is for
      }
    }
    for (const TrainedLayer& layer : model.info().trained) {
      periods.insert({layer.step, layer.anchor_period});
    }
    std::set<int> phases;
    for (const int64_t period : periods) {
      const int64_t first = period <= kShort ? 0 : period - 1;
      for (int64_t at = first; at <= period + 1 && at < kMaxTokens; ++at) {
        phases.insert(static_cast<int>(at));
      }
    }
    return {phases.begin(), phases.end()};
  }
  static std::vector<int32_t> Text(const ModelDriver& driver, int count, uint64_t seed) {
    return RandomTokens(count, driver.model().info().vocab, seed);
  }
  static CanonicalState Decode(ModelDriver& driver, int slot, int64_t tokens) {
    auto state = DecodeState(driver.backend(), driver.model(), driver.Slab(slot), tokens);
    CHECK_OK(state.status());
    return *std::move(state);
  }
  // Logits of one more token of each of some texts, as rows of one step.
  static std::vector<double> StepOf(ModelDriver& driver,
                                    const std::vector<ModelDriver::Row>& rows) {
    auto logits = driver.Step(rows);
    CHECK_OK(logits.status());
    return *std::move(logits);
  }

  double bound_ = kSameBound;  // of the network at hand
};

bool SameTensors(const CanonicalState& a, const CanonicalState& b) {
  return a.tensors.size() == b.tensors.size() &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(),
                    [](const StateTensor& x, const StateTensor& y) {
                      return x.name == y.name && x.bytes == y.bytes;
                    });
}

// The bytes of a slab that a session of so many tokens has filled, with zeros where nothing was
// written.
std::vector<std::byte> PackedState(ModelDriver& driver, int slot, int64_t tokens) {
  const StateLayout& layout = driver.model().state_layout();
  const std::vector<std::byte> slab = driver.ReadSlab(slot);
  std::vector<ByteRange> filled = {{0, layout.fixed_bytes()}};
  for (size_t g = 0; g < layout.groups().size(); ++g) {
    const ContextGroup& group = layout.groups()[g];
    const int64_t begin = layout.BlockOffset(static_cast<int>(g), 0);
    filled.push_back({begin, begin + group.filled_blocks(tokens) * group.block_bytes});
  }
  std::vector<std::byte> packed;
  for (const ByteRange& range : filled) {
    packed.insert(packed.end(), slab.begin() + range.begin, slab.begin() + range.end);
  }
  ClearUnwritten(layout, filled, tokens, packed);
  return packed;
}

TEST_P(ConformanceTest, AnySplitOfATextIsTheSame) {
  ForEachNetwork([&](ModelDriver& driver) {
    const std::vector<int32_t> text = Text(driver, 90, /*seed=*/1);
    const std::vector<double> whole = FeedSlot(driver, 0, text);
    const CanonicalState state = Decode(driver, 0, 90);
    int slot = 1;
    for (const std::vector<int>& chunks : {std::vector{1}, {7, 1, 13}, {64, 1}, {89, 1}}) {
      EXPECT_THAT(FeedSlot(driver, slot, text, chunks), IsTheSame(whole));
      if (bit_exact()) {
        EXPECT_TRUE(SameTensors(Decode(driver, slot, 90), state)) << "chunks of " << chunks[0];
      }
      ++slot;
    }
  });
}

TEST_P(ConformanceTest, UnequalNeighboursAndPaddingChangeNothing) {
  ForEachNetwork([&](ModelDriver& driver) {
    const std::vector<int32_t> text = Text(driver, 40, /*seed=*/2), other = Text(driver, 60, 3);
    const std::vector<double> alone = FeedSlot(driver, 0, text, {5, 1});
    std::vector<double> together;
    size_t fed = 0, fed_other = 0;
    for (int step = 0; fed < text.size(); ++step) {
      const size_t take = std::min<size_t>(step % 2 == 0 ? 5 : 1, text.size() - fed);
      const size_t take_other = std::min<size_t>(step % 3, other.size() - fed_other);
      std::vector<ModelDriver::Row> rows = {{-1, std::span(text).first(1)}};
      if (take_other > 0) rows.push_back({1, std::span(other).subspan(fed_other, take_other)});
      rows.push_back({2, std::span(text).subspan(fed, take)});
      const std::vector<double> logits = StepOf(driver, rows);
      together.insert(together.end(),
                      logits.end() - static_cast<int64_t>(take) * driver.model().info().vocab,
                      logits.end());
      fed += take;
      fed_other += take_other;
    }
    EXPECT_THAT(together, IsTheSame(alone));
  });
}

TEST_P(ConformanceTest, AForkAtAnyPhaseAndItsParentGoTheirOwnWays) {
  ForEachNetwork([&](ModelDriver& driver) {
    const std::vector<int> phases = Phases(driver.model());
    const std::vector<int32_t> other = Text(driver, 10, /*seed=*/5);
    const std::vector<int32_t> all = Text(driver, phases.back() + 10, /*seed=*/4);
    for (const int at : phases) {
      const auto text = std::span(all).first(static_cast<size_t>(at) + 10);
      const auto start = text.first(at), rest = text.subspan(at);
      for (const int slot : {0, 1, 2, 3}) driver.Reset(slot);
      FeedSlot(driver, 0, start, {1});
      driver.Fork(0, 1);
      const std::vector<double> fork = FeedSlot(driver, 1, other, {1});
      const std::vector<double> parent = FeedSlot(driver, 0, rest, {1});
      FeedSlot(driver, 2, start, {1});
      EXPECT_THAT(FeedSlot(driver, 2, rest, {1}), IsTheSame(parent)) << "at " << at;
      FeedSlot(driver, 3, start, {1});
      EXPECT_THAT(FeedSlot(driver, 3, other, {1}), IsTheSame(fork)) << "at " << at;
    }
  });
}

// A request that is cancelled leaves the batch between two steps: its session holds what was fed,
// others do not notice, and whoever gets a slab that was given up then finds nothing in it.
TEST_P(ConformanceTest, ACancelledRowLeavesItsSessionAndItsNeighboursAsTheyAre) {
  ForEachNetwork([&](ModelDriver& driver) {
    const std::vector<int32_t> text = Text(driver, 24, /*seed=*/9), other = Text(driver, 24, 10);
    const std::vector<double> want = FeedSlot(driver, 0, text, {1});
    const std::vector<double> want_other = FeedSlot(driver, 1, other, {1});
    for (const size_t cut : {1, 5, 17}) {
      for (const int slot : {0, 1, 2, 3}) driver.Reset(slot);
      std::vector<double> stays, cancelled, given_up;
      const auto feed = [&](int slot, const std::vector<int32_t>& tokens, size_t i) {
        return ModelDriver::Row{slot, std::span(tokens).subspan(i, 1)};
      };
      const auto keep = [&](std::vector<double>& all, const std::vector<double>& logits, int row) {
        const int vocab = driver.model().info().vocab;
        all.insert(all.end(), logits.begin() + row * vocab, logits.begin() + (row + 1) * vocab);
      };
      for (size_t i = 0; i < text.size(); ++i) {
        std::vector<ModelDriver::Row> rows = {feed(0, text, i)};
        if (i < cut) rows.push_back(feed(1, other, i));
        if (i < cut) rows.push_back(feed(2, other, i));
        const std::vector<double> logits = StepOf(driver, rows);
        keep(stays, logits, 0);
        if (i < cut) keep(cancelled, logits, 1);
      }
      // One of them goes on, the slab of the other is given away.
      const std::vector<double> resumed = FeedSlot(driver, 1, std::span(other).subspan(cut), {1});
      cancelled.insert(cancelled.end(), resumed.begin(), resumed.end());
      driver.Reset(2);
      given_up = FeedSlot(driver, 2, text, {1});
      EXPECT_THAT(stays, IsTheSame(want)) << "cut at " << cut;
      EXPECT_THAT(cancelled, IsTheSame(want_other)) << "cut at " << cut;
      EXPECT_THAT(given_up, IsTheSame(want)) << "cut at " << cut;
    }
  });
}

// After another session in its slab, and in one that is all NaN.
TEST_P(ConformanceTest, ANewSessionSeesNothingOfTheOneBeforeIt) {
  ForEachNetwork([&](ModelDriver& driver) {
    const std::vector<int32_t> text = Text(driver, 30, /*seed=*/6);
    const std::vector<double> want = FeedSlot(driver, 0, text, {1});
    const CanonicalState state = Decode(driver, 0, 30);
    FeedSlot(driver, 1, Text(driver, 50, 7));
    driver.Reset(1);
    EXPECT_THAT(FeedSlot(driver, 1, text, {1}), IsTheSame(want));
    const auto bytes = static_cast<size_t>(driver.model().state_layout().slab_bytes());
    driver.WriteSlab(2, std::vector<std::byte>(bytes, std::byte{0xff}), 0);  // NaN
    driver.Reset(2);
    EXPECT_THAT(FeedSlot(driver, 2, text, {1}), IsTheSame(want));
    if (bit_exact()) {
      EXPECT_TRUE(SameTensors(Decode(driver, 2, 30), state));
    }
  });
}

// Wherever it is in what it does every so many tokens, and whatever is held back.
TEST_P(ConformanceTest, AParkedSessionComesBackInAnotherSlabAsItWas) {
  ForEachNetwork([&](ModelDriver& driver) {
    const std::vector<int32_t> text = Text(driver, 40, /*seed=*/12);
    const std::vector<double> want = FeedSlot(driver, 0, text, {1});
    driver.Reset(1);
    std::vector<double> got;
    int slot = 1;
    for (int fed = 0, piece = 1; fed < 40; fed += piece, piece = 40 - fed < 9 ? 40 - fed : 9) {
      const std::vector<double> part =
          FeedSlot(driver, slot, std::span(text).subspan(fed, piece), {1});
      got.insert(got.end(), part.begin(), part.end());
      ASSERT_EQ(driver.Park(slot, 3 - slot), absl::OkStatus());
      slot = 3 - slot;
    }
    EXPECT_THAT(got, IsTheSame(want));
  });
}

// A snapshot, which has zeros where nothing was written, in a slab with a former owner's bytes.
TEST_P(ConformanceTest, TheWrittenBytesOfASlabAreTheState) {
  ForEachNetwork([&](ModelDriver& driver) {
    const StateLayout& layout = driver.model().state_layout();
    const std::vector<int32_t> text = Text(driver, 30, /*seed=*/13), rest = Text(driver, 20, 14);
    const std::vector<ByteRange> filled = {{0, layout.slab_bytes()}};
    const auto bytes = static_cast<size_t>(layout.slab_bytes());
    std::vector<std::vector<std::byte>> snapshots;
    for (const std::byte poison : {std::byte{0xff}, std::byte{0x11}}) {
      driver.WriteSlab(0, std::vector<std::byte>(bytes, poison), 0);
      driver.Reset(0);
      FeedSlot(driver, 0, text, {1});
      snapshots.push_back(driver.ReadSlab(0));
      ClearUnwritten(layout, filled, 30, snapshots.back());
    }
    if (bit_exact()) {
      EXPECT_EQ(snapshots[0], snapshots[1]) << "nothing of a former owner";
      const uint64_t digest = DigestState(layout, snapshots[0].data(), 30);
      driver.Reset(2);
      FeedSlot(driver, 2, text, {7, 1, 13});
      EXPECT_EQ(DigestState(layout, driver.ReadSlab(2).data(), 30), digest) << "in other pieces";
      std::vector<int32_t> other = text;
      other[12] = (other[12] + 1) % driver.model().info().vocab;
      driver.Reset(2);
      FeedSlot(driver, 2, other, {1});
      EXPECT_NE(DigestState(layout, driver.ReadSlab(2).data(), 30), digest) << "another token";
    }
    driver.WriteSlab(1, snapshots[1], 30);
    EXPECT_THAT(FeedSlot(driver, 1, rest, {1}), IsTheSame(FeedSlot(driver, 0, rest, {1})));
  });
}

// What a snapshot has, and what of an earlier one it leaves where it is, are all of the state.
TEST_P(ConformanceTest, RowsThatAreWrittenOnceStayAsTheyWere) {
  ForEachNetwork([&](ModelDriver& driver) {
    const StateLayout& layout = driver.model().state_layout();
    const std::vector<int32_t> text = Text(driver, 2 * kContextBlock + 1, /*seed=*/15);
    driver.Reset(0);
    std::vector<std::byte> before;
    int64_t since = 0;
    for (const int64_t tokens :
         {kContextBlock / 2, kContextBlock + 3, 2 * kContextBlock, 2 * kContextBlock + 1}) {
      FeedSlot(driver, 0, std::span(text).subspan(since, tokens - since), {5, 1});
      const std::vector<std::byte> state = PackedState(driver, 0, tokens);
      std::vector<std::byte> together(state.size());
      const auto copy = [&](const std::vector<std::byte>& from, std::vector<ByteRange> source,
                            const std::vector<ByteRange>& target) {
        ASSERT_EQ(source.size(), target.size());
        for (size_t i = 0; i < source.size(); ++i) {
          ASSERT_EQ(source[i].end - source[i].begin, target[i].end - target[i].begin);
          std::copy(from.begin() + source[i].begin, from.begin() + source[i].end,
                    together.begin() + target[i].begin);
        }
      };
      copy(before, AppendedBytes(layout, since, 0, since), AppendedBytes(layout, tokens, 0, since));
      for (const std::vector<ByteRange>& ranges :
           {AppendedBytes(layout, tokens, since, tokens), RewrittenBytes(layout, tokens)}) {
        copy(state, ranges, ranges);
      }
      EXPECT_TRUE(together == state) << "from " << since << " to " << tokens;
      before = state;
      since = tokens;
    }
  });
}

TEST_P(ConformanceTest, TheCodecShowsNothingOfAFormerOwner) {
  ForEachNetwork([&](ModelDriver& driver) {
    const auto bytes = static_cast<size_t>(driver.model().state_layout().slab_bytes());
    std::vector<CanonicalState> states;
    for (const std::byte poison : {std::byte{0xff}, std::byte{0x11}}) {
      driver.WriteSlab(0, std::vector<std::byte>(bytes, poison), 0);
      driver.Reset(0);
      states.push_back(Decode(driver, 0, 0));
      FeedSlot(driver, 0, Text(driver, 1, /*seed=*/8));  // leaves routed memories unwritten
      states.push_back(Decode(driver, 0, 1));
    }
    EXPECT_TRUE(SameTensors(states[0], states[2])) << "a session that was fed nothing";
    EXPECT_TRUE(SameTensors(states[1], states[3])) << "a session that was fed one token";
  });
}

// Into a slab with a former owner's bytes, and on as if nothing had been.
TEST_P(ConformanceTest, AStateGoesThroughTheCodecAndOn) {
  ForEachNetwork([&](ModelDriver& driver) {
    const std::vector<int32_t> text = Text(driver, 30, /*seed=*/9), rest = Text(driver, 20, 10);
    FeedSlot(driver, 0, text, {1});
    const std::vector<std::byte> before = driver.ReadSlab(0);
    const CanonicalState state = Decode(driver, 0, 30);
    EXPECT_EQ(driver.ReadSlab(0), before) << "a live session is never settled";
    const auto bytes = static_cast<size_t>(driver.model().state_layout().slab_bytes());
    // Its position, too, becomes that of the state.
    driver.WriteSlab(1, std::vector<std::byte>(bytes, std::byte{0xff}), state.tokens);
    ASSERT_EQ(EncodeState(driver.backend(), driver.model(), state, driver.Slab(1)),
              absl::OkStatus());
    EXPECT_TRUE(SameTensors(Decode(driver, 1, 30), state));
    const std::vector<double> got = FeedSlot(driver, 1, rest, {1, 3});
    EXPECT_THAT(got, IsTheSame(FeedSlot(driver, 0, rest, {1, 3})));
  });
}

// The file that a session's export is, read and checked as an import does it: then it goes on in
// another slab, as the original does.
TEST_P(ConformanceTest, ASessionGoesThroughAFileAndOn) {
  ForEachNetwork([&](ModelDriver& driver) {
    const SessionModel own =
        SessionModel::Of(driver.model().info(), DType::kF32, /*tokenizer=*/nullptr);
    const std::vector<int32_t> all = Text(driver, 110, /*seed=*/13);
    for (const int at : {0, 1, 33, 90}) {  // 90: context that fills more than a block
      const auto text = std::span(all).first(at), rest = std::span(all).subspan(at, 20);
      driver.Reset(0);
      if (at > 0) FeedSlot(driver, 0, text, {1, 7});
      auto copy = std::make_unique<StateCopy>(driver.model());
      ASSERT_EQ(copy->Read(driver.backend(), driver.Slab(0), at), absl::OkStatus());
      SessionFileSource source({.model = own, .fed_tokens = at}, std::move(copy));
      std::string file;
      for (std::string piece = source.Next(); !piece.empty(); piece = source.Next()) file += piece;
      const int64_t most =
          LargestSessionFile(driver.model().state_layout(), MostTokens(driver.model().info()));
      const auto import = SessionImport::Read(driver.model(), own, most, file);
      ASSERT_EQ(import.status(), absl::OkStatus());
      if (bit_exact()) {
        EXPECT_EQ(import->state->rounded_tensors(), 0);
      }
      const auto bytes = static_cast<size_t>(driver.model().state_layout().slab_bytes());
      // Its position, too, becomes that of the state.
      driver.WriteSlab(1, std::vector<std::byte>(bytes, std::byte{0xff}), at);
      ASSERT_EQ(import->state->Write(driver.backend(), driver.Slab(1)), absl::OkStatus());
      EXPECT_THAT(FeedSlot(driver, 1, rest, {1, 3}), IsTheSame(FeedSlot(driver, 0, rest, {1, 3})))
          << "at " << at;
    }
  });
}

TEST_P(ConformanceTest, StatesThatAreNotTheModelsAreRefusedByName) {
  ForEachNetwork([&](ModelDriver& driver) {
    FeedSlot(driver, 0, Text(driver, 5, /*seed=*/11));
    const CanonicalState state = Decode(driver, 0, 5);
    ASSERT_FALSE(state.tensors.empty());
    const std::string name = state.tensors.back().name;
    const auto refusal = [&](const CanonicalState& bad) {
      const std::vector<std::byte> before = driver.ReadSlab(0);
      const absl::Status status =
          EncodeState(driver.backend(), driver.model(), bad, driver.Slab(0));
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_EQ(driver.ReadSlab(0), before);
      return std::string(status.message());
    };
    CanonicalState bad = state;
    bad.tensors.pop_back();
    EXPECT_THAT(refusal(bad), HasSubstr(absl::StrCat("\"", name, "\" is missing")));
    bad = state;
    bad.tensors.back().name = "layers.99.other";
    EXPECT_THAT(refusal(bad), HasSubstr(name));
    bad = state;
    bad.tensors.push_back({.name = "layers.99.other"});
    EXPECT_THAT(refusal(bad), HasSubstr("\"layers.99.other\" is none of this model's"));
    bad = state;
    ++bad.tensors.back().shape.dims[0];
    EXPECT_THAT(refusal(bad), HasSubstr(absl::StrCat("\"", name, "\" has shape")));
    bad = state;
    bad.tensors.back().bytes.pop_back();
    EXPECT_THAT(refusal(bad), HasSubstr("bytes, expected"));
    bad = state;
    bad.tensors.back().dtype = DType::kU8;
    EXPECT_THAT(refusal(bad), HasSubstr("is u8, expected"));
    bad = state;
    bad.tensors.push_back(state.tensors.front());
    EXPECT_THAT(refusal(bad), HasSubstr("is there twice"));
  });
}

// Those that no step cuts are in classifier_conformance_test.cc.
INSTANTIATE_TEST_SUITE_P(All, ConformanceTest,
                         testing::Combine(testing::ValuesIn(ArchitecturesThat(/*classify=*/false)),
                                          testing::ValuesIn(OutermostBackends())),
                         ConformanceName);

}  // namespace
}  // namespace mneme
