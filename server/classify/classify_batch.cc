#include "server/classify/classify_batch.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/status_payload.h"

namespace mneme {

std::shared_ptr<ClassifyBatch> ClassifyBatch::Start(Engine& engine, std::vector<Request> requests,
                                                    StreamPermit permit, Refused refused,
                                                    Done done) {
  std::shared_ptr<ClassifyBatch> batch = absl::WrapUnique(new ClassifyBatch(
      engine, std::move(requests), std::move(permit), std::move(refused), std::move(done)));
  {
    absl::MutexLock lock(&batch->mu_);
    batch->self_ = batch;
  }
  const int at_once = std::max(1, engine.options().max_rows);
  for (int i = 0; i < at_once; ++i) batch->SubmitNext();
  return batch;
}

ClassifyBatch::ClassifyBatch(Engine& engine, std::vector<Request> requests, StreamPermit permit,
                             Refused refused, Done done)
    : engine_(engine),
      permit_(std::move(permit)),
      refused_(std::move(refused)),
      count_(requests.size()),
      requests_(std::move(requests)),
      streams_(count_),
      done_(std::move(done)) {
  batch_.documents.resize(count_);
}

void ClassifyBatch::SubmitNext() {
  size_t document = 0;
  Request request;
  {
    absl::MutexLock lock(&mu_);
    if (finished_ || next_ == count_) return;
    document = next_++;
    request = std::move(requests_[document]);
  }
  absl::StatusOr<Stream> submitted = engine_.Submit(std::move(request));
  if (!submitted.ok()) {
    refused_(submitted.status());
    return Finish(ErrorOf(document, submitted.status()));
  }
  const Stream stream = *std::move(submitted);
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    streams_[document] = stream;
  }
  stream->SetReadyCallback([weak = weak_from_this(), document] {
    const std::shared_ptr<ClassifyBatch> batch = weak.lock();
    if (batch == nullptr) return;
    Stream own;
    {
      absl::MutexLock lock(&batch->mu_);
      own = batch->streams_[document];
    }
    if (own != nullptr) batch->Read(document, own);
  });
  Read(document, stream);
}

void ClassifyBatch::Read(size_t document, const Stream& stream) {
  while (std::optional<TokenEvent> event = stream->TryNext()) {
    if (event->is_last) return Take(document, *event);
  }
}

void ClassifyBatch::Take(size_t document, const TokenEvent& last) {
  if (!last.status.ok()) return Finish(ErrorOf(document, last.status));
  Stream ended;
  bool is_last = false;
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    ended = std::exchange(streams_[document], nullptr);
    ClassifiedDocument& result = batch_.documents[document];
    result.logits = last.class_logits;
    result.scores = ClassScores(engine_.model_info().classes.scores, result.logits);
    result.label = static_cast<size_t>(
        std::max_element(result.scores.begin(), result.scores.end()) - result.scores.begin());
    result.tokens = last.usage.prompt_tokens;
    batch_.usage.prompt_tokens += last.usage.prompt_tokens;
    batch_.usage.fed_tokens += last.usage.fed_tokens;
    result.memory_evicted = last.usage.memory_evicted;
    batch_.usage.memory_evicted = batch_.usage.memory_evicted || result.memory_evicted;
    is_last = ++ended_ == count_;
  }
  if (is_last) return Finish(absl::OkStatus());
  SubmitNext();
}

absl::Status ClassifyBatch::ErrorOf(size_t document, const absl::Status& error) const {
  if (count_ == 1) return error;
  absl::Status named(error.code(), absl::StrCat("documents[", document, "]: ", error.message()));
  error.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { named.SetPayload(url, payload); });
  return named;
}

void ClassifyBatch::Finish(const absl::Status& status) {
  std::shared_ptr<ClassifyBatch> self;
  std::vector<Stream> streams;
  ClassifiedBatch batch;
  Done done;
  {
    absl::MutexLock lock(&mu_);
    if (finished_) return;
    finished_ = true;
    self = std::exchange(self_, nullptr);
    streams = std::exchange(streams_, std::vector<Stream>(count_));
    batch = std::move(batch_);
    done = std::move(done_);
  }
  streams.clear();
  if (permit_ != nullptr) permit_->Settle(batch.usage);
  if (!status.ok()) return done(status);
  done(std::move(batch));
}

}  // namespace mneme
