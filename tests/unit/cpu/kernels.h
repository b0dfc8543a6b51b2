// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <gtest/gtest.h>

#include "unit/routes.h"

namespace heed::test {

/// Kernels of the instruction sets that this processor has.
class Kernels : public ::testing::TestWithParam<Route> {
 protected:
  Kernels() : in_force_(GetParam()) {}

 private:
  ScopedRoute in_force_;
};

}  // namespace heed::test
