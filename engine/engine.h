// The façade of everything below RPC: give it a loaded model, submit requests, read their streams.
//
// Threads: all public methods may be called from any thread. One loop thread, started by Create,
// owns sessions, scheduler, slabs and the backend; it is reached through a bounded mailbox only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/capacity_plan.h"
#include "engine/engine_stats.h"
#include "engine/loop_watch.h"
#include "engine/request.h"
#include "engine/request_report.h"
#include "engine/session_page.h"
#include "engine/sessions/session_file.h"
#include "engine/token_stream.h"
#include "kernels/backend.h"
#include "models/engrams/engram_views.h"
#include "models/model.h"
#include "store/file_system.h"
#include "store/session_store.h"
#include "tokenizers/tokenizer.h"

namespace mneme {

struct EngineOptions {
  int64_t state_memory_bytes = 0;  // budget of all slabs; 0: what is left of memory after a reserve
  int max_sessions = 0;            // upper bound on slabs; 0: as many as fit
  // Memory of the host that idle sessions are parked in when others need their slabs; 0: they keep
  // them. All of it is taken at the start.
  int64_t host_state_memory_bytes = 0;
  // Memory of the host for states behind the beginnings of prompts, which sessions start from whose
  // prompts begin alike (PrefixCache); 0: none. All of it is taken at the start; the tokens of
  // prompts take up to a sixteenth of it more.
  int64_t prefix_cache_memory_bytes = 0;
  bool prefix_cache_shared = false;    // by all owners, rather than by the requests of one
  int prefix_cache_least_tokens = 32;  // of a beginning that is kept

  // --- Where there is a store ---
  Durability durability = Durability::kTurn;  // of sessions whose requests do not say
  // A session that was fed so many tokens since its last snapshot gets another one when it is idle:
  // as many, and some more, are fed again when it comes back after a crash. 0: none but those of
  // sessions that are parked or left at the end.
  int64_t snapshot_tokens = 4096;
  // Unless that is 0, a session gets one at the end of each turn, too, as long as those of all
  // sessions take so many bytes a second (SnapshotBudget): what an edit of an earlier message feeds
  // again begins there. 0: none.
  int64_t turn_snapshot_bytes_per_second = 0;
  // Sessions that nobody used for so long are deleted. default_session_ttl only parks them.
  absl::Duration session_retention = absl::InfiniteDuration();
  // Checkpoints of a session, and of all sessions of an owner; 0: no limit.
  int max_checkpoints = 0;
  int max_checkpoints_per_owner = 0;

  bool graphs = true;  // replay decode steps as graphs where the device can
  // On a device that works on its own, a decode step of the same rows begins before the host has
  // seen the tokens of the one before it, where stop tokens and lengths alone decide who goes on.
  bool async_scheduling = true;
  int max_rows = 256;                // rows (sequences) in one step; more requests wait
  int max_tokens_per_step = 512;     // of all rows of a step; fewer than max_rows lowers that
  int max_logit_rows_per_step = 64;  // prompt positions scored per step (log-probabilities)
  int max_queued_requests = 1024;    // waiting to run; more: RESOURCE_EXHAUSTED
  int max_request_tokens = 0;        // limit on prompt + max_tokens of one request; 0: none
  int max_prompt_tokens = 0;         // limit on the prompt of one request; 0: none
  int stream_capacity_events = 256;  // per request; full: the request pauses, its slab stays
  // Tokens may come this many times later because prompts are read beside them; the prompts then
  // have (max_decode_slowdown - 1) / max_decode_slowdown of the time. 1: no limit; 0: the backend's
  // preferred_decode_slowdown().
  double max_decode_slowdown = 0;
  absl::Duration default_session_ttl = absl::Minutes(30);  // infinite: sessions do not expire
  int history_tokens = 1024;  // tokens that penalties look back on, per session
  int max_idempotency_keys = 4096;
  int64_t idempotency_record_bytes = int64_t{64} << 20;  // of all answers kept for replay
  bool trace_steps = false;                              // print every StepPlan
  RequestReporter on_request_end;                        // may be empty
  // Upper bound on the named sessions of an owner; 0, or no function: none. Asked by the loop
  // whenever a session is about to be made, so that the answer may change. Must be quick.
  std::function<int(const std::string& owner)> owner_session_limit;
};

struct ImportedSession {
  SessionInfo session;
  std::string file_state_dtype;  // of the server that the session comes from
  std::string state_dtype;
  // Tensors of the state that lost something, as this server's dtype does not hold their numbers.
  int rounded_tensors = 0;
  // Engrams that the session had room for there, and has here; 0: its model makes none.
  int file_engram_capacity = 0, engram_capacity = 0;
};

struct ForgottenSegments : ForgottenEngrams {
  std::vector<std::string> checkpoints;  // that are gone with them, by name
};

// Where sessions are kept when the process ends.
struct SessionStorage {
  std::unique_ptr<FileSystem> files;
  std::unique_ptr<SessionStore> store;
};

class Engine {
 public:
  // `tokenizer` may be null: then prompts are token ids and events carry no text. `end_tokens` end
  // a generation unless ignore_eos.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(std::unique_ptr<Backend> backend,
                                                        std::unique_ptr<Model> model,
                                                        std::unique_ptr<Tokenizer> tokenizer,
                                                        std::vector<int32_t> end_tokens,
                                                        const EngineOptions& options, Clock& clock,
                                                        SessionStorage storage = {});
  virtual ~Engine() = default;

