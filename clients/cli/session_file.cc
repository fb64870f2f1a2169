#include "clients/cli/session_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/human_bytes.h"
#include "base/status_macros.h"
#include "clients/cli/command.h"
#include "clients/cli/new_file.h"
#include "clients/cli/session_lines.h"

namespace mneme::cli {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

constexpr absl::string_view kStandardStream = "-";

absl::Status WriteToStandardOutput(Client& client, const std::string& name) {
  if (isatty(STDOUT_FILENO) != 0) {
    return absl::InvalidArgumentError(
        "standard output is a terminal, expected a file or a pipe for a session's bytes");
  }
  return client.ExportSession(name, [](const v1::ExportSessionResponse& response) {
    WriteOut(response.data());
    return absl::OkStatus();
  });
}

// Returns the bytes written.
absl::StatusOr<int64_t> WriteFile(Client& client, const std::string& name, const std::string& path,
                                  bool force) {
  MNEME_ASSIGN_OR_RETURN(const std::unique_ptr<NewFile> file, NewFile::Create(path, force));
  int64_t bytes = 0;
  MNEME_RETURN_IF_ERROR(client.ExportSession(name, [&](const v1::ExportSessionResponse& response) {
    bytes += static_cast<int64_t>(response.data().size());
    return file->Write(response.data());
  }));
  MNEME_RETURN_IF_ERROR(file->Finish());
  return bytes;
}

// Its size, or 0 of a pipe, whose end nobody knows. INVALID_ARGUMENT for what holds no session.
absl::StatusOr<int64_t> SizeOf(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status facts = std::filesystem::status(path, error);
  if (facts.type() == std::filesystem::file_type::fifo) return 0;
  if (!error && std::filesystem::exists(facts) && !std::filesystem::is_regular_file(facts)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no session's file: it is ",
                     std::filesystem::is_directory(facts) ? "a folder" : "a device",
                     ", expected what mneme session export wrote, or a pipe that brings it"));
  }
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot read ", path));
  return bytes;
}

absl::StatusOr<v1::ImportSessionResponse> SendFile(Client& client, const std::string& given,
                                                   const std::string& name, int64_t ttl_ms) {
  const std::string path = given == kStandardStream ? "/dev/stdin" : given;
  const auto unreadable = [&path](int error) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot read ", path));
  };
  MNEME_ASSIGN_OR_RETURN(const int64_t bytes, SizeOf(path));
  std::ifstream file(path, std::ios::binary);
  if (!file) return unreadable(errno);
  v1::ImportSessionRequest first;
  first.set_name(name);
  first.set_ttl_ms(ttl_ms);
  first.set_file_bytes(bytes);
  return client.ImportSession(std::move(first), [&]() -> absl::StatusOr<std::string> {
    std::string piece(kPieceBytes, '\0');
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    if (file.bad()) return unreadable(errno);
    piece.resize(static_cast<size_t>(file.gcount()));
    return piece;
  });
}

}  // namespace

int ExportSession(Client& client, const std::string& name, const std::string& path, bool force,
                  bool json) {
  if (path == kStandardStream) {
    const absl::Status written = WriteToStandardOutput(client, name);
    return written.ok() ? kOk : ReportError(written);
  }
  const absl::StatusOr<int64_t> bytes = WriteFile(client, name, path, force);
  if (!bytes.ok()) return ReportError(bytes.status());
  if (!json) absl::PrintF("session %s is in %s, %s\n", name, path, HumanBytes(*bytes));
  return kOk;
}

int ImportSession(Client& client, const std::string& path, const std::string& name, int64_t ttl_ms,
                  bool json) {
  const absl::StatusOr<v1::ImportSessionResponse> imported = SendFile(client, path, name, ttl_ms);
  if (!imported.ok()) return ReportError(imported.status());
  if (json) {
    WriteOut(absl::StrCat(ToJson(*imported), "\n"));
    return kOk;
  }
  PrintSessionHeader(/*owners=*/false);
  PrintSession(imported->session(), /*json=*/false, /*owners=*/false);
  if (imported->rounded_tensors() > 0) {
    absl::PrintF("its state was kept as %s and is now as %s: %d tensors were rounded\n",
                 imported->file_state_dtype(), imported->state_dtype(),
                 imported->rounded_tensors());
  }
  if (imported->file_engram_capacity() != imported->engram_capacity()) {
    absl::PrintF("it had room for %d engrams and now has room for %d: all that it holds fit\n",
                 imported->file_engram_capacity(), imported->engram_capacity());
  }
  return kOk;
}

}  // namespace mneme::cli
