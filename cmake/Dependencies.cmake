# Every package the project uses, found here and nowhere else, and given one name: mneme_deps::<name>
# (Abseil keeps its own, absl::<name>). Distributions differ in whether they ship a CMake package, a
# find module or a pkg-config file; the rest of the build need not know. Nothing is downloaded.
#
#   required   threads protobuf protoc grpc grpc_reflection grpc_cpp_plugin openssl json prometheus
#              asio (Boost.Asio and Beast) sqlite zstd
#   tests      gtest (gmock, gtest and gtest's main)
#   optional   sentencepiece png zlib dnnl: ask with if(TARGET mneme_deps::<name>)
#
# Imported targets are SYSTEM, so their headers raise no warnings.

# Gives target `original` the name mneme_deps::<name>.
function(mneme_dependency name original)
  add_library(mneme_deps_${name} INTERFACE IMPORTED GLOBAL)
  target_link_libraries(mneme_deps_${name} INTERFACE ${original})
  add_library(mneme_deps::${name} ALIAS mneme_deps_${name})
endfunction()

find_package(PkgConfig REQUIRED)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
mneme_dependency(threads Threads::Threads)

find_package(absl REQUIRED)

find_package(Protobuf REQUIRED)
mneme_dependency(protobuf protobuf::libprotobuf)
add_executable(mneme_deps::protoc ALIAS protobuf::protoc)

# Found by library name: resolving grpc++.pc with its ninety Abseil requirements takes pkg-config 12 s.
find_path(MNEME_GRPC_INCLUDE_DIR grpcpp/grpcpp.h REQUIRED)
foreach(library grpc++ grpc gpr grpc++_reflection)
  find_library(MNEME_LIBRARY_${library} ${library} REQUIRED)
endforeach()
add_library(mneme_grpc INTERFACE IMPORTED GLOBAL)
target_include_directories(mneme_grpc INTERFACE ${MNEME_GRPC_INCLUDE_DIR})
target_link_libraries(mneme_grpc INTERFACE ${MNEME_LIBRARY_grpc++} ${MNEME_LIBRARY_grpc}
                      ${MNEME_LIBRARY_gpr} absl::strings absl::synchronization protobuf::libprotobuf)
mneme_dependency(grpc mneme_grpc)
mneme_dependency(grpc_reflection "${MNEME_LIBRARY_grpc++_reflection};mneme_grpc")
find_program(MNEME_GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
add_executable(mneme_deps::grpc_cpp_plugin IMPORTED GLOBAL)
set_target_properties(mneme_deps::grpc_cpp_plugin PROPERTIES IMPORTED_LOCATION
                      ${MNEME_GRPC_CPP_PLUGIN})

find_package(OpenSSL 3 REQUIRED)
mneme_dependency(openssl "OpenSSL::SSL;OpenSSL::Crypto")

find_package(nlohmann_json 3.10 REQUIRED)
mneme_dependency(json nlohmann_json::nlohmann_json)

# The data model and the text format; its HTTP server is not linked.
find_package(prometheus-cpp CONFIG REQUIRED)
mneme_dependency(prometheus prometheus-cpp::core)

# Headers only. 1.74 has Asio's any_io_executor and Beast's parser as they are used here.
find_package(Boost 1.74 REQUIRED)
mneme_dependency(asio Boost::headers)
if("thread" IN_LIST MNEME_SANITIZE)
  # The sanitizer does not know fences, and GCC warns of each. What Asio orders by them, its mutexes
  # order, too.
  target_compile_definitions(mneme_deps_asio INTERFACE BOOST_ASIO_DISABLE_FENCED_BLOCK)
endif()

# The store's catalogue, and what its snapshots are packed with. 3.40 is Debian 12's, whose WAL and
# secure_delete the store's tests hold to account.
find_package(SQLite3 3.40 REQUIRED)
mneme_dependency(sqlite SQLite::SQLite3)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET GLOBAL libzstd)
mneme_dependency(zstd PkgConfig::ZSTD)

if(MNEME_TESTS)
  find_package(GTest REQUIRED)
  mneme_dependency(gtest "GTest::gmock;GTest::gtest;GTest::gtest_main")
endif()

# Only the tokenizer's shim library may link it: its bundled protobuf must not meet ours.
pkg_check_modules(SENTENCEPIECE IMPORTED_TARGET GLOBAL sentencepiece)
if(SENTENCEPIECE_FOUND)
  mneme_dependency(sentencepiece PkgConfig::SENTENCEPIECE)
endif()

find_package(ZLIB QUIET)
if(ZLIB_FOUND)
  mneme_dependency(zlib ZLIB::ZLIB)
endif()

find_package(PNG QUIET)
if(PNG_FOUND)
  mneme_dependency(png PNG::PNG)
endif()

if(MNEME_BENCH)
  find_package(dnnl CONFIG QUIET)
  if(dnnl_FOUND)
    mneme_dependency(dnnl DNNL::dnnl)
  endif()
endif()
