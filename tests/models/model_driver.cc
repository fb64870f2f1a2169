#include "tests/models/model_driver.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/memory/memory.h"
#include "base/log.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/sessions/host_states.h"

namespace mneme {
namespace {

TensorView First(const Tensor& tensor, int64_t n) {
  TensorView view = tensor.view();
  view.shape.dims[0] = n;
  return view;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelDriver>> ModelDriver::Create(std::unique_ptr<Backend> backend,
                                                                 std::unique_ptr<Model> model,
                                                                 const Limits& limits) {
  auto driver = absl::WrapUnique(new ModelDriver(std::move(backend), std::move(model), limits));
  Backend& device = *driver->backend_;
  const Model& network = *driver->model_;
  MNEME_ASSIGN_OR_RETURN(driver->pool_, StatePool::Create(device, network, limits.slots));
  MNEME_ASSIGN_OR_RETURN(
      driver->workspace_,
      Workspace::Create(
          device, network.WorkspaceBytes(limits.max_tokens, limits.max_rows, limits.max_tokens)));
  const auto indices = [&](Tensor& tensor, int64_t n, DType dtype = DType::kI32) -> absl::Status {
    MNEME_ASSIGN_OR_RETURN(tensor, Tensor::Allocate(device, dtype, {n}));
    return absl::OkStatus();
  };
  MNEME_RETURN_IF_ERROR(indices(driver->token_ids_, limits.max_tokens));
  MNEME_RETURN_IF_ERROR(indices(driver->token_types_, limits.max_tokens));
  MNEME_RETURN_IF_ERROR(indices(driver->row_offsets_, limits.max_rows + 1));
  MNEME_RETURN_IF_ERROR(indices(driver->slots_, limits.max_rows));
  MNEME_RETURN_IF_ERROR(indices(driver->row_positions_, limits.max_rows, DType::kI64));
  MNEME_RETURN_IF_ERROR(indices(driver->logit_tokens_, limits.max_tokens));
  MNEME_ASSIGN_OR_RETURN(driver->logits_,
                         Tensor::Allocate(device, device.activation_dtype(),
                                          {limits.max_tokens, network.info().outputs()}));

  StatePool& pool = *driver->pool_;
  driver->decode_ = network.CompileDecode(device, {pool.slabs(), pool.slab_bytes()});
  std::vector<std::byte> noise(static_cast<size_t>(pool.slab_bytes()));
  for (int slot = 0; slot < limits.slots; ++slot) {
    for (size_t i = 0; i < noise.size(); i += 16) {
      const PhiloxCounter bits = RandomBits(/*seed=*/1, static_cast<uint64_t>(slot), i);
      std::copy_n(reinterpret_cast<const std::byte*>(bits.data()),
                  std::min<size_t>(16, noise.size() - i), noise.data() + i);
    }
    driver->WriteSlab(slot, noise, /*position=*/0);
    CHECK_EQ(pool.Acquire().value_or(-1), slot);
  }
  MNEME_RETURN_IF_ERROR(device.Synchronize());
  return driver;
}

std::byte* ModelDriver::Slab(int slot) const {
  CHECK(slot >= 0 && slot < limits_.slots) << "slot " << slot;
  return pool_->slabs() + slot * pool_->slab_bytes();
}

absl::StatusOr<std::vector<double>> ModelDriver::Step(std::span<const Row> rows) {
  size_t tokens = 0;
  for (const Row& row : rows) tokens += row.tokens.size();
  std::vector<int32_t> all(tokens);
  std::iota(all.begin(), all.end(), 0);
  return Step(rows, all);
}

absl::StatusOr<std::vector<double>> ModelDriver::Step(std::span<const Row> rows,
                                                      std::span<const int32_t> wanted) {
  std::vector<int32_t> ids, types, offsets = {0}, slots;
  std::vector<int64_t> positions;
  int longest = 0;
  int64_t inserted = 0;
  int crossings = 0, longer = 0;
  const int segment = model_->info().segment;
  for (const Row& row : rows) {
    ids.insert(ids.end(), row.tokens.begin(), row.tokens.end());
    types.insert(types.end(), row.types.begin(), row.types.end());
    types.resize(ids.size(), 0);
    offsets.push_back(static_cast<int32_t>(ids.size()));
    slots.push_back(row.slot);
    positions.push_back(row.slot < 0 ? 0 : position(row.slot));
    if (row.slot >= 0) {
      inserted += model_->info().inserted.Between(
          positions.back(), positions.back() + static_cast<int64_t>(row.tokens.size()));
      crossings += segment > 0 && positions.back() > 0 && positions.back() % segment == 0 ? 1 : 0;
    }
    if (row.slot >= 0) positions_[row.slot] += static_cast<int64_t>(row.tokens.size());
    longest = std::max(longest, static_cast<int>(row.tokens.size()));
    longer += row.tokens.size() > 1 ? 1 : 0;
  }
  const auto upload = [this](const Tensor& tensor, const auto& values) {
    CHECK_LE(static_cast<int64_t>(values.size()), tensor.view().shape[0]) << "step beyond limits";
    const TensorView view = First(tensor, static_cast<int64_t>(values.size()));
    backend_->CopyFromHost(view.data, values.data(), view.bytes());
    return view;
  };
  const StepBatch batch{.tokens = static_cast<int>(ids.size()),
                        .rows = static_cast<int>(rows.size()),
                        .longest_row = longest,
                        .longer_rows = steps_ % 2 == 0 ? 0 : longer,
                        .inserted = ++steps_ % 2 == 0 ? static_cast<int>(inserted) : -1,
                        .crossings = segment > 0 && steps_ % 2 == 0 ? crossings : -1,
                        .token_ids = upload(token_ids_, ids),
                        .token_types = upload(token_types_, types),
                        .row_offsets = upload(row_offsets_, offsets),
                        .slots = upload(slots_, slots),
                        .positions = upload(row_positions_, positions)};
  ForwardContext ctx{.backend = *backend_,
                     .workspace = workspace_,
                     .batch = batch,
                     .slabs = {pool_->slabs(), pool_->slab_bytes()},
                     .contexts = pool_->contexts(),
                     .routing = routing_,
                     .observer = observer_,
                     .decode = &decode_};
  const TensorView logits = First(logits_, static_cast<int64_t>(wanted.size()));
  model_->Forward(ctx, upload(logit_tokens_, wanted), logits);

  std::vector<double> result(static_cast<size_t>(logits.shape.elements()));
  if (logits.dtype == DType::kF64) {
    backend_->CopyToHost(result.data(), logits.data, logits.bytes());
  } else {
    std::vector<float> narrow(result.size());
    backend_->CopyToHost(narrow.data(), logits.data, logits.bytes());
    std::copy(narrow.begin(), narrow.end(), result.begin());
  }
  MNEME_RETURN_IF_ERROR(backend_->Synchronize());
  return result;
}

absl::Status ModelDriver::Feed(int slot, std::span<const int32_t> tokens,
                               std::span<const int> chunks,
                               const std::function<absl::Status(std::span<const double>)>& sink) {
  size_t fed = 0;
  for (size_t i = 0; fed < tokens.size(); ++i) {
    size_t size = static_cast<size_t>(limits_.max_tokens);
    if (!chunks.empty()) size = std::min(size, static_cast<size_t>(chunks[i % chunks.size()]));
    if (const Classes& classes = model_->info().classes; classes.exist()) {
      size =
          std::min(size, static_cast<size_t>(classes.segment - position(slot) % classes.segment));
    }
    size = std::min(size, tokens.size() - fed);
    const Row row{slot, tokens.subspan(fed, size)};
    MNEME_ASSIGN_OR_RETURN(const std::vector<double> logits, Step({&row, 1}));
    if (sink) MNEME_RETURN_IF_ERROR(sink(logits));
    fed += size;
  }
  return absl::OkStatus();
}

void ModelDriver::Reset(int slot) {
  pool_->Release(slot);
  CHECK_EQ(pool_->Acquire().value_or(-1), slot) << "what is given back last is given out first";
  positions_.at(slot) = 0;
}

void ModelDriver::Fork(int from, int to) {
  pool_->Copy(from, to, position(from));
  positions_.at(to) = position(from);
}

absl::Status ModelDriver::Park(int from, int to) {
  const StateLayout& layout = model_->state_layout();
  MNEME_ASSIGN_OR_RETURN(
      const std::unique_ptr<HostStates> host,
      HostStates::Create(*backend_, *pool_, 3 * layout.slab_bytes() + (int64_t{1} << 16),
                         layout.max_tokens().value_or(1)));
  const auto lost = static_cast<size_t>(layout.slab_bytes());
  const int64_t tokens = positions_.at(static_cast<size_t>(from));
  const int state = host->Add(tokens);
  host->Save(from, state, nullptr).reset();
  for (const int slot : {from, to}) {
    WriteSlab(slot, std::vector<std::byte>(lost, std::byte{0xff}), tokens);
  }
  host->Load(state, to, nullptr).reset();
  return backend_->Synchronize();
}

void ModelDriver::Settle(int slot) {
  const TensorView slots = First(slots_, 1);
  backend_->CopyFromHost(slots.data, &slot, sizeof(slot));
  const StepBatch no_batch;
  ForwardContext ctx{.backend = *backend_,
                     .workspace = workspace_,
                     .batch = no_batch,
                     .slabs = {pool_->slabs(), pool_->slab_bytes()}};
  model_->Settle(ctx, slots);
  CHECK_OK(backend_->Synchronize());
}

std::vector<std::byte> ModelDriver::ReadSlab(int slot) {
  std::vector<std::byte> bytes(static_cast<size_t>(model_->state_layout().slab_bytes()));
  backend_->CopyToHost(bytes.data(), Slab(slot), static_cast<int64_t>(bytes.size()));
  return bytes;
}

void ModelDriver::WriteSlab(int slot, std::span<const std::byte> bytes, int64_t position) {
  backend_->CopyFromHost(Slab(slot), bytes.data(), static_cast<int64_t>(bytes.size()));
  positions_.at(slot) = position;
}

}  // namespace mneme
