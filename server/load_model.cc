#include "server/load_model.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/human_bytes.h"
#include "base/json_text.h"
#include "base/log_fields.h"
#include "base/status_macros.h"
#include "engine/engine_plan.h"
#include "engine/sessions/stored_states.h"
#include "kernels/backend.h"
#include "models/context_tables.h"
#include "models/model.h"
#include "models/model_config.h"
#include "server/chat/chat_template.h"
#include "server/config/units.h"
#include "server/openai/tokenizer_info.h"
#include "server/process/process_limits.h"
#include "server/requests/session_transfers.h"
#include "server/session_folder.h"
#include "store/session_store.h"
#include "tokenizers/tokenizer_loader.h"

namespace mneme {
namespace {

// Of snapshots at the ends of turns: where somebody decodes beside them, less than one in a second
// of the demo model's.
constexpr int64_t kTurnSnapshotBytesPerSecond = int64_t{2} << 20;

// "a/b/mom-340m/" -> "mom-340m"
std::string FolderName(absl::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  return std::string(slash == absl::string_view::npos ? path : path.substr(slash + 1));
}

EngineOptions ToEngineOptions(const v1::EngineSection& config, const Backend& backend) {
  EngineOptions options;
  options.graphs = !config.enforce_eager();
  options.async_scheduling = config.async_scheduling();
  options.state_memory_bytes = config.state_memory_bytes();
  options.max_sessions = config.max_sessions();
  options.host_state_memory_bytes = config.host_state_memory_bytes();
  options.prefix_cache_memory_bytes = config.prefix_cache_memory_bytes();
  options.prefix_cache_shared = config.prefix_cache_shared();
  options.max_rows = config.max_rows();
  // A batch larger than the device's own choice of tokens raises that.
  options.max_tokens_per_step = config.max_tokens_per_step() > 0
                                    ? config.max_tokens_per_step()
                                    : std::max(backend.preferred_step_tokens(), options.max_rows);
  options.max_logit_rows_per_step = config.max_logit_rows_per_step();
  options.max_queued_requests = config.max_queued_requests();
  options.max_request_tokens = config.max_request_tokens();
  options.max_prompt_tokens = config.max_prompt_tokens();
  options.stream_capacity_events = config.stream_capacity_events();
  options.default_session_ttl = config.session_ttl_ms() == 0
                                    ? absl::InfiniteDuration()
                                    : absl::Milliseconds(config.session_ttl_ms());
  options.durability = config.durability() == "none" ? Durability::kNone : Durability::kTurn;
  options.snapshot_tokens = config.snapshot_tokens();
  options.turn_snapshot_bytes_per_second = kTurnSnapshotBytesPerSecond;
  if (config.session_retention_ms() > 0) {
    options.session_retention = absl::Milliseconds(config.session_retention_ms());
  }
  options.max_checkpoints = config.max_checkpoints();
  options.max_checkpoints_per_owner = config.max_checkpoints_per_key();
  options.history_tokens = config.history_tokens();
  options.max_idempotency_keys = config.max_idempotency_keys();
  options.max_decode_slowdown = config.max_decode_slowdown();
  options.idempotency_record_bytes = config.idempotency_record_bytes();
  options.trace_steps = config.trace_steps();
  return options;
}

ModelOptions ToModelOptions(const v1::EngineSection& config) {
  return {.max_context = config.max_context(),
          .engram_capacity = config.engram_capacity(),
          .segment_tokens = config.segment_tokens()};
}

// The price of a session, for --plan.
std::string SessionPrice(const StateLayout& layout, const ModelInfo& info) {
  const int64_t whole = SessionBytes(layout);
  const std::string bytes = absl::StrCat(whole, " bytes (", HumanBytes(whole), ")");
  const std::optional<int64_t> most = layout.max_tokens();
  if (!most.has_value()) return absl::StrCat(bytes, ", whatever the length of the conversation");
  const int64_t growing = layout.growing_bytes();
  int64_t block_bytes = 0, blocks = 0;
  for (const ContextGroup& group : layout.groups()) {
    if (group.guard != StateGuard::kFirstRows) continue;
    block_bytes += group.block_bytes;
    blocks = std::max(blocks, group.blocks());
  }
  return absl::StrCat(bytes, ", for conversations of up to ", *most,
                      *most == 1 ? " token (" : " tokens (", ContextBound(info, *most),
                      "): ", HumanBytes(growing), " for what grows with them, used or not (",
                      block_bytes / kContextBlock, " bytes a token, in ", blocks,
                      blocks == 1 ? " block of " : " blocks of ", kContextBlock, " tokens), and ",
                      HumanBytes(whole - growing), " beside it");
}

// A line of --plan, for models that make engrams.
std::string Engrams(const StateLayout& layout, const ModelInfo& info) {
  if (info.engrams == 0) return "";
  std::string pairs;
  for (const StateField& field : layout.fields()) {
    const bool is_history = field.name == "engrams.fired";
    if (!is_history && field.name != "engrams.counts") continue;
    pairs = absl::StrCat(
        "; who fired with whom takes ", HumanBytes(field.bytes()),
        is_history ? absl::StrCat(", a history of ", field.memory_bytes() * 8, " segments")
                   : ", a count for each pair");
  }
  return absl::StrCat("engrams   room for ", info.engrams, " in a session (--engram-capacity)",
                      pairs, "\n");
}

// A line of --plan, where sessions are stored.
std::string StoragePlan(const v1::EngineSection& config, const StateLayout& layout) {
  if (config.session_dir().empty()) return "";
  return absl::StrCat("store     ", config.session_dir(), ": a snapshot of a session takes up to ",
                      HumanBytes(layout.slab_bytes()), ", two are kept, and ",
                      HumanBytes(StoredStates::Bytes(layout.slab_bytes())),
                      " of the host's memory are taken for those on their way\n");
}

absl::StatusOr<std::unique_ptr<Backend>> MakeConfiguredBackend(const v1::DeviceSection& config) {
  BackendOptions options;
  if (config.compute_dtype() == "bf16") options.compute_dtype = DType::kBF16;
  if (config.compute_dtype() == "f32") options.compute_dtype = DType::kF32;
  if (config.state_dtype() == "f16") options.state_dtype = DType::kF16;
  if (config.state_dtype() == "int8") options.state_dtype = DType::kI8;
  options.threads = config.threads();
  options.isa = config.isa();
  return MakeBackend(config.kind(), options);
}

v1::SamplingOptions ToSamplingDefaults(const GenerationDefaults& defaults) {
  v1::SamplingOptions options;
  if (defaults.temperature.has_value()) options.set_temperature(*defaults.temperature);
  if (defaults.top_k.has_value()) options.set_top_k(*defaults.top_k);
  if (defaults.top_p.has_value()) options.set_top_p(*defaults.top_p);
  if (defaults.min_p.has_value()) options.set_min_p(*defaults.min_p);
  if (defaults.repetition_penalty.has_value()) {
    options.set_repetition_penalty(*defaults.repetition_penalty);
  }
  return options;
}

// Null where the folder has none: such a model serves token ids.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerOf(const std::string& folder,
                                                           const ModelConfig& config,
                                                           const GenerationDefaults& defaults) {
  TokenizerFacts facts{.vocab_size = config.vocab};
  facts.bos_token_id = defaults.bos_token.has_value() ? defaults.bos_token : config.bos_token;
  if (!defaults.eos_tokens.empty()) facts.eos_token_id = defaults.eos_tokens.front();
  MNEME_ASSIGN_OR_RETURN(const nlohmann::json json,
                         ReadJsonObject(absl::StrCat(folder, "/config.json")));
  if (const auto it = json.find("tokenizer_class"); it != json.end() && it->is_string()) {
    facts.tokenizer_class = it->get<std::string>();
  }
  if (const auto it = json.find("model_type"); it != json.end() && it->is_string()) {
    facts.model_type = it->get<std::string>();
  }
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(folder, facts);
  if (absl::IsNotFound(tokenizer.status())) {
    LOG(WARNING) << "the model has no tokenizer: it serves token ids only";
    return nullptr;
  }
  return tokenizer;
}

// Tokens that end a generation. A configuration made for another tokenizer may name a plain byte.
std::vector<int32_t> EndTokens(const GenerationDefaults& defaults, const Tokenizer* tokenizer) {
  std::vector<int32_t> tokens = defaults.eos_tokens;
  if (tokenizer == nullptr || tokenizer->kind() != "bytes") return tokens;
  std::erase_if(tokens, [&](int32_t token) {
    return tokenizer->contains(token) && tokenizer->entry(token).kind == TokenKind::kBytes;
  });
  return tokens;
}

// A model without a template that can be used, or without a tokenizer, serves all but chats.
void LoadChatTemplate(const std::string& folder, const Tokenizer* tokenizer, ServingFacts& facts) {
  if (tokenizer == nullptr) return;
  absl::StatusOr<std::shared_ptr<const ChatTemplate>> loaded = ChatTemplate::Load(folder);
  if (loaded.ok()) {
    facts.chat_template = *std::move(loaded);
    return;
  }
  facts.chat_template_error = std::string(loaded.status().message());
  if (!absl::IsNotFound(loaded.status())) {
    LOG(WARNING) << "no chats: " << loaded.status().message();
  }
}

// The description of the tokenizer for clients. Files that cannot be read any more keep the server
// from giving it, and from nothing else.
std::string TokenizerInfoText(const std::string& folder, const Engine& engine) {
  if (engine.tokenizer() == nullptr) return "";
  const absl::StatusOr<Json> info =
      TokenizerInfo(folder, *engine.tokenizer(), MaxModelLength(engine));
  if (info.ok()) return JsonText(*info);
  LOG(WARNING) << "no /tokenizer_info: " << info.status().message();
  return "";
}

// Sets `error` and returns false unless `status` is OK. Too little memory is the device's fault
// wherever it shows, or that of a limit, which is named.
bool Succeeded(const absl::Status& status, LoadFailure failure, LoadError& error) {
  if (status.ok()) return true;
  error.status = status;
  if (const std::string limits = MemoryLimitsText();
      absl::IsResourceExhausted(status) && !limits.empty()) {
    error.status = absl::ResourceExhaustedError(
        absl::StrCat(status.message(), "; the process is limited: ", limits));
  }
  error.failure = absl::IsResourceExhausted(status) ? LoadFailure::kDevice : failure;
  return false;
}

// All that an engine is made of but its weights: what LoadEngine and PlanText begin with.
struct Preparation {
  GenerationDefaults defaults;
  std::unique_ptr<Tokenizer> tokenizer;  // may be null
  std::unique_ptr<Backend> backend;
  EngineOptions engine_options;
};

bool Prepare(const v1::ServerConfig& config, Preparation& out, LoadError& error) {
  const std::string& folder = config.model().path();
  const absl::StatusOr<ModelConfig> model_config =
      ReadModelConfig(folder, config.engine().segment_tokens());
  if (!Succeeded(model_config.status(), LoadFailure::kModel, error)) return false;
  absl::StatusOr<GenerationDefaults> defaults = ReadGenerationDefaults(folder, *model_config);
  if (!Succeeded(defaults.status(), LoadFailure::kModel, error)) return false;
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizerOf(folder, *model_config, *defaults);
  if (!Succeeded(tokenizer.status(), LoadFailure::kModel, error)) return false;
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeConfiguredBackend(config.device());
  if (!Succeeded(backend.status(), LoadFailure::kDevice, error)) return false;
  out.defaults = *std::move(defaults);
  out.tokenizer = *std::move(tokenizer);
  out.backend = *std::move(backend);
  out.engine_options = ToEngineOptions(config.engine(), *out.backend);
  return true;
}

// What sessions are kept in, if anything is. Another server's folder is refused before the model is
// read.
absl::StatusOr<SessionStorage> OpenSessions(const v1::EngineSection& config) {
  SessionStorage storage;
  if (config.session_dir().empty()) return storage;
  storage.files = std::make_unique<PosixFileSystem>();
  StoreReport report;
  SessionStore::Options options;
  options.requests_kept = config.max_idempotency_keys();
  options.limits.snapshots_per_session = config.snapshots_per_session();
  options.limits.bytes_per_owner = config.session_bytes_per_key();
  absl::StatusOr<std::unique_ptr<SessionStore>> store =
      SessionStore::Open(*storage.files, config.session_dir(), options, report);
  if (!store.ok()) {
    return absl::Status(store.status().code(),
                        absl::StrCat("--session-dir: ", store.status().message()));
  }
  report.Log();
  storage.store = *std::move(store);
  if (config.trust_session_names()) MNEME_RETURN_IF_ERROR(storage.store->TrustNames());
  LogFields("session_store")
      .Add("folder", config.session_dir())
      .Add("sessions", storage.store->sessions())
      .Add("lost", static_cast<int64_t>(report.lost.size()))
      .Add("fallen_back", static_cast<int64_t>(report.fallen_back.size()))
      .Add("names_in_doubt", storage.store->names_in_doubt())
      .Write(LogSeverity::kInfo);
  return storage;
}

void LogModel(const ModelInfo& info, absl::Duration took) {
  LogFields("model_loaded")
      .Add("architecture", info.architecture)
      .Add("layers", info.layers)
      .Add("model_dim", info.model_dim)
      .Add("vocab", info.vocab)
      .Add("parameters", info.parameters)
      .Add("weight_bytes", info.weight_bytes)
      .Add("dtype", info.weight_dtype)
      .Add("fingerprint", absl::StrFormat("%016x", info.fingerprint))
      .AddMilliseconds("load_ms", absl::ToDoubleMilliseconds(took))
      .Write(LogSeverity::kInfo);
}

// A plan is refused for what was asked for, or for what the device lacks.
LoadFailure PlanFailure(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? LoadFailure::kArguments : LoadFailure::kDevice;
}

}  // namespace

