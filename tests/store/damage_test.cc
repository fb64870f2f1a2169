// Bytes that change, files that go: nothing that is left is lost, and nothing goes back in silence.
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/session_store.h"
#include "store/slab_file.h"
#include "tests/store/power_loss_fs.h"
#include "tests/store/store_testing.h"

namespace mneme {
namespace {

constexpr char kPlace[] = "/store";
constexpr char kWalOfPlace[] = "/store/catalogue.1.db-wal";
constexpr char kDatabaseOfPlace[] = "/store/catalogue.1.db";
constexpr int kManySessions = 12;
constexpr int kManyTurns = 6;
constexpr int64_t kLastPosition = 4 * kManyTurns + 1;  // SessionRecord::position() of all

using FilesByPath = std::map<std::string, std::string>;

std::string NameOf(int i) { return absl::StrCat("session ", i); }

void TakeSnapshot(FileSystem& files, SessionStore& store, uint64_t session) {
  const SessionRecord now = *store.Find(session);
  const SnapshotRecord snapshot = {store.NewId(), now.fed_tokens, now.turns, 100};
  ASSERT_EQ(WriteSlab(files, store, now, snapshot), absl::OkStatus());
  ASSERT_EQ(store.Apply({AddSnapshot{session, snapshot}}), absl::OkStatus());
}

struct Images {
  FilesByPath killed, drained;
};

// A dozen sessions after their last turn, with snapshots of where most of them stand.
Images MakeImages() {
  PowerLossFileSystem disk;
  StoreReport report;
  auto store = SessionStore::Open(disk, kPlace, {}, report);
  CHECK(store.ok()) << store.status().message();
  std::vector<SessionRecord> sessions;
  for (int i = 0; i < kManySessions; ++i) {
    sessions.push_back(NamedSession(**store, NameOf(i)));
    CHECK((*store)->Apply({CreateSession{sessions.back()}}).ok());
  }
  for (int turn = 0; turn < kManyTurns; ++turn) {
    for (int i = 0; i < kManySessions; ++i) {
      const Turn next = TokenTurn(4 * turn, {i, i, i, turn});
      CHECK((*store)->Apply({TurnOf(sessions[i].id, next)}).ok());
      if ((turn + i) % 3 != 0) TakeSnapshot(disk, **store, sessions[i].id);
    }
  }
  Images images;
  images.killed = disk.KillImage()->AllFiles();
  store->reset();
  images.drained = disk.AllFiles();
  return images;
}

std::unique_ptr<PowerLossFileSystem> DiskOf(const FilesByPath& files) {
  auto disk = std::make_unique<PowerLossFileSystem>();
  CHECK(disk->CreateDirectory(kPlace).ok() && disk->CreateDirectory("/store/slabs").ok());
  for (const auto& [name, bytes] : files) {
    const auto file = disk->Open(name, OpenMode::kCreate);
    CHECK(file.ok() && (*file)->Write(0, std::as_bytes(std::span(bytes))).ok());
    CHECK((*file)->Sync().ok());
  }
  CHECK(disk->SyncDirectory("/", SyncSite::Here()).ok());
  CHECK(disk->SyncDirectory(kPlace, SyncSite::Here()).ok());
  CHECK(disk->SyncDirectory("/store/slabs", SyncSite::Here()).ok());
  return disk;
}

// Every snapshot of `before` is there, maybe set aside.
void ExpectAllSlabs(const FilesByPath& before, const PowerLossFileSystem& disk) {
  const FilesByPath after = disk.AllFiles();
  for (const auto& [name, bytes] : before) {
    if (!absl::EndsWith(name, ".slab")) continue;
    EXPECT_TRUE(after.contains(name) || after.contains(name + ".damaged")) << name << " is gone";
  }
}

struct Found {
  int whole = 0;
  int told = 0;  // in doubt, or lost, or not there while names are in doubt
};

// Each session is what it was, or somebody is told.
Found ExpectNoSilence(SessionStore& store, const StoreReport& report) {
  Found found;
  std::set<std::string> named;
  for (const auto& list : {report.fallen_back, report.in_doubt, report.lost}) {
    for (const SessionRecord& session : list) named.insert(session.name);
  }
  for (int i = 0; i < kManySessions; ++i) {
    const std::optional<SessionRecord> session = store.Find("owner", NameOf(i));
    if (!session.has_value()) {
      EXPECT_TRUE(store.names_in_doubt()) << NameOf(i) << " is gone in silence";
      ++found.told;
    } else if (session->status == SessionStatus::kLost || session->doubted_at.has_value()) {
      EXPECT_TRUE(named.contains(NameOf(i))) << NameOf(i) << " is not named";
      ++found.told;
    } else {
      EXPECT_EQ(session->position(), kLastPosition) << NameOf(i) << " went back in silence";
      const auto turns = store.ReadTurns(session->id, session->first_turn, 100);
      if (!turns.ok()) {
        EXPECT_TRUE(absl::IsDataLoss(turns.status())) << turns.status();
        ++found.told;
        continue;
      }
      EXPECT_EQ(session->first_turn + static_cast<int64_t>(turns->size()), kManyTurns);
      ++found.whole;
    }
  }
  return found;
}

TEST(DamageTest, ABitOfAWalChangesNoSessionInSilence) {
  const Images images = MakeImages();
  const std::string& wal = images.killed.at(kWalOfPlace);
  std::mt19937_64 random(1);
  int whole = 0, told = 0;
  for (int round = 0; round < 150; ++round) {
    FilesByPath files = images.killed;
    const size_t at = random() % wal.size();
    files.at(kWalOfPlace)[at] = static_cast<char>(wal[at] ^ (1 << random() % 8));
    SCOPED_TRACE(absl::StrCat("round ", round, ": byte ", at, " of ", wal.size()));
    const auto disk = DiskOf(files);
    StoreReport report;
    const auto store = SessionStore::Open(*disk, kPlace, {}, report);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_FALSE(report.damage.empty());
    const Found found = ExpectNoSilence(**store, report);
    whole += found.whole;
    told += found.told;
    ExpectAllSlabs(files, *disk);
  }
  printf("of %d sessions %d are whole, %d are told about\n", whole + told, whole, told);
  EXPECT_GT(whole, 9 * told) << "what lies behind the damage counts";
}

TEST(DamageTest, ASectorOrTheEndOfAWalChangesNoSessionInSilence) {
  const Images images = MakeImages();
  const std::string& wal = images.killed.at(kWalOfPlace);
  std::mt19937_64 random(2);
  for (int round = 0; round < 60; ++round) {
    FilesByPath files = images.killed;
    const size_t at = random() % wal.size();
    if (round % 2 == 0) {
      files.at(kWalOfPlace).resize(at);
    } else {
      const size_t size = std::min<size_t>(512, wal.size() - at);
      files.at(kWalOfPlace).replace(at, size, std::string(size, '\0'));
    }
    if (files.at(kWalOfPlace) == wal) continue;
    SCOPED_TRACE(absl::StrCat("round ", round, ": at ", at, " of ", wal.size()));
    const auto disk = DiskOf(files);
    StoreReport report;
    const auto store = SessionStore::Open(*disk, kPlace, {}, report);
    ASSERT_TRUE(store.ok()) << store.status();
    ExpectNoSilence(**store, report);
    ExpectAllSlabs(files, *disk);
  }
}

TEST(DamageTest, ABitOfADrainedCatalogueCostsFewSessions) {
  const Images images = MakeImages();
  EXPECT_TRUE(images.drained.at(kWalOfPlace).empty())
      << "ending in order moves all into the database";
  const std::string& database = images.drained.at(kDatabaseOfPlace);
  std::mt19937_64 random(3);
  int whole = 0, told = 0;
  for (int round = 0; round < 100; ++round) {
    FilesByPath files = images.drained;
    const size_t at = random() % database.size();
    files.at(kDatabaseOfPlace)[at] = static_cast<char>(database[at] ^ (1 << random() % 8));
    SCOPED_TRACE(absl::StrCat("round ", round, ": byte ", at, " of ", database.size()));
    const auto disk = DiskOf(files);
    StoreReport report;
    const auto store = SessionStore::Open(*disk, kPlace, {}, report);
    ASSERT_TRUE(store.ok()) << store.status();
    const Found found = ExpectNoSilence(**store, report);
    whole += found.whole;
    told += found.told;
    ExpectAllSlabs(files, *disk);
  }
  printf("of %d sessions %d are whole, %d are told about\n", whole + told, whole, told);
  EXPECT_GT(whole, told);
}

TEST(DamageTest, AWalWithoutItsDatabaseIsSetAside) {
  FilesByPath files = MakeImages().killed;
  const std::string wal = files.at(kWalOfPlace);
  files.erase(kDatabaseOfPlace);
  const auto disk = DiskOf(files);
  StoreReport report;
  const auto store = SessionStore::Open(*disk, kPlace, {}, report);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT(report.set_aside, testing::Contains(absl::StrCat(kWalOfPlace, ".damaged")));
  EXPECT_EQ(disk->AllFiles().at(absl::StrCat(kWalOfPlace, ".damaged")), wal);
  EXPECT_TRUE((*store)->stats().names_in_doubt);
  ExpectAllSlabs(files, *disk);
}

TEST(DamageTest, AForeignFileWithAHigherNumberTakesNothing) {
  const Images images = MakeImages();
  for (const char* bytes : {"", "no database"}) {
    FilesByPath files = images.killed;
    files["/store/catalogue.2.db"] = bytes;
    const auto disk = DiskOf(files);
    StoreReport report;
    const auto store = SessionStore::Open(*disk, kPlace, {}, report);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_THAT(report.set_aside, testing::Contains("/store/catalogue.2.db.damaged"));
    EXPECT_EQ(ExpectNoSilence(**store, report).told, 0);
  }
}

// As a crash leaves it after the next one was written, or between setting aside a WAL and its
// database.
TEST(DamageTest, AForerunnerGoesUnlessItWasBeingSetAside) {
  FilesByPath files = MakeImages().killed;
  files["/store/catalogue.9.db"] = files.at(kDatabaseOfPlace);
  files["/store/catalogue.9.db-wal"] = files.at(kWalOfPlace);
  {
    const auto disk = DiskOf(files);
    StoreReport report;
    const auto store = SessionStore::Open(*disk, kPlace, {}, report);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_TRUE(report.set_aside.empty());
    EXPECT_EQ(ExpectNoSilence(**store, report).told, 0);
    EXPECT_FALSE(disk->AllFiles().contains(kDatabaseOfPlace));
    EXPECT_FALSE(disk->AllFiles().contains(kWalOfPlace));
  }
  const std::string aside = absl::StrCat(kWalOfPlace, ".damaged");
  files[aside] = files.at(kWalOfPlace);
  files.erase(kWalOfPlace);
  const auto disk = DiskOf(files);
  StoreReport report;
  const auto store = SessionStore::Open(*disk, kPlace, {}, report);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_THAT(report.set_aside, testing::ElementsAre(absl::StrCat(kDatabaseOfPlace, ".damaged")));
}

// A catalogue that is too large for SQLite's own check.
TEST(DamageTest, RowsThatAPageHidesAreMissedHoweverLargeTheCatalogueIs) {
  constexpr int kSessions = 150;
  PowerLossFileSystem whole;
  StoreReport report;
  auto store = SessionStore::Open(whole, kPlace, {}, report);
  ASSERT_TRUE(store.ok()) << store.status();
  for (int i = 0; i < kSessions; ++i) {
    const SessionRecord session = NamedSession(**store, NameOf(i));
    ASSERT_EQ((*store)->Apply({CreateSession{session}, TurnOf(session.id, TokenTurn(0, {i})),
                               AddCheckpoint{session.id, {"here", 1, absl::UnixEpoch(), 1, true}}}),
              absl::OkStatus());
  }
  store->reset();
  const FilesByPath drained = whole.AllFiles();
  const size_t pages = drained.at(kDatabaseOfPlace).size() / 4096;
  int sessions_hidden = 0, told = 0;
  for (size_t page = 1; page < pages; ++page) {
    FilesByPath files = drained;
    std::string& bytes = files.at(kDatabaseOfPlace);
    const size_t cells = static_cast<uint8_t>(bytes[page * 4096 + 4]);
    if (cells < 2) continue;
    bytes[page * 4096 + 4] = static_cast<char>(cells - 1);  // the last one is nobody's
    SCOPED_TRACE(absl::StrCat("page ", page, " of ", pages));
    const auto disk = DiskOf(files);
    StoreReport found;
    const auto opened = SessionStore::Open(*disk, kPlace, {.most_checked_bytes = 0}, found);
    ASSERT_TRUE(opened.ok()) << opened.status();
    told += found.damage.empty() ? 0 : 1;
    if ((*opened)->sessions() == kSessions) continue;
    ++sessions_hidden;
    EXPECT_TRUE((*opened)->names_in_doubt());
  }
  EXPECT_GE(sessions_hidden, 2);
  EXPECT_GT(told, sessions_hidden) << "checkpoints count, too";
}

// The keys of a session are known, or it is in doubt.
TEST(DamageTest, NoIdempotencyKeyIsForgottenInSilence) {
  constexpr int kSessions = 40, kKeys = 4;
  PowerLossFileSystem whole;
  StoreReport report;
  auto store = SessionStore::Open(whole, kPlace, {}, report);
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<SessionRecord> sessions;
  const auto key_of = [](int session, int i) { return absl::StrCat("key ", session, " ", i); };
  for (int i = 0; i < kSessions; ++i) {
    sessions.push_back(NamedSession(**store, NameOf(i)));
    ASSERT_EQ((*store)->Apply({CreateSession{sessions[i]}}), absl::OkStatus());
    for (int key = 0; key < kKeys; ++key) {
      AddTurn turn = TurnOf(sessions[i].id, TokenTurn(key, {i}));
      turn.request = RequestRecord{.owner = "owner",
                                   .key = key_of(i, key),
                                   .digest = 1,
                                   .outcome = 1,
                                   .position = key + 2,
                                   .reply = std::string(300, 'r')};
      ASSERT_EQ((*store)->Apply({turn}), absl::OkStatus());
    }
  }
  store->reset();
  const FilesByPath drained = whole.AllFiles();
  const std::string& database = drained.at(kDatabaseOfPlace);
  int in_doubt = 0, untouched = 0;
  const auto look = [&](const FilesByPath& files, int64_t most_checked_bytes) {
    const auto disk = DiskOf(files);
    StoreReport found;
    auto opened =
        SessionStore::Open(*disk, kPlace, {.most_checked_bytes = most_checked_bytes}, found);
    ASSERT_TRUE(opened.ok()) << opened.status();
    std::vector<uint64_t> missing;
    for (int i = 0; i < kSessions; ++i) {
      for (int key = 0; key < kKeys; ++key) {
        const auto request = (*opened)->FindRequest("owner", key_of(i, key));
        if (request.ok() && request->has_value()) continue;
        missing.push_back(sessions[i].id);
        // Where it is found out by reading, it is dealt with at the next commit.
        if (!request.ok()) {
          ASSERT_EQ((*opened)->Apply({CreateSession{NamedSession(**opened, "more")}}),
                    absl::OkStatus());
        }
      }
    }
    for (const uint64_t id : missing) {
      const std::optional<SessionRecord> session = (*opened)->Find(id);
      if (!session.has_value()) {
        EXPECT_TRUE((*opened)->names_in_doubt()) << id;
        continue;
      }
      EXPECT_TRUE(session->doubted_at.has_value()) << session->name << " forgot a key in silence";
    }
    for (const SessionRecord& one : sessions) {
      const auto session = (*opened)->Find(one.id);
      ++(session.has_value() && !session->doubted_at.has_value() ? untouched : in_doubt);
    }
  };
  for (size_t page = 1; page < database.size() / 4096; ++page) {
    for (const int64_t most_checked_bytes : {int64_t{1} << 30, int64_t{0}}) {
      SCOPED_TRACE(absl::StrCat("page ", page, ", ", most_checked_bytes));
      FilesByPath files = drained;
      std::string& bytes = files.at(kDatabaseOfPlace);
      bytes[page * 4096 + 2000] = static_cast<char>(bytes[page * 4096 + 2000] ^ 1);
      look(files, most_checked_bytes);
      bytes = database;
      bytes.replace(page * 4096, 4096, std::string(4096, '\x5a'));
      look(files, most_checked_bytes);
      bytes = database;
      const size_t cells = static_cast<uint8_t>(bytes[page * 4096 + 4]);
      if (cells > 1) bytes[page * 4096 + 4] = static_cast<char>(cells - 1);
      look(files, most_checked_bytes);
    }
  }
  printf("%d are in doubt, %d are not\n", in_doubt, untouched);
  EXPECT_GT(untouched, in_doubt);
}

TEST(DamageTest, SnapshotsNewerThanTheirRowsAreAdopted) {
  Images images = MakeImages();
  images.killed.at(kWalOfPlace).resize(images.killed.at(kWalOfPlace).size() / 3);
  const auto disk = DiskOf(images.killed);
  int64_t newest = 0;
  for (const bool again : {false, true}) {
    StoreReport report;
    auto store = SessionStore::Open(*disk, kPlace, {}, report);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_EQ(report.damage.empty(), again);
    EXPECT_TRUE((*store)->names_in_doubt());
    newest = 0;
    for (const SessionRecord& one : (*store)->List("owner", "", {}, 100)) {
      EXPECT_TRUE(one.doubted_at.has_value()) << one.name;
      newest += one.fed_tokens == 4 * kManyTurns ? 1 : 0;
      const auto snapshots = (*store)->ReadSnapshots(one.id);
      ASSERT_TRUE(snapshots.ok());
      for (const SnapshotRecord& snapshot : *snapshots) {
        EXPECT_TRUE(SlabReader::Open(*disk, (*store)->SnapshotPath(snapshot.id)).ok());
      }
      EXPECT_TRUE((*store)->ReadTurns(one.id, one.first_turn, 100).ok());
    }
    EXPECT_EQ(newest, 8) << "those that had one of their last turn";
    ExpectAllSlabs(images.killed, *disk);
  }
  // Whoever feeds it knows.
  StoreReport report;
  auto store = SessionStore::Open(*disk, kPlace, {}, report);
  const SessionRecord one = (*store)->List("owner", "", {}, 1).at(0);
  ASSERT_EQ((*store)->Apply({TurnOf(one.id, TokenTurn(one.fed_tokens, {1}))}), absl::OkStatus());
  EXPECT_FALSE((*store)->Find(one.id)->doubted_at.has_value());
  store->reset();
  store = SessionStore::Open(*disk, kPlace, {}, report);
  EXPECT_FALSE((*store)->Find(one.id)->doubted_at.has_value());
}

TEST(DamageTest, APowerLossWhileItIsMendedLosesNothingMore) {
  Images images = MakeImages();
  images.killed.at(kWalOfPlace).resize(images.killed.at(kWalOfPlace).size() / 3);
  const auto disk = DiskOf(images.killed);
  int looked_at = 0;
  uint64_t seed = 0;
  disk->before_change = [&] {
    const auto image = disk->CrashImage(++seed);
    StoreReport report;
    const auto store = SessionStore::Open(*image, kPlace, {}, report);
    ASSERT_TRUE(store.ok()) << seed << store.status();
    ++looked_at;
    int newest = 0;
    for (const SessionRecord& one : (*store)->List("owner", "", {}, 100)) {
      EXPECT_TRUE(one.doubted_at.has_value()) << seed << " " << one.name;
      newest += one.fed_tokens == 4 * kManyTurns ? 1 : 0;
    }
    EXPECT_EQ(newest, 8) << seed;
    EXPECT_TRUE((*store)->names_in_doubt()) << seed;
    ExpectAllSlabs(images.killed, *image);
  };
  StoreReport report;
  auto store = SessionStore::Open(*disk, kPlace, {}, report);
  disk->before_change = nullptr;
  EXPECT_GT(looked_at, 10);
}

TEST(DamageTest, WhatNobodyKnowsIsSetAsideAfterDamageAndRemovedWithoutIt) {
  for (const bool damaged : {false, true}) {
    Images images = MakeImages();
    const auto whole = DiskOf(images.drained);
    StoreReport report;
    auto store = SessionStore::Open(*whole, kPlace, {}, report);
    // Another session of a name that is taken.
    SessionRecord other = NamedSession(**store, NameOf(0));
    const SnapshotRecord snapshot = {(*store)->NewId(), 4, 1, 100};
    ASSERT_EQ(WriteSlab(*whole, **store, other, snapshot), absl::OkStatus());
    const std::string path = (*store)->SnapshotPath(snapshot.id);
    store->reset();
    FilesByPath files = whole->AllFiles();
    if (damaged) files.erase(kDatabaseOfPlace);
    const auto disk = DiskOf(files);
    store = SessionStore::Open(*disk, kPlace, {}, report);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_FALSE(disk->AllFiles().contains(path));
    EXPECT_EQ(disk->AllFiles().contains(path + ".damaged"), damaged);
    store->reset();
  }
}

}  // namespace
}  // namespace mneme
