// Documents of a call on their way through the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/token_stream.h"
#include "server/security/quota.h"

namespace mneme {

struct ClassifiedDocument {
  std::vector<float> logits;
  std::vector<double> scores;  // ClassScores
  size_t label = 0;            // of the largest one
  int64_t tokens = 0;
  bool memory_evicted = false;  // Usage's
};

struct ClassifiedBatch {
  std::vector<ClassifiedDocument> documents;
  Usage usage;  // of all together
};

// Submits as many documents at once as a step has rows; the others follow as these end, so that a
// long list takes no more of the queue than a short one. Thread-safe; keeps itself alive until the
// last one is there, one has failed, or Cancel(). The others are cancelled then.
class ClassifyBatch : public std::enable_shared_from_this<ClassifyBatch> {
 public:
  // Called once, from any thread, perhaps before Start() returns. An error of one document of
  // several names it.
  using Done = std::function<void(absl::StatusOr<ClassifiedBatch>)>;
  // Engine::Submit refused a document with this; called before Done.
  using Refused = std::function<void(const absl::Status&)>;

  // `engine` outlives it. `permit` is settled at the end.
  static std::shared_ptr<ClassifyBatch> Start(Engine& engine, std::vector<Request> requests,
                                              StreamPermit permit, Refused refused, Done done);

  void Cancel() { Finish(absl::CancelledError("the client cancelled the call")); }

 private:
  using Stream = std::shared_ptr<TokenStream>;

  ClassifyBatch(Engine& engine, std::vector<Request> requests, StreamPermit permit, Refused refused,
                Done done);

  // Submits the next document, if one is left.
  void SubmitNext() ABSL_LOCKS_EXCLUDED(mu_);
  // Reads what there is of a document.
  void Read(size_t document, const Stream& stream) ABSL_LOCKS_EXCLUDED(mu_);
  void Take(size_t document, const TokenEvent& last) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status ErrorOf(size_t document, const absl::Status& error) const;
  void Finish(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

  Engine& engine_;
  const StreamPermit permit_;
  const Refused refused_;
  const size_t count_;

  absl::Mutex mu_;
  std::shared_ptr<ClassifyBatch> self_ ABSL_GUARDED_BY(mu_);
  std::vector<Request> requests_ ABSL_GUARDED_BY(mu_);
  // Dropping one waits for its callback, which may be waiting for the lock: they are only ever
  // moved out under it.
  std::vector<Stream> streams_ ABSL_GUARDED_BY(mu_);
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;
  size_t ended_ ABSL_GUARDED_BY(mu_) = 0;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  ClassifiedBatch batch_ ABSL_GUARDED_BY(mu_);
  Done done_ ABSL_GUARDED_BY(mu_);
};

}  // namespace mneme
