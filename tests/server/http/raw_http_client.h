// A client that sends exactly the bytes it is told to, for what well-behaved clients never do.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "server/net/host_address.h"

namespace mneme {

struct RawResponse {
  int status = 0;
  std::string head;  // with its last line break
  std::string body;  // chunks joined

  std::string Field(absl::string_view name) const {
    const std::string lower = absl::AsciiStrToLower(head);
    const size_t at = lower.find(absl::StrCat("\r\n", absl::AsciiStrToLower(name), ": "));
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

// Blocking. A wait of two minutes is a failure, and looks as if nothing more had come.
class RawHttpClient {
 public:
  explicit RawHttpClient(const SocketAddress& address)
      : fd_(socket(address.bytes.ss_family, SOCK_STREAM, 0)) {
    const timeval limit{.tv_sec = 120, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    connected_ = connect(fd_, address.get(), address.size) == 0;
  }
  explicit RawHttpClient(int port) : RawHttpClient(Loopback(port)) {}
  ~RawHttpClient() { Close(); }
  RawHttpClient(const RawHttpClient&) = delete;
  RawHttpClient& operator=(const RawHttpClient&) = delete;

  bool connected() const { return connected_; }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // False once the server has closed.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(sent);
    }
    return true;
  }
  void SendRequest(absl::string_view method, absl::string_view target, absl::string_view body = "",
                   absl::string_view fields = "") {
    const std::string length =
        method == "POST" ? absl::StrCat("Content-Length: ", body.size(), "\r\n") : "";
    EXPECT_TRUE(Send(absl::StrCat(method, " ", target, " HTTP/1.1\r\nHost: test\r\n", length,
                                  fields, "\r\n", body)));
  }

  // Up to and with `end`; what was read is given back, shorter where the connection ended.
  std::string ReadUntil(absl::string_view end) {
    while (!absl::StrContains(in_, end) && Fill()) {
    }
    const size_t at = in_.find(std::string(end));
    return Take(at == std::string::npos ? in_.size() : at + end.size());
  }
  std::string ReadBytes(size_t bytes) {
    while (in_.size() < bytes && Fill()) {
    }
    return Take(std::min(bytes, in_.size()));
  }
  std::string ReadToEnd() {
    while (Fill()) {
    }
    return Take(in_.size());
  }
  // Whether the server has closed, with nothing left to read; waits until it has.
  bool AtEnd() { return in_.empty() && !Fill() && errno != EAGAIN; }

  // `head_only` for the answer to HEAD.
  RawResponse Read(bool head_only = false) {
    RawResponse response;
    response.head = ReadUntil("\r\n\r\n");
    if (response.head.size() > 12) {
      (void)absl::SimpleAtoi(response.head.substr(9, 3), &response.status);
    }
    int64_t length = 0;
    if (head_only || response.status == 100 || response.status == 204) return response;
    if (absl::SimpleAtoi(response.Field("content-length"), &length)) {
      response.body = ReadBytes(length);
    } else if (response.Field("transfer-encoding") == "chunked") {
      while (true) {
        const std::string line = ReadUntil("\r\n");
        const size_t size = strtoul(line.c_str(), nullptr, 16);
        if (size == 0) {
          ReadUntil("\r\n");
          break;
        }
        response.body += ReadBytes(size);
        ReadUntil("\r\n");
      }
    } else {
      response.body = ReadToEnd();
    }
    return response;
  }

 private:
  static SocketAddress Loopback(int port) {
    SocketAddress address = ResolveHost("127.0.0.1")->front();
    address.set_port(port);
    return address;
  }
  bool Fill() {
    char buffer[16384];
    errno = 0;
    const ssize_t bytes = recv(fd_, buffer, sizeof(buffer), 0);
    if (bytes <= 0) return false;
    in_.append(buffer, bytes);
    return true;
  }
  std::string Take(size_t bytes) {
    std::string taken = in_.substr(0, bytes);
    in_.erase(0, bytes);
    return taken;
  }

  int fd_;
  bool connected_ = false;
  std::string in_;
};

}  // namespace mneme