absl::Status CheckModelFolder(const v1::ServerConfig& config) {
  return ReadModelConfig(config.model().path(), config.engine().segment_tokens()).status();
}

std::unique_ptr<LoadedModel> LoadEngine(const v1::ServerConfig& config, Clock& clock,
                                        const LoadProgress& progress, EngineHooks hooks,
                                        LoadError& error) {
  const std::string& folder = config.model().path();
  const absl::Duration start = clock.Monotonic();
  Preparation parts;
  if (!Prepare(config, parts, error)) return nullptr;
  if (parts.tokenizer != nullptr) {
    for (const std::string& note : parts.tokenizer->notes()) LOG(INFO) << "tokenizer: " << note;
  }
  LogFields("device").Add("description", parts.backend->description()).Write(LogSeverity::kInfo);
  absl::StatusOr<SessionStorage> sessions = OpenSessions(config.engine());
  if (!Succeeded(sessions.status(), LoadFailure::kArguments, error)) return nullptr;
  absl::StatusOr<std::unique_ptr<Model>> model =
      LoadModel(folder, *parts.backend, progress, ToModelOptions(config.engine()));
  if (!Succeeded(model.status(), LoadFailure::kModel, error)) return nullptr;
  LogModel((*model)->info(), clock.Monotonic() - start);

  std::vector<int32_t> end_tokens = EndTokens(parts.defaults, parts.tokenizer.get());
  parts.engine_options.on_request_end = std::move(hooks.on_request_end);
  parts.engine_options.owner_session_limit = std::move(hooks.owner_session_limit);
  absl::StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(std::move(parts.backend), *std::move(model), std::move(parts.tokenizer),
                     std::move(end_tokens), parts.engine_options, clock, *std::move(sessions));
  if (!Succeeded(engine.status(), PlanFailure(engine.status()), error)) return nullptr;

  auto loaded = std::make_unique<LoadedModel>();
  loaded->engine = *std::move(engine);
  loaded->facts.model_name =
      config.model().served_name().empty() ? FolderName(folder) : config.model().served_name();
  loaded->facts.default_max_tokens = config.engine().default_max_tokens();
  loaded->facts.max_message_bytes = config.server().max_message_bytes();
  loaded->facts.max_text_bytes = config.server().max_text_bytes();
  loaded->facts.session_transfers = std::make_shared<SessionTransfers>(
      SessionTransfers::Limits{.at_once = config.server().max_session_transfers(),
                               .file_bytes = config.server().max_session_file_bytes()});
  if (const int64_t most = config.engine().max_session_ttl_ms(); most > 0) {
    loaded->facts.max_session_ttl = absl::Milliseconds(most);
  }
  LoadChatTemplate(folder, loaded->engine->tokenizer(), loaded->facts);
  loaded->facts.tokenizer_info = TokenizerInfoText(folder, *loaded->engine);
  if (config.model().generation_config() == "auto") {
    loaded->facts.sampling_defaults = ToSamplingDefaults(parts.defaults);
    loaded->facts.default_max_tokens =
        parts.defaults.max_new_tokens.value_or(loaded->facts.default_max_tokens);
  }
  return loaded;
}

