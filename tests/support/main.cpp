// SPDX-License-Identifier: BSD-3-Clause
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "support/seeds.h"

namespace {

/// A test draws the same numbers alone and after others.
class SeedEachTest : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    torch::manual_seed(heed::test::moved(0));
  }
};

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  ::testing::UnitTest::GetInstance()->listeners().Append(new SeedEachTest);  // which owns it
  return RUN_ALL_TESTS();
}
