// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/attend.h>

#include "support/inputs.h"

namespace heed::test {

/// Bool [B, H, L, S]: the keys that queries see, by the definition of each option.
at::Tensor dense_mask(const Inputs& inputs, const AttendOptions& options);

/// A reference's arguments besides inputs and options; see ReferenceInput.
struct ReferenceExtras {
  at::Tensor output_gradient = {}, lse_gradient = {}, kept = {};
};

/// The reference's results, also of the options that it does not know. In their place it is given a
/// dense mask and a dense bias. While autograd is off, it computes no gradients of biases by
/// distance.
ReferenceResult dense_reference(const Inputs& inputs, const AttendOptions& options,
                                const ReferenceExtras& extras = {});

}  // namespace heed::test
