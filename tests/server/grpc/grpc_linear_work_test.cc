// Messages that were made to cost much: twice the message costs twice the work, from its bytes to
// the tokens of its prompt, as with bodies of HTTP (linear_work_test.cc). Work is counted, not
// timed.
#include <gmock/gmock.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "mneme/v1/inference.pb.h"
#include "server/chat/chat_prompt.h"
#include "server/chat/chat_template.h"
#include "server/grpc/chat_conversion.h"
#include "server/grpc/raw_messages.h"
#include "server/requests/request_conversion.h"
#include "tests/server/fake_engine.h"
#include "tests/support/allocation_counts.h"

namespace mneme {
namespace {

using ::testing::HasSubstr;

constexpr char kGrpcTemplate[] =
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% for m in messages %}[{{ m.role }}] {{ m.content | trim }}{% endfor %}";

std::string RepeatedBytes(int count, const std::string& bytes) {
  std::string all;
  for (int i = 0; i < count; ++i) all += bytes;
  return all;
}

template <typename Message>
std::string Bytes(const std::function<void(Message&)>& fill) {
  Message message;
  fill(message);
  return message.SerializeAsString();
}

std::string Messages(int count, const std::string& role, const std::string& content) {
  return Bytes<v1::ChatRequest>([&](v1::ChatRequest& request) {
    for (int i = 0; i < count; ++i) {
      v1::ChatMessage& message = *request.add_messages();
      message.set_role(role);
      message.set_content(content);
    }
  });
}

std::string Argument(const std::function<void(google::protobuf::Value&)>& fill) {
  return Bytes<v1::ChatRequest>([&](v1::ChatRequest& request) {
    request.add_messages()->set_role("user");
    fill((*request.mutable_template_arguments()->mutable_fields())["tools"]);
  });
}

// A text or a message as the wire has it.
std::string Field(int number, const std::string& bytes) {
  std::string field(1, static_cast<char>((number << 3) | 2));
  size_t size = bytes.size();
  for (; size >= 128; size >>= 7) field += static_cast<char>((size & 127) | 128);
  field += static_cast<char>(size);
  return field + bytes;
}

struct HostileMessage {
  std::string name;
  int size;
  bool is_chat;
  std::function<std::string(int)> bytes;
};

std::vector<HostileMessage> Hostiles() {
  return {
      {"messages", 1000, true, [](int n) { return Messages(n, "user", "hello"); }},
      {"empty messages", 1000, true, [](int n) { return RepeatedBytes(n, Field(3, "")); }},
      {"a long text", 100000, true, [](int n) { return Messages(1, "user", std::string(n, 'a')); }},
      {"empty values", 1000, true,
       [](int n) {
         return Argument([n](google::protobuf::Value& value) {
           for (int i = 0; i < n; ++i) value.mutable_list_value()->add_values();
         });
       }},
      {"objects", 1000, true,
       [](int n) {
         return Argument([n](google::protobuf::Value& value) {
           for (int i = 0; i < n; ++i) {
             (*value.mutable_list_value()
                   ->add_values()
                   ->mutable_struct_value()
                   ->mutable_fields())["a"]
                 .set_number_value(i);
           }
         });
       }},
      {"the same message again", 1000, true,
       [](int n) { return Messages(1, "user", "") + RepeatedBytes(n, Field(5, "")); }},
      {"unknown fields", 10000, true,
       [](int n) { return Messages(1, "user", "") + RepeatedBytes(n, Field(15, "")); }},
      {"token ids", 50000, false,
       [](int n) {
         return Bytes<v1::GenerateRequest>([n](v1::GenerateRequest& request) {
           for (int i = 0; i < n; ++i) request.mutable_token_ids()->add_ids(7);
         });
       }},
      {"stop strings", 2000, false,
       [](int n) {
         return Bytes<v1::GenerateRequest>([n](v1::GenerateRequest& request) {
           request.set_text("a");
           for (int i = 0; i < n; ++i) request.mutable_stopping()->add_stop_strings("a");
         });
       }},
      {"biases", 1000, false,
       [](int n) {
         return Bytes<v1::GenerateRequest>([n](v1::GenerateRequest& request) {
           request.set_text("a");
           for (int i = 0; i < n; ++i) (*request.mutable_sampling()->mutable_logit_bias())[i] = 1;
         });
       }},
  };
}

class GrpcLinearWorkTest : public ::testing::Test {
 protected:
  GrpcLinearWorkTest() {
    facts_.chat_template = *ChatTemplate::Parse(kGrpcTemplate, Json::object());
  }

