#include <gtest/gtest.h>

#include "support/every_module.h"
#include "support/good_module.h"

namespace heed::test {
namespace {

TEST(EveryModule, IsAGoodModule) {
  torch::manual_seed(4);
  every_module::visit_modules(
      [](const auto&... arguments) { expect_is_a_good_module(arguments...); });
}

}  // namespace
}  // namespace heed::test
