#include "server/config/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace mneme {
namespace {

using ::testing::_;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(EnvironmentTest, VariablesThatNobodyReadsAreFoundWithTheirNearest) {
  const std::vector<const char*> environment = {"MNEME_STATE_MEMROY=8GiB",
                                                "MNEME_STATE_MEMORY=8GiB",
                                                "MNEME_MAX_BATCH=3",
                                                "MNEME_PORT=8000",
                                                "MNEME_=",
                                                "MNEME_CONFIG=file",
                                                "mneme_model=x",
                                                "PATH=/bin",
                                                "MNEME_QUUX=MNEME_HOST=1",
                                                "MNEME_MODEL"};
  std::map<std::string, std::string> found;
  for (const UnknownVariable& variable : UnknownVariables(environment)) {
    found[variable.name] = variable.nearest;
  }
  EXPECT_THAT(found, UnorderedElementsAre(Pair("MNEME_STATE_MEMROY", "MNEME_STATE_MEMORY"),
                                          Pair("MNEME_MAX_BATCH", "MNEME_MAX_NUM_SEQS"),
                                          Pair("MNEME_PORT", "MNEME_HTTP_PORT"), Pair("MNEME_", _),
                                          Pair("MNEME_QUUX", _)));
}

TEST(EnvironmentTest, VariablesOfClientsAndOfKubernetesAreNoMistakes) {
  const std::vector<const char*> environment = {
      "MNEME_SERVER=h:1",
      "MNEME_API_KEY=k",
      "MNEME_TIMEOUT=3s",
      "MNEME_TLS_CA=f",
      "MNEME_TLS_CERT=f",
      "MNEME_TLS_KEY=f",
      "MNEME_TLS_SERVER_NAME=n",
      "MNEME_SERVICE_HOST=10.0.0.1",
      "MNEME_SERVICE_PORT=50051",
      "MNEME_SERVICE_PORT_GRPC=50051",
      "MNEME_PORT=tcp://10.0.0.1:50051",
      "MNEME_PORT_50051_TCP=tcp://10.0.0.1:50051",
      "MNEME_PORT_50051_TCP_PROTO=tcp",
      "MNEME_PORT_50051_TCP_PORT=50051",
      "MNEME_PORT_50051_TCP_ADDR=10.0.0.1",
      "MNEME_BLUE_SERVICE_HOST=10.0.0.2",
      "MNEME_BLUE_PORT=tcp://10.0.0.2:8000",
  };
  EXPECT_THAT(UnknownVariables(environment), IsEmpty());
}

}  // namespace
}  // namespace mneme
