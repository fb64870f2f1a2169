// The bytes of one connection: plain TCP, or whatever is wrapped around it.
#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace mneme {

// All methods are called, and all callbacks run, on the executor of the socket, which is a strand.
// One read and one write may be under way at once. Close() ends both with an error; a stream may
// be destroyed when their callbacks have run.
class ByteStream {
 public:
  using Done = std::function<void(boost::system::error_code)>;
  using ReadDone = std::function<void(boost::system::error_code, size_t bytes)>;

  virtual ~ByteStream() = default;
  // Before all else.
  virtual void Handshake(Done done) = 0;
  virtual void ReadSome(boost::asio::mutable_buffer buffer, ReadDone done) = 0;
  // All of it.
  virtual void Write(boost::asio::const_buffer data, Done done) = 0;
  // Tells the client that nothing more comes; it may still send.
  virtual void CloseSend(Done done) = 0;
  virtual void Close() = 0;
  // The name in the client's certificate, after the handshake; empty without one.
  virtual std::string PeerIdentity() const { return ""; }
};

// Makes a stream of an accepted connection. Thread-safe.
class ByteStreamFactory {
 public:
  virtual ~ByteStreamFactory() = default;
  virtual std::unique_ptr<ByteStream> Wrap(boost::asio::ip::tcp::socket socket) = 0;
};

// Plain TCP.
std::unique_ptr<ByteStream> MakeTcpStream(boost::asio::ip::tcp::socket socket);

}  // namespace mneme
