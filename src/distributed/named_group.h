// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <heed/distributed/process_group.h>

#include <string>

namespace heed::distributed::detail {

/// A group of the same processes for tensors of `device`, for code of LibTorch that starts
/// all-reduces and broadcasts by itself: their errors name the operation, such as "all-reduce of
/// <subject>", and the rank.
ProcessGroup name_errors(const ProcessGroup& group, at::DeviceType device,
                         const std::string& subject);

}  // namespace heed::distributed::detail