absl::StatusOr<std::string> PlanText(const v1::ServerConfig& config, LoadError& error) {
  Preparation parts;
  if (!Prepare(config, parts, error)) return error.status;
  if (const std::string& folder = config.engine().session_dir(); !folder.empty()) {
    if (!Succeeded(CheckSessionFolder(folder), LoadFailure::kArguments, error)) return error.status;
  }
  const Backend& backend = *parts.backend;
  const absl::StatusOr<ModelPlan> model =
      PlanModel(config.model().path(), backend, ToModelOptions(config.engine()));
  if (!Succeeded(model.status(), LoadFailure::kModel, error)) return error.status;
  for (const std::string& warning : model->warnings) LOG(WARNING) << warning;
  const ModelInfo& info = model->info;
  // As the engine reckons once the weights are there; of what is left then, a GPU's blocks of
  // memory may take a little more.
  const ModelNeeds needs = {
      .slab_bytes = SessionBytes(model->state_layout),
      .growing_bytes = model->state_layout.growing_bytes(),
      .outputs = info.outputs(),
      .segment = info.classes.segment,
      .workspace_bytes = model->workspace_bytes,
      .unread_bytes = info.weight_bytes + AddressSpaceToCome(config.device().threads()),
      .snapshot_bytes = config.engine().session_dir().empty()
                            ? 0
                            : StoredStates::Bytes(model->state_layout.slab_bytes())};
  const absl::StatusOr<EnginePlan> plan = PlanEngine(backend, needs, parts.engine_options);
  if (!Succeeded(plan.status(), PlanFailure(plan.status()), error)) return error.status;

  const bool is_given = config.engine().state_memory_bytes() > 0;
  return absl::StrCat("model     ", FolderName(config.model().path()), ", ", info.architecture,
                      ", ", info.layers, " layers, ", info.parameters, " parameters, ",
                      HumanBytes(info.weight_bytes), " of ", info.weight_dtype, " weights\n",  //
                      "device    ", backend.description(), ", ", HumanBytes(plan->available_bytes),
                      " available\n", "steps     ", HumanBytes(plan->runner_bytes),
                      " of workspace for at most ", plan->largest_step.tokens, " tokens in ",
                      plan->largest_step.rows, " rows\n",  //
                      "session   ", SessionPrice(model->state_layout, info), "\n",
                      Engrams(model->state_layout, info), model->state_layout.ToString(),
                      "capacity  ", plan->capacity.ToString(),
                      is_given ? ""
                               : "; what is available now, less weights, workspace and a reserve "
                                 "(--state-memory fixes it)",
                      "\n", StoragePlan(config.engine(), model->state_layout));
}

}  // namespace mneme
