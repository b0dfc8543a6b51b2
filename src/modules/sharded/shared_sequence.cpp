// SPDX-License-Identifier: BSD-3-Clause
#include <heed/shared_sequence.h>

namespace heed {

SharedSequence::~SharedSequence() = default;

}  // namespace heed