  // The fault that Submit would find with the request by itself, for those who submit several
  // together.
  virtual absl::Status Validate(const Request& request) const = 0;
  // Queues the request. Errors found before queueing (bad field, full queue, draining) are
  // returned; whatever happens later is the stream's last event. Dropping the stream, or Cancel()
  // on it, ends the request.
  virtual absl::StatusOr<std::shared_ptr<TokenStream>> Submit(Request request) = 0;

  // Session commands run on the loop between steps; these calls block until they have.
  // NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION (busy), RESOURCE_EXHAUSTED (no slab free),
  // DATA_LOSS (SESSION_LOST). With a store, what they changed is durable when they return OK, and
  // has not happened where they return NOT_DURABLE.
  virtual absl::StatusOr<SessionInfo> CreateSession(SessionKey key, NewSession options) = 0;
  virtual absl::StatusOr<SessionInfo> GetSession(SessionKey key) = 0;
  virtual absl::StatusOr<SessionPage> ListSessions(SessionQuery query) = 0;
  virtual absl::StatusOr<SessionInfo> ForkSession(SessionKey source, SessionKey target,
                                                  absl::Duration ttl) = 0;

  // Where there is a store, sessions go back to where they were (store/rewind_point.h), and begin
  // as another one was. FAILED_PRECONDITION, too, without a store (NO_STORE), and of a session that
  // is not durable (NOT_LOGGED); OUT_OF_RANGE where the log does not lead there (POSITION_GONE);
  // NOT_FOUND of a checkpoint (NO_SUCH_CHECKPOINT). The session is then as it was.
  virtual absl::StatusOr<SessionInfo> RewindSession(SessionKey key, RewindTarget to) = 0;
  virtual absl::StatusOr<SessionInfo> ForkSessionAt(SessionKey source, SessionKey target,
                                                    absl::Duration ttl, RewindTarget at) = 0;
  // Where the session stands. ALREADY_EXISTS; RESOURCE_EXHAUSTED where there are too many
  // (CHECKPOINT_LIMIT).
  virtual absl::StatusOr<CheckpointInfo> CreateCheckpoint(SessionKey key, std::string name) = 0;
  // By name.
  virtual absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(SessionKey key) = 0;
  virtual absl::Status DeleteCheckpoint(SessionKey key, std::string name) = 0;

  virtual absl::Status DeleteSession(SessionKey key) = 0;
  // What an idle session's engrams are: as of the time of the call, and without use of the session.
  // The loop copies the fields that the query needs, and no more; the rest is done here.
  // UNIMPLEMENTED of a model that makes none, FAILED_PRECONDITION of one that classifies, as it
  // keeps no sessions; errors of ReportMemory.
  virtual absl::StatusOr<MemoryReport> InspectMemory(SessionKey key, const MemoryQuery& query) = 0;
  // A file of an idle session (sessions/session_file.h), which may go on meanwhile: the loop copies
  // its state, and the rest is done by whoever takes the file's bytes, while the engine lives.
  virtual absl::StatusOr<std::unique_ptr<SessionFileSource>> ExportSession(SessionKey key) = 0;
  // A new session of such a file. The loop makes sure of the key, checks and conversion are done
  // here, and only then a slab is taken and written. Errors, in the order in which they are looked
  // for: those of CreateSession but for want of a slab; RESOURCE_EXHAUSTED of a file of more than
  // max_session_file_bytes(); those of SessionFile; FAILED_PRECONDITION of one that was fed more
  // than a session's context has room for, is another model's, or has engrams that have no place
  // here (Model::FitEngrams); INVALID_ARGUMENT that names the tensor; RESOURCE_EXHAUSTED where no
  // slab is free.
  virtual absl::StatusOr<ImportedSession> ImportSession(SessionKey key, absl::Duration ttl,
                                                        std::string file) = 0;
  // No file of a session of this model has more bytes.
  virtual int64_t max_session_file_bytes() const = 0;
  // Deletes the engrams that were made of segments [first, end) of a session, and says what they
  // were; and whatever else is kept of these segments, also where their engrams have died.
  // INVALID_ARGUMENT where that is no range; FAILED_PRECONDITION, too, where it reaches the open
  // segment; UNIMPLEMENTED for models that make none. The session is then as it was.
  virtual absl::StatusOr<ForgottenSegments> ForgetSegments(SessionKey key, int64_t first,
                                                           int64_t end) = 0;

  // Refuses new requests (UNAVAILABLE), waits for running ones up to `timeout`, then cancels the
  // rest. With a store, what is left of that time goes to snapshots of all sessions; what it
  // refuses is tried again. Returns how many sessions are lost, as they are not durable and the
  // store did not take them; the log names them.
  virtual int Drain(absl::Duration timeout) = 0;

  virtual const ModelInfo& model_info() const = 0;
  virtual const Tokenizer* tokenizer() const = 0;
  virtual const CapacityPlan& capacity() const = 0;
  virtual const EngineStats& stats() const = 0;
  virtual const EngineOptions& options() const = 0;
  virtual std::string backend_description() const = 0;
  // Kernels and copies in the graph that a decode step of so many rows replays; the upload of its
  // inputs and the draw of its tokens come on top. 0 where such steps are not recorded.
  virtual int64_t decode_graph_nodes(int rows) const = 0;
  // Not OK after a device error: the process should report not serving and exit.
  virtual absl::Status health() const = 0;
  // All that is wrong with the store (SessionLog::health). OK without one.
  virtual absl::Status store_health() const = 0;
  // Null without a store.
  virtual const SessionStore* store() const = 0;
  // The engine's thread, and what it is doing at this moment.
  virtual LoopActivity activity() const = 0;
};

}  // namespace mneme
