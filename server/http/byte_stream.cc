#include "server/http/byte_stream.h"

#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>

namespace mneme {
namespace {

class TcpStream final : public ByteStream {
 public:
  explicit TcpStream(boost::asio::ip::tcp::socket socket) : socket_(std::move(socket)) {}

  void Handshake(Done done) override {
    boost::asio::post(socket_.get_executor(), [done = std::move(done)] { done({}); });
  }
  void ReadSome(boost::asio::mutable_buffer buffer, ReadDone done) override {
    socket_.async_read_some(boost::asio::mutable_buffers_1(buffer), std::move(done));
  }
  void Write(boost::asio::const_buffer data, Done done) override {
    boost::asio::async_write(
        socket_, boost::asio::const_buffers_1(data),
        [done = std::move(done)](boost::system::error_code error, size_t) { done(error); });
  }
  void CloseSend(Done done) override {
    boost::system::error_code error;
    socket_.shutdown(boost::asio::ip::tcp::socket::shutdown_send, error);
    boost::asio::post(socket_.get_executor(), [done = std::move(done), error] { done(error); });
  }
  void Close() override {
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

 private:
  boost::asio::ip::tcp::socket socket_;
};

}  // namespace

std::unique_ptr<ByteStream> MakeTcpStream(boost::asio::ip::tcp::socket socket) {
  return std::make_unique<TcpStream>(std::move(socket));
}

}  // namespace mneme
