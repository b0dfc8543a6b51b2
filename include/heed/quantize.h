// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>
#include <heed/export.h>

#include <tuple>

namespace heed {

/// Keys or values as int8, with a scale for each head and token: a quarter of float32's memory.
///
/// @code
/// auto key = torch::randn({1, 2, 100, 64}), value = torch::randn({1, 2, 100, 64});
/// auto [keys, key_scales] = heed::quantize_int8(key);
/// auto [values, value_scales] = heed::quantize_int8(value);
/// auto output =
///     heed::attend(torch::randn({1, 8, 1, 64}), keys, values,
///                  heed::AttendOptions().key_scales(key_scales).value_scales(value_scales));
/// @endcode
///
/// scale * int8 differs from a number by at most half the scale, which is 1/127 of the largest
/// magnitude among the D. Where that is not finite, the scale is NaN.
///
/// Shapes:
///   heads      [.., D]  floating; gradients do not pass
///   returns    int8 [.., D] and float32 [..], which AttendOptions takes
/// Throws c10::ValueError when heads have no dim, or a dtype that is not floating.
HEED_API std::tuple<at::Tensor, at::Tensor> quantize_int8(const at::Tensor& heads);

}  // namespace heed
