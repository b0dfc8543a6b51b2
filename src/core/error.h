// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>
#include <fmt/format.h>

/// Throws c10::ValueError with an fmt message, formatted only on failure.
#define HEED_CHECK(condition, ...) TORCH_CHECK_VALUE(condition, fmt::format(__VA_ARGS__))
