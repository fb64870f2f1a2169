#include "tests/store/crash_history.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "store/slab_file.h"

namespace mneme {
namespace {

constexpr char kFolder[] = "/store";
constexpr char kOwner[] = "owner";
constexpr absl::Time kDate = absl::UnixEpoch();
constexpr int kUndone = 3;  // an outcome

std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

SessionStore::Options SmallStore() {
  SessionStore::Options options;
  options.wal_pages = 12;
  options.batches_per_commit = 3;
  return options;
}

}  // namespace

CrashHistory::CrashHistory(uint64_t seed, const std::string& ignored_site)
    : random_(seed),
      ignored_site_(ignored_site),
      disk_(std::make_unique<PowerLossFileSystem>()),
      crash_random_(seed + 1) {}

CrashHistory::Result CrashHistory::Run(uint64_t seed, int steps, const std::string& ignored_site) {
  CrashHistory history(seed, ignored_site);
  history.Open();
  for (int step = 0; step < steps && !history.failed(); ++step) history.Step();
  history.disk_->before_change = nullptr;
  history.store_.reset();
  for (const std::string& site : history.disk_->sync_sites()) history.NoteSite(site);
  absl::MutexLock lock(&history.mu_);
  return std::move(history.result_);
}

bool CrashHistory::failed() const {
  absl::MutexLock lock(&mu_);
  return !result_.violation.empty();
}

void CrashHistory::Fail(const std::string& violation) {
  absl::MutexLock lock(&mu_);
  if (result_.violation.empty()) result_.violation = violation;
}

void CrashHistory::Open() {
  disk_->IgnoreSite(ignored_site_);
  disk_->before_change = [this] { BeforeChange(); };
  StoreReport report;
  absl::StatusOr<std::unique_ptr<SessionStore>> store =
      SessionStore::Open(*disk_, kFolder, SmallStore(), report);
  if (!store.ok()) return Fail(absl::StrCat("open: ", store.status().ToString()));
  store_ = *std::move(store);
}

void CrashHistory::BeforeChange() {
  Oracle oracle;
  uint64_t seed = 0;
  {
    absl::MutexLock lock(&mu_);
    if (!result_.violation.empty()) return;
    oracle = oracle_;
    seed = crash_random_();
    ++result_.crashes;
    if (kill_in_ >= 0 && kill_in_-- == 0) {
      killed_ = disk_->KillImage();
      killed_oracle_ = oracle_;
    }
  }
  const std::unique_ptr<PowerLossFileSystem> image = disk_->CrashImage(seed);
  Check(*image, oracle, absl::StrCat("image of seed ", seed));
}

void CrashHistory::Check(PowerLossFileSystem& image, const Oracle& oracle,
                         const std::string& what) {
  for (const auto& [path, bytes] : image.AllFiles()) {
    for (const std::string& secret : oracle.erased) {
      if (!absl::StrContains(bytes, secret)) continue;
      return Fail(absl::StrCat(what, ": bytes of what was deleted, ", secret, ", are in ", path));
    }
  }
  StoreReport report;
  const auto store = SessionStore::Open(image, kFolder, SmallStore(), report);
  if (!store.ok()) return Fail(absl::StrCat(what, ": open: ", store.status().ToString()));
  if (!report.damage.empty()) {
    return Fail(absl::StrCat(what, ": damage: ", report.damage[0].ToString()));
  }
  if (!report.set_aside.empty()) {
    return Fail(absl::StrCat(what, ": set aside: ", report.set_aside[0]));
  }
  for (const auto& [name, state] : oracle.acknowledged) {
    if (!Match(**store, image, oracle, name, what).has_value()) return;
  }
}

std::optional<CrashHistory::State> CrashHistory::Match(SessionStore& store, FileSystem& files,
                                                       const Oracle& oracle,
                                                       const std::string& name,
                                                       const std::string& what) {
  const std::optional<SessionRecord> found = store.Find(kOwner, name);
  const std::vector<State> allowed = oracle.Allowed(name);
  std::set<std::string> keys;
  for (const State& one : allowed) {
    if (!one.has_value()) continue;
    for (const auto& [key, request] : one->requests) keys.insert(key);
  }
  const std::string stored =
      found.has_value() ? DescribeStored(store, files, *found, keys) : "nothing";
  std::string violation = absl::StrCat(what, ": session ", name, " is ", stored);
  for (const State& one : allowed) {
    const std::string expected = one.has_value() ? one->Describe() : "nothing";
    if (stored == expected) return one;
    absl::StrAppend(&violation, "\nexpected ", expected);
  }
  Fail(violation);
  return std::nullopt;
}

std::vector<CrashHistory::State> CrashHistory::Oracle::Allowed(const std::string& name) const {
  std::vector<State> allowed = {acknowledged.at(name)};
  const auto maybe = in_flight.find(name);
  if (maybe != in_flight.end()) {
    allowed.insert(allowed.end(), maybe->second.begin(), maybe->second.end());
  }
  return allowed;
}

void CrashHistory::Oracle::Settle(const std::string& name, State state) {
  State& before = acknowledged[name];
  if (before.has_value()) {
    // Snapshots that give way to newer ones go as soon as the disk lets them.
    const bool keeps_past = state.has_value() && state->fed_tokens == before->fed_tokens &&
                            state->first_turn == before->first_turn;
    const std::set<std::string> left =
        state.has_value() ? state->Secrets(true) : std::set<std::string>();
    for (const std::string& secret : before->Secrets(!keeps_past)) {
      if (!left.contains(secret)) erased.insert(secret);
    }
  }
  before = std::move(state);
  in_flight.erase(name);
}

Turn CrashHistory::MakeTurn(ExpectedSession& session) {
  Turn turn = {.begin = session.fed_tokens};
  TokensFed fed;
  if (session.pending_token.has_value() && random_() % 4 > 0) {
    fed.tokens.push_back(*session.pending_token);
  }
  const size_t count = 1 + random_() % 40;
  for (size_t i = 0; i < count; ++i) {
    fed.tokens.push_back(static_cast<int32_t>(random_() % 50'000));
  }
  const bool goes_on = fed.tokens.front() == session.pending_token;
  if (!goes_on && !session.turns.empty()) session.turns.back().pending_token.reset();
  if (random_() % 4 == 0) turn.events.emplace_back(RangeForgotten{0, session.fed_tokens});
  turn.events.emplace_back(std::move(fed));
  turn.pending_token = static_cast<int32_t>(random_() % 50'000);
  turn.facts = absl::StrCat(session.secret, " facts ", ++made_, ";",
                            std::string(random_() % 3 == 0 ? 900 : 0, 'f'));
  session.fed_tokens = turn.end();
  session.pending_token = turn.pending_token;
  session.facts = turn.facts;
  session.turns.push_back(turn);
  return turn;
}

bool CrashHistory::WriteSnapshot(const std::string& name, const ExpectedSession& session,
                                 uint64_t id) {
  const SlabHead head = {.id = id,
                         .owner = kOwner,
                         .name = name,
                         .session = session.id,
                         .position = session.fed_tokens,
                         .turn = session.end_turn()};
  const std::string text = SlabText(session.secret, {id, head.position, head.turn});
  auto writer = SlabWriter::Create(*disk_, store_->SnapshotPath(id), head);
  return writer.ok() && (*writer)->AddSection("state", AsBytes(text), /*compress=*/false).ok() &&
         (*writer)->Finish().ok();
}

// Something of it, for which all that led to where it stands goes.
std::vector<Change> CrashHistory::ProposeForgetting(const std::string& name,
                                                    ExpectedSession& session) {
  const int64_t position = session.fed_tokens;
  const int64_t begin = static_cast<int64_t>(random_() % (position + 1));
  const Turn turn = {.begin = position,
                     .events = {RangeForgotten{begin, position}},
                     .pending_token = session.pending_token,
                     .facts = absl::StrCat(session.secret, " forgot ", ++made_, ";")};
  ExpectedSession after = session;
  after.first_turn = session.end_turn() + 1;
  after.first_token = position;
  after.first_pending = turn.pending_token;
  after.first_facts = turn.facts;
  after.facts = turn.facts;
  after.turns.clear();
  after.checkpoints.clear();
  for (auto& [key, request] : after.requests) {
    if (request.position > begin) request.reply.clear();
  }
  const ExpectedSession::Snapshot next = {store_->NewId(), position, after.end_turn()};
  if (!WriteSnapshot(name, after, next.id)) return {};
  after.snapshots = {next};
  session = std::move(after);
  return {AddTurn{session.id, turn, position, kDate, std::nullopt},
          ForgetPast{session.id, SnapshotRecord{next.id, position, next.turn, 700}, begin}};
}

std::vector<Change> CrashHistory::Propose(const std::string& name, const State& before,
                                          State& after) {
  after = before;
  if (!before.has_value()) {
    ExpectedSession session = {.id = store_->NewId(),
                               .secret = absl::StrCat("secret", ++made_, "of", random_())};
    SessionRecord record = {.id = session.id, .owner = kOwner, .name = name};
    const Turn turn = MakeTurn(session);
    std::vector<Change> changes = {CreateSession{record},
                                   AddTurn{session.id, turn, turn.end(), kDate, std::nullopt}};
    after = std::move(session);
    return changes;
  }
  ExpectedSession& session = *after;
  const uint64_t dice = random_() % 16;
  const auto some_position = [&] {
    return session.first_token +
           static_cast<int64_t>(random_() % (session.fed_tokens - session.first_token + 1));
  };
  if (dice < 3 && !session.turns.empty()) {
    const ExpectedSession::Snapshot next = {store_->NewId(), session.fed_tokens,
                                            session.end_turn()};
    if (WriteSnapshot(name, session, next.id)) {
      session.snapshots.push_back(next);
      std::stable_sort(session.snapshots.begin(), session.snapshots.end(),
                       [](const auto& a, const auto& b) { return a.position < b.position; });
      session.KeepSnapshots();
      return {AddSnapshot{
          session.id, {next.id, next.position, next.turn, 700}, store_->Find(session.id)->rewinds}};
    }
  } else if (dice == 3) {
    const std::string checkpoint = absl::StrCat(session.secret, " checkpoint ", ++made_, ";");
    const int64_t position = some_position();
    session.checkpoints[checkpoint] = position;
    return {AddCheckpoint{session.id, {checkpoint, position, kDate}}};
  } else if (dice == 4) {
    const std::string facts = absl::StrCat(session.secret, " rewound ", ++made_, ";");
    RewindSession change = {.session = session.id, .when = kDate};
    change.facts = [facts](absl::string_view, const Turn&) { return facts; };
    if (!session.checkpoints.empty() && random_() % 2 == 0) {
      change.to.checkpoint = session.checkpoints.begin()->first;
      session.GoBack(session.checkpoints.begin()->second, facts);
    } else {
      change.to.position = some_position();
      if (session.pending_token.has_value() && random_() % 8 == 0) {
        change.to.position = session.fed_tokens + 1;
      }
      if (!session.GoBackToTurn(change.to.position)) session.GoBack(change.to.position, facts);
    }
    return {std::move(change)};
  } else if (dice == 5) {
    std::vector<Change> changes = ProposeForgetting(name, session);
    if (!changes.empty()) return changes;
  } else if (dice == 6 || dice == 7) {
    const uint64_t id = session.id;
    after.reset();
    return {DeleteSession{id}};
  }
  const auto edits = dice == 8 ? ProposeCut(session, some_position()) : std::nullopt;
  const Turn turn = MakeTurn(session);
  AddTurn change = {session.id, turn, turn.end(), kDate, std::nullopt};
  if (random_() % 2 == 0) {
    change.request = RequestRecord{.owner = kOwner,
                                   .key = absl::StrCat("key", ++made_),
                                   .digest = random_(),
                                   .position = turn.end() + 1,
                                   .reply = absl::StrCat(session.secret, " reply ", made_, ";")};
    session.requests[change.request->key] = *change.request;
  }
  if (edits.has_value()) return {*edits, change};
  return {change};
}

// Back to a position, for a turn that follows in the same batch; nothing where the disk fails.
std::optional<CutSession> CrashHistory::ProposeCut(ExpectedSession& session, int64_t position) {
  const std::optional<SessionRecord> record = store_->Find(session.id);
  const auto turns = store_->ReadTurns(session.id, session.first_turn, 1000);
  const auto snapshots = store_->ReadSnapshots(session.id);
  if (!record.has_value() || !turns.ok() || !snapshots.ok()) return std::nullopt;
  const std::string facts = absl::StrCat(session.secret, " edited ", ++made_, ";");
  auto point = FindFed(*record, *turns, *snapshots, position,
                       [&](absl::string_view, const Turn&) { return facts; });
  if (!point.ok()) return std::nullopt;
  auto answered = session.requests;
  for (auto& [key, request] : answered) {
    if (request.position <= position) continue;
    request.reply.clear();
    request.outcome = kUndone;
  }
  session.GoBack(position, facts);
  session.requests = std::move(answered);
  return CutSession{session.id, *std::move(point), record->rewinds, kUndone};
}

void CrashHistory::Step() {
  {
    absl::MutexLock lock(&mu_);
    killed_.reset();
    if (random_() % 3 == 0) kill_in_ = static_cast<int64_t>(random_() % 30);
  }
  if (random_() % 3 == 0) disk_->FailSyncAfter(static_cast<int>(random_() % 4));
  // Several at once fall into one commit.
  std::map<std::string, std::vector<Change>> proposed;
  const size_t sessions = 1 + random_() % 3;
  for (size_t i = 0; i < sessions; ++i) {
    const std::string name = absl::StrCat("../session ", random_() % 4);
    if (proposed.contains(name)) continue;
    State before;
    {
      absl::MutexLock lock(&mu_);
      before = oracle_.acknowledged[name];
    }
    State after;
    proposed[name] = Propose(name, before, after);
    absl::MutexLock lock(&mu_);
    oracle_.in_flight[name].push_back(std::move(after));
  }
  absl::BlockingCounter left(static_cast<int>(proposed.size()));
  for (auto& [name, changes] : proposed) {
    const auto done = [&, name = name](const absl::Status& status) {
      {
        absl::MutexLock lock(&mu_);
        if (status.ok()) {
          oracle_.Settle(name, oracle_.in_flight[name].back());
        } else if (!absl::IsUnavailable(status) && result_.violation.empty()) {
          result_.violation = absl::StrCat("refused: ", status.ToString());
        }
      }
      left.DecrementCount();
    };
    const absl::Status queued = store_->Submit(std::move(changes), done);
    if (!queued.ok()) {
      Fail(queued.ToString());
      left.DecrementCount();
    }
  }
  left.Wait();
  if (failed()) return;
  Oracle oracle;
  std::unique_ptr<PowerLossFileSystem> next;
  {
    absl::MutexLock lock(&mu_);
    oracle = killed_ != nullptr ? killed_oracle_ : oracle_;
    next = std::move(killed_);
    kill_in_ = -1;
  }
  // A kill in the middle of this step, or a power loss behind it.
  if (next == nullptr && random_() % 8 == 0) next = disk_->CrashImage(random_());
  if (next != nullptr) GoOnFrom(std::move(next), std::move(oracle));
}

void CrashHistory::GoOnFrom(std::unique_ptr<PowerLossFileSystem> disk, Oracle oracle) {
  disk_->before_change = nullptr;
  store_.reset();
  for (const std::string& site : disk_->sync_sites()) NoteSite(site);
  {
    absl::MutexLock lock(&mu_);
    oracle_ = oracle;
  }
  disk_ = std::move(disk);
  Open();
  if (failed()) return;
  // What was seen now has to stay.
  for (const auto& [name, state] : oracle.acknowledged) {
    std::optional<State> found = Match(*store_, *disk_, oracle, name, "after a crash");
    if (!found.has_value()) return;
    absl::MutexLock lock(&mu_);
    oracle_.Settle(name, *std::move(found));
  }
}

void CrashHistory::NoteSite(const std::string& site) {
  absl::MutexLock lock(&mu_);
  result_.sync_sites.insert(site);
}

}  // namespace mneme
