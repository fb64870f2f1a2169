#include "tests/support/fake_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "kernels/reference/reference_backend.h"

namespace mneme {
namespace {

uint64_t Mix(uint64_t x) {  // the finalizer of splitmix64
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

void FakeMemory::Feed(int32_t token) {
  eager = Mix(eager * 31 + static_cast<uint64_t>(token) + 1);
  lazy = Mix(lazy ^ (static_cast<uint64_t>(token) << 32 | 5));
}

std::vector<double> FakeMemory::Logits(int vocab, double first_token_bonus) const {
  std::vector<double> logits(vocab);
  for (int v = 0; v < vocab; ++v) {
    const uint64_t bits = Mix(eager ^ Mix(lazy + static_cast<uint64_t>(v)));
    // 24 bits, so that f32 holds them exactly.
    logits[v] = static_cast<double>(bits >> 40) * 0x1p-21 - 4;
  }
  logits[0] += first_token_bonus;
  return logits;
}

FakeModel::FakeModel(FakeModelOptions options) : options_(std::move(options)) {
  info_.name = "fake";
  info_.architecture = "fake";
  info_.vocab = options_.vocab;
  info_.model_dim = 1;
  info_.layers = 1;
  info_.segment = options_.segment;
  eager_ = layout_.Add(
      {.name = "eager", .dtype = DType::kI64, .shape = {2}, .initial = StateInitial::kEager});
  written_ = layout_.Add({.name = "written", .dtype = DType::kU8, .shape = {1}});
  lazy_ = layout_.Add({.name = "lazy",
                       .dtype = DType::kI64,
                       .shape = {1},
                       .guard = StateGuard::kFlags,
                       .flags = written_.index});
  if (options_.phases > 0) layout_.AddPhase(options_.phases);
  if (options_.max_context > 0) {
    tokens_ = layout_.Add({.name = "tokens",
                           .dtype = DType::kI32,
                           .shape = {1, options_.max_context, 1},
                           .guard = StateGuard::kFirstRows,
                           .role = StateRole::kAppendOnly});
  }
}

absl::Status FakeModel::InitState(Backend& backend, std::byte* slab) const {
  const FakeMemory initial;
  backend.CopyFromHost(slab + eager_.offset, &initial.eager, sizeof(initial.eager));
  return absl::OkStatus();
}

void FakeModel::Forward(ForwardContext& ctx, const TensorView& logit_tokens,
                        const TensorView& logits) const {
  const StepBatch& batch = ctx.batch;
  const auto* ids = batch.token_ids.as<int32_t>();
  const auto* offsets = batch.row_offsets.as<int32_t>();
  const auto* slots = batch.slots.as<int32_t>();
  CHECK(batch.positions.dtype == DType::kI64 && batch.positions.shape == Shape{batch.rows});
  const auto* positions = batch.positions.as<int64_t>();
  const auto* wanted = logit_tokens.as<int32_t>();
  const auto wanted_count = static_cast<int>(logit_tokens.shape[0]);
  const int vocab = options_.vocab;
  int rows = 0, tokens = 0;  // without padding
  int64_t crossings = 0;
  for (int row = 0; row < batch.rows; ++row) {
    if (slots[row] < 0) continue;
    ++rows;
    tokens += offsets[row + 1] - offsets[row];
    if (options_.segment == 0) continue;
    const int64_t end = positions[row] + offsets[row + 1] - offsets[row];
    crossings += (end - 1) / options_.segment -
                 std::max<int64_t>(0, (positions[row] - 1) / options_.segment);
  }
  if (options_.on_crossings && crossings > 0) options_.on_crossings(static_cast<int>(crossings));
  if (options_.on_step && rows > 0) options_.on_step(rows, tokens);
  if (options_.on_logits) options_.on_logits(static_cast<int>(logits.shape[0]));

  std::set<int32_t> seen;
  int next = 0;  // of the wanted logits, which come in order
  for (int row = 0; row < batch.rows; ++row) {
    if (slots[row] < 0) {
      while (next < wanted_count && wanted[next] < offsets[row + 1]) ++next;
      continue;
    }
    CHECK(seen.insert(slots[row]).second) << "slot " << slots[row] << " is in two rows";
    CHECK_LT(offsets[row], offsets[row + 1]);
    auto& fed = *ctx.State(eager_).as<int64_t>(slots[row], 1);
    CHECK_EQ(positions[row], fed) << "position of slot " << slots[row];
    fed += offsets[row + 1] - offsets[row];
    std::byte* eager = ctx.State(eager_).At(slots[row], 0);
    std::byte* lazy = ctx.State(lazy_).At(slots[row], 0);
    std::byte* written = ctx.State(written_).At(slots[row], 0);
    FakeMemory memory;
    std::memcpy(&memory.eager, eager, sizeof(memory.eager));
    if (*written != std::byte{0}) std::memcpy(&memory.lazy, lazy, sizeof(memory.lazy));
    if (options_.max_context > 0) {
      CHECK_LE(fed, options_.max_context);
      const ContextView kept = ctx.Context(tokens_);
      FakeMemory remembered;
      for (int64_t p = 0; p < positions[row]; ++p) {
        remembered.Feed(*reinterpret_cast<const int32_t*>(kept.At(slots[row], p)));
      }
      CHECK(remembered == memory) << "rows of slot " << slots[row];
      for (int t = offsets[row]; t < offsets[row + 1]; ++t) {
        const int64_t position = positions[row] + t - offsets[row];
        std::memcpy(kept.At(slots[row], position), &ids[t], sizeof(ids[t]));
      }
    }
    for (int t = offsets[row]; t < offsets[row + 1]; ++t) {
      CHECK(ids[t] >= 0 && ids[t] < vocab) << "token " << ids[t];
      memory.Feed(ids[t]);
      for (; next < wanted_count && wanted[next] == t; ++next) {
        std::vector<double> values = memory.Logits(vocab, options_.first_token_bonus);
        if (ids[t] == options_.poison_token) values.assign(values.size(), NAN);
        if (ids[t] == options_.narrow_token) {
          std::fill(values.begin() + 1, values.end(), -INFINITY);
        }
        for (int v = 0; v < vocab; ++v) {
          const int64_t at = int64_t{next} * vocab + v;
          if (logits.dtype == DType::kF64) {
            logits.as<double>()[at] = values[v];
          } else {
            logits.as<float>()[at] = static_cast<float>(values[v]);
          }
        }
      }
    }
    std::memcpy(eager, &memory.eager, sizeof(memory.eager));
    std::memcpy(lazy, &memory.lazy, sizeof(memory.lazy));
    *written = std::byte{1};
  }
  CHECK_EQ(next, wanted_count) << "logits are wanted in order";
}

int64_t FakeModel::WorkspaceBytes(int /*tokens*/, int /*rows*/, int /*logit_rows*/) const {
  return 64;
}

FaultyBackend::FaultyBackend() : inner_(MakeReferenceBackend({})) {}

absl::StatusOr<void*> FaultyBackend::Allocate(int64_t bytes) {
  if (allocations_left_ == 0) {
    allocations_left_ = -1;
    return absl::ResourceExhaustedError(absl::StrCat("told to fail, at ", bytes, " bytes"));
  }
  if (allocations_left_ > 0) --allocations_left_;
  absl::StatusOr<void*> data = inner_->Allocate(bytes);
  if (data.ok()) {
    ++live_allocations_;
    // Nobody may rely on fresh memory being zero.
    std::memset(*data, 0xA5, bytes);
  }
  return data;
}

void FaultyBackend::Free(void* data) {
  --live_allocations_;
  inner_->Free(data);
}

absl::StatusOr<std::unique_ptr<Backend::Graph>> FaultyBackend::Capture(std::function<void()> work) {
  class Closure final : public Graph {
   public:
    Closure(std::function<void()> work, int64_t& replays)
        : work_(std::move(work)), replays_(replays) {}
    void Replay() override {
      ++replays_;
      work_();
    }
    int64_t nodes() const override { return 1; }

   private:
    const std::function<void()> work_;
    int64_t& replays_;
  };
  return std::make_unique<Closure>(std::move(work), replays_);
}

void FaultyBackend::LateKernels::BeginSample(const SampleArgs& args) {
  CHECK_LT(in_flight_.size(), 2u);
  Draw& draw = in_flight_.emplace_back();
  draw.args = args;
  const auto take = [](const auto& wanted, auto& own, auto rubbish) {
    own.resize(wanted.size());
    std::fill(wanted.begin(), wanted.end(), rubbish);
  };
  take(args.tokens, draw.tokens, -77);
  take(args.logprobs, draw.logprobs, -77.0f);
  take(args.top_tokens, draw.top_tokens, -77);
  take(args.top_logprobs, draw.top_logprobs, -77.0f);
  SampleArgs own = args;
  own.tokens = draw.tokens;
  own.logprobs = draw.logprobs;
  own.top_tokens = draw.top_tokens;
  own.top_logprobs = draw.top_logprobs;
  Sample(own);
}

void FaultyBackend::LateKernels::FinishSample() {
  CHECK(!in_flight_.empty());
  const Draw& draw = in_flight_.front();
  std::copy(draw.tokens.begin(), draw.tokens.end(), draw.args.tokens.begin());
  std::copy(draw.logprobs.begin(), draw.logprobs.end(), draw.args.logprobs.begin());
  std::copy(draw.top_tokens.begin(), draw.top_tokens.end(), draw.args.top_tokens.begin());
  std::copy(draw.top_logprobs.begin(), draw.top_logprobs.end(), draw.args.top_logprobs.begin());
  in_flight_.pop_front();
}

FaultyBackend::HeldTransfer::HeldTransfer(FaultyBackend& backend,
                                          std::span<const TransferPiece> pieces,
                                          std::function<void()> on_done)
    : backend_(backend), pieces_(pieces.begin(), pieces.end()), on_done_(std::move(on_done)) {
  for (const TransferPiece& piece : pieces_) {
    std::memset(piece.dst, 0xa5, static_cast<size_t>(piece.bytes));
  }
  backend_.held_.push_back(this);
}

FaultyBackend::HeldTransfer::~HeldTransfer() { Finish(); }

void FaultyBackend::HeldTransfer::Finish() {
  if (std::exchange(done_, true)) return;
  for (const TransferPiece& piece : pieces_) {
    std::memcpy(piece.dst, piece.src, static_cast<size_t>(piece.bytes));
  }
  std::erase(backend_.held_, this);
  if (on_done_ != nullptr) on_done_();
}

std::unique_ptr<Transfer> FaultyBackend::BeginTransfer(std::span<const TransferPiece> pieces,
                                                       TransferDirection direction,
                                                       std::function<void()> on_done) {
  if (holds_transfers_) {
    return std::make_unique<HeldTransfer>(*this, pieces, std::move(on_done));
  }
  return Backend::BeginTransfer(pieces, direction, std::move(on_done));
}

void FaultyBackend::FinishTransfers() {
  holds_transfers_ = false;
  while (!held_.empty()) held_.front()->Finish();
}

absl::Status FaultyBackend::Synchronize() {
  const absl::Status failure = std::exchange(failure_, absl::OkStatus());
  return failure.ok() ? inner_->Synchronize() : failure;
}

}  // namespace mneme
