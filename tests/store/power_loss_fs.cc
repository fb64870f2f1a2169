#include "tests/store/power_loss_fs.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace mneme {
namespace {

constexpr size_t kSector = 512;

std::string FolderOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
}

}  // namespace

class PowerLossFileSystem::OpenFile final : public File {
 public:
  OpenFile(PowerLossFileSystem& files, std::shared_ptr<Inode> inode)
      : files_(files), inode_(std::move(inode)) {}

  absl::StatusOr<size_t> Read(int64_t offset, std::span<std::byte> bytes) override {
    absl::MutexLock lock(&files_.mu_);
    const size_t begin = std::min(static_cast<size_t>(offset), inode_->bytes.size());
    const size_t count = std::min(bytes.size(), inode_->bytes.size() - begin);
    if (count > 0) std::memcpy(bytes.data(), inode_->bytes.data() + begin, count);
    return count;
  }
  absl::Status Write(int64_t offset, std::span<const std::byte> bytes) override {
    return Add({offset, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
  }
  absl::StatusOr<int64_t> Size() override {
    absl::MutexLock lock(&files_.mu_);
    return static_cast<int64_t>(inode_->bytes.size());
  }
  absl::Status Truncate(int64_t size) override { return Add({size, std::nullopt}); }
  absl::Status Sync(SyncSite site) override {
    files_.Announce();
    absl::MutexLock lock(&files_.mu_);
    const bool fails = files_.syncs_until_failure_-- == 0;
    if (!fails && !files_.Synced(site)) return absl::OkStatus();
    size_t number = 0;
    for (const Operation& operation : inode_->pending) {
      if (!fails || ++number % 2 == 0) Perform(inode_->durable, operation);
    }
    inode_->pending.clear();
    return fails ? absl::UnavailableError("fdatasync: Input/output error") : absl::OkStatus();
  }
  absl::Status CheckPlace() override {
    absl::MutexLock lock(&files_.mu_);
    const bool is_there = std::any_of(files_.entries_.begin(), files_.entries_.end(),
                                      [&](const auto& entry) { return entry.second == inode_; });
    return is_there ? absl::OkStatus() : absl::UnavailableError("the file is gone");
  }

 private:
  absl::Status Add(Operation operation) {
    files_.Announce();
    absl::MutexLock lock(&files_.mu_);
    Perform(inode_->bytes, operation);
    inode_->pending.push_back(std::move(operation));
    return absl::OkStatus();
  }

  PowerLossFileSystem& files_;
  const std::shared_ptr<Inode> inode_;
};

void PowerLossFileSystem::Perform(std::string& bytes, const Operation& operation) {
  const size_t offset = static_cast<size_t>(operation.offset);
  if (!operation.bytes.has_value()) {
    bytes.resize(offset);
    return;
  }
  bytes.resize(std::max(bytes.size(), offset + operation.bytes->size()));
  std::copy(operation.bytes->begin(), operation.bytes->end(),
            bytes.begin() + static_cast<ptrdiff_t>(offset));
}

void PowerLossFileSystem::Change(Entries& entries, const EntryChange& change) {
  if (!change.renamed_from.empty()) entries.erase(change.renamed_from);
  if (change.inode == nullptr) {
    entries.erase(change.path);
  } else {
    entries[change.path] = change.inode;
  }
}

bool PowerLossFileSystem::Synced(SyncSite site) {
  const std::string name =
      absl::StrCat(std::filesystem::path(site.file).filename().string(), ":", site.line);
  if (std::find(sites_.begin(), sites_.end(), name) == sites_.end()) sites_.push_back(name);
  return name != ignored_site_;
}

std::vector<std::string> PowerLossFileSystem::sync_sites() const {
  absl::MutexLock lock(&mu_);
  return sites_;
}

absl::StatusOr<std::unique_ptr<File>> PowerLossFileSystem::Open(const std::string& path,
                                                                OpenMode mode) {
  const bool may_create = mode == OpenMode::kCreate || mode == OpenMode::kOpenOrCreate;
  if (may_create) Announce();
  absl::MutexLock lock(&mu_);
  auto found = entries_.find(path);
  if (found == entries_.end()) {
    if (!may_create) return absl::NotFoundError(absl::StrCat("open ", path));
    const EntryChange change = {path, std::make_shared<Inode>(), ""};
    Change(entries_, change);
    pending_.push_back(change);
    found = entries_.find(path);
  } else if (mode == OpenMode::kCreate) {
    return absl::AlreadyExistsError(absl::StrCat("create ", path));
  }
  return std::make_unique<OpenFile>(*this, found->second);
}

absl::Status PowerLossFileSystem::CreateDirectory(const std::string& path) {
  Announce();
  absl::MutexLock lock(&mu_);
  if (folders_.insert(path).second) pending_folders_.insert(path);
  return absl::OkStatus();
}

absl::Status PowerLossFileSystem::Rename(const std::string& from, const std::string& to) {
  Announce();
  absl::MutexLock lock(&mu_);
  const auto found = entries_.find(from);
  if (found == entries_.end()) return absl::NotFoundError(absl::StrCat("rename ", from));
  const EntryChange change = {to, found->second, from};
  Change(entries_, change);
  pending_.push_back(change);
  return absl::OkStatus();
}

absl::Status PowerLossFileSystem::Remove(const std::string& path) {
  Announce();
  absl::MutexLock lock(&mu_);
  if (!entries_.contains(path)) return absl::NotFoundError(absl::StrCat("remove ", path));
  const EntryChange change = {path, nullptr, ""};
  Change(entries_, change);
  pending_.push_back(change);
  return absl::OkStatus();
}

absl::Status PowerLossFileSystem::SyncDirectory(const std::string& path, SyncSite site) {
  Announce();
  absl::MutexLock lock(&mu_);
  if (!Synced(site)) return absl::OkStatus();
  std::erase_if(pending_folders_, [&](const std::string& one) { return FolderOf(one) == path; });
  std::vector<EntryChange> left;
  for (EntryChange& change : pending_) {
    if (FolderOf(change.path) == path) {
      Change(durable_, change);
    } else {
      left.push_back(std::move(change));
    }
  }
  pending_ = std::move(left);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> PowerLossFileSystem::List(const std::string& path) {
  absl::MutexLock lock(&mu_);
  if (!folders_.contains(path)) return absl::NotFoundError(absl::StrCat("list ", path));
  std::vector<std::string> names;
  for (const auto& [file, inode] : entries_) {
    if (FolderOf(file) == path) names.push_back(file.substr(path.size() + 1));
  }
  for (const std::string& folder : folders_) {
    if (FolderOf(folder) == path) names.push_back(folder.substr(path.size() + 1));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<bool> PowerLossFileSystem::Exists(const std::string& path) {
  absl::MutexLock lock(&mu_);
  return entries_.contains(path) || folders_.contains(path);
}

absl::StatusOr<std::unique_ptr<FileLock>> PowerLossFileSystem::Lock(const std::string&) {
  return std::make_unique<FileLock>();
}

absl::StatusOr<int64_t> PowerLossFileSystem::FreeBytes(const std::string&) {
  return int64_t{1} << 40;
}

std::map<std::string, std::string> PowerLossFileSystem::AllFiles() const {
  absl::MutexLock lock(&mu_);
  std::map<std::string, std::string> all;
  for (const auto& [path, inode] : entries_) all[path] = inode->bytes;
  return all;
}

std::unique_ptr<PowerLossFileSystem> PowerLossFileSystem::KillImage() const {
  auto image = std::make_unique<PowerLossFileSystem>();
  absl::MutexLock lock(&mu_);
  absl::MutexLock image_lock(&image->mu_);
  std::map<const Inode*, std::shared_ptr<Inode>> copies;
  const auto copy_of = [&copies](const std::shared_ptr<Inode>& inode) {
    std::shared_ptr<Inode>& copy = copies[inode.get()];
    if (inode != nullptr && copy == nullptr) copy = std::make_shared<Inode>(*inode);
    return copy;
  };
  for (const auto& [path, inode] : entries_) image->entries_[path] = copy_of(inode);
  for (const auto& [path, inode] : durable_) image->durable_[path] = copy_of(inode);
  for (const EntryChange& change : pending_) {
    image->pending_.push_back({change.path, copy_of(change.inode), change.renamed_from});
  }
  image->folders_ = folders_;
  image->pending_folders_ = pending_folders_;
  image->ignored_site_ = ignored_site_;
  return image;
}

std::unique_ptr<PowerLossFileSystem> PowerLossFileSystem::CrashImage(uint64_t seed) const {
  std::mt19937_64 random(seed);
  const auto one_in = [&random](uint64_t n) { return random() % n == 0; };
  // Some images lose everything, or nothing; most something.
  const uint64_t mood = random() % 4;
  const auto survives = [&] { return mood == 0 ? false : mood == 1 ? true : one_in(2); };

  auto image = std::make_unique<PowerLossFileSystem>();
  absl::MutexLock lock(&mu_);
  Entries entries = durable_;
  for (const EntryChange& change : pending_) {
    if (survives()) Change(entries, change);
  }
  std::map<const Inode*, std::shared_ptr<Inode>> copies;
  absl::MutexLock image_lock(&image->mu_);
  image->folders_ = folders_;
  for (const std::string& folder : pending_folders_) {
    if (survives()) continue;
    std::erase_if(image->folders_, [&](const std::string& one) { return one.starts_with(folder); });
    std::erase_if(entries, [&](const auto& one) { return one.first.starts_with(folder + "/"); });
  }
  for (const auto& [path, inode] : entries) {
    std::shared_ptr<Inode>& copy = copies[inode.get()];
    if (copy == nullptr) {
      copy = std::make_shared<Inode>();
      copy->bytes = inode->durable;
      for (const Operation& operation : inode->pending) {
        const bool whole = survives();
        if (whole && (mood == 1 || !operation.bytes.has_value() || !one_in(4))) {
          Perform(copy->bytes, operation);
          continue;
        }
        if (!operation.bytes.has_value() || mood == 0) continue;
        if (one_in(3)) {  // the file grew, and its bytes never came
          const size_t before = copy->bytes.size();
          const size_t end = static_cast<size_t>(operation.offset) + operation.bytes->size();
          copy->bytes.resize(std::max(before, end), one_in(2) ? '\0' : '\xA5');
        } else if (one_in(2)) {  // to some byte
          Perform(copy->bytes,
                  {operation.offset,
                   operation.bytes->substr(0, random() % (operation.bytes->size() + 1))});
        } else {  // in some sectors
          const absl::string_view bytes = *operation.bytes;
          for (size_t begin = 0; begin < bytes.size();) {
            const size_t at = static_cast<size_t>(operation.offset) + begin;
            const size_t count = std::min(bytes.size() - begin, kSector - at % kSector);
            if (one_in(2)) {
              Perform(copy->bytes,
                      {static_cast<int64_t>(at), std::string(bytes.substr(begin, count))});
            }
            begin += count;
          }
        }
      }
      copy->durable = copy->bytes;
    }
    image->entries_[path] = copy;
  }
  image->durable_ = image->entries_;
  return image;
}

}  // namespace mneme