  absl::Status Convert(const grpc::ByteBuffer& buffer, bool is_chat, WorkMeter& meter) const {
    const CallFacts call = {.request_id = "id"};
    if (is_chat) {
      v1::ChatRequest chat;
      MNEME_RETURN_IF_ERROR(ParseMessage(buffer, chat));
      MNEME_ASSIGN_OR_RETURN(const Conversation conversation, ToConversation(chat, meter));
      return ToChatEngineRequest(ToGenerateRequest(chat), conversation, call, engine_, facts_,
                                 meter)
          .status();
    }
    v1::GenerateRequest generate;
    MNEME_RETURN_IF_ERROR(ParseMessage(buffer, generate));
    return ToEngineRequest(generate, call, engine_, facts_, meter).status();
  }

  struct Work {
    int64_t metered, allocations, bytes;
    absl::Status status;
  };
  Work WorkOf(const std::string& bytes, bool is_chat) const {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer buffer(&slice, 1);
    WorkMeter meter;
    const AllocationCounts before = Allocated();
    const absl::Status status = Convert(buffer, is_chat, meter);
    const AllocationCounts after = Allocated();
    return {meter.done(), after.allocations - before.allocations, after.bytes - before.bytes,
            status};
  }

  FakeEngine engine_;
  ServingFacts facts_;
};

TEST_F(GrpcLinearWorkTest, TwiceTheMessageIsLessThanThreeTimesTheWork) {
  for (const HostileMessage& hostile : Hostiles()) {
    SCOPED_TRACE(hostile.name);
    (void)WorkOf(hostile.bytes(1), hostile.is_chat);  // what is done once
    const std::string bytes = hostile.bytes(hostile.size);
    const Work once = WorkOf(bytes, hostile.is_chat);
    const Work twice = WorkOf(hostile.bytes(2 * hostile.size), hostile.is_chat);
    EXPECT_EQ(once.status.code(), twice.status.code())
        << once.status << "\n"
        << twice.status << "\nso that both do the same";
    EXPECT_LT(twice.metered, 3 * once.metered + 100);
    EXPECT_LT(twice.allocations, 3 * once.allocations + 100);
    EXPECT_LT(twice.bytes, 3 * once.bytes + 10000);
    EXPECT_LT(once.bytes, 2000 * static_cast<int64_t>(bytes.size()) + 100000);
  }
}

// As many as sixteen MiB hold: refused before anything is made of them.
TEST_F(GrpcLinearWorkTest, WhatIsTooMuchIsNeverMade) {
  constexpr int kBytes = 16 << 20;
  const std::string user = Field(1, "user");
  const struct {
    std::string name;
    bool is_chat;
    std::string bytes;
    const char* says;
  } cases[] = {
      {"messages", true, RepeatedBytes(2'000'000, Field(3, user)), "has more than 262144 messages"},
      {"empty messages", true, RepeatedBytes(kBytes / 2, Field(3, "")), "262144 messages"},
      {"unknown fields", true, RepeatedBytes(kBytes / 2, std::string("\x78\x01", 2)),
       "4194304 values"},
      // Behind something that is no message.
      {"hidden messages", true, Field(3, "\xff") + RepeatedBytes(kBytes / 2 - 2, Field(3, "")),
       "262144 messages"},
      {"groups", true, RepeatedBytes(kBytes / 2, "\x7b\x7c"), "262144 messages"},
      {"token ids", false, Field(4, Field(1, std::string(5 << 20, '\x07'))), "4194304 values"},
  };
  for (const auto& [name, is_chat, bytes, says] : cases) {
    SCOPED_TRACE(name);
    (void)WorkOf(bytes, is_chat);  // what is done once: descriptors
    const Work work = WorkOf(bytes, is_chat);
    EXPECT_TRUE(absl::IsInvalidArgument(work.status)) << work.status;
    EXPECT_THAT(work.status.message(), HasSubstr(says));
    EXPECT_LT(work.bytes, 10000);
    EXPECT_EQ(work.metered, 0);
  }
}

}  // namespace
}  // namespace mneme
