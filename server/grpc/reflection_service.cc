#include "server/grpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace mneme {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

void SetNotFound(absl::string_view what, ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response.mutable_error_response()->set_error_message(absl::StrCat(what, " not found"));
}

// The file and all that it imports, each once.
void AddFiles(const FileDescriptor* file, std::set<const FileDescriptor*>& seen,
              ServerReflectionResponse& response) {
  if (!seen.insert(file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file->dependency_count(); ++i) AddFiles(file->dependency(i), seen, response);
}

void SetFile(const FileDescriptor* file, absl::string_view what,
             ServerReflectionResponse& response) {
  if (file == nullptr) return SetNotFound(what, response);
  std::set<const FileDescriptor*> seen;
  AddFiles(file, seen, response);
}

}  // namespace

ServerReflectionResponse Reflect(const ServerReflectionRequest& request,
                                 const std::set<std::string>& services) {
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const DescriptorPool* pool = DescriptorPool::generated_pool();
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      SetFile(pool->FindFileByName(request.file_by_filename()), request.file_by_filename(),
              response);
      break;
    case ServerReflectionRequest::kFileContainingSymbol:
      SetFile(pool->FindFileContainingSymbol(request.file_containing_symbol()),
              request.file_containing_symbol(), response);
      break;
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& wanted = request.file_containing_extension();
      const auto* type = pool->FindMessageTypeByName(wanted.containing_type());
      const FieldDescriptor* field =
          type == nullptr ? nullptr : pool->FindExtensionByNumber(type, wanted.extension_number());
      SetFile(
          field == nullptr ? nullptr : field->file(),
          absl::StrCat("extension ", wanted.extension_number(), " of ", wanted.containing_type()),
          response);
      break;
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType: {
      const auto* type = pool->FindMessageTypeByName(request.all_extension_numbers_of_type());
      if (type == nullptr) {
        SetNotFound(request.all_extension_numbers_of_type(), response);
        break;
      }
      std::vector<const FieldDescriptor*> extensions;
      pool->FindAllExtensions(type, &extensions);
      auto& numbers = *response.mutable_all_extension_numbers_response();
      numbers.set_base_type_name(type->full_name());
      for (const FieldDescriptor* extension : extensions) {
        numbers.add_extension_number(extension->number());
      }
      break;
    }
    case ServerReflectionRequest::kListServices:
      for (const std::string& service : services) {
        response.mutable_list_services_response()->add_service()->set_name(service);
      }
      break;
    default:
      response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response.mutable_error_response()->set_error_message("the request asks for nothing known");
  }
  return response;
}

void ReflectionStream::OnReadDone(bool ok) {
  if (!ok) return Finish(grpc::Status::OK);  // the client has no more questions, or left
  response_ = Reflect(request_, services_);
  StartWrite(&response_);
}

void ReflectionStream::OnWriteDone(bool ok) {
  if (!ok) return Finish(grpc::Status::CANCELLED);
  StartRead(&request_);
}

}  // namespace mneme
