// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// The version of these headers. It follows semantic versioning; before 1.0, a new minor version
/// may also change or remove parts of the interface.
/// @{
// NOLINTBEGIN(modernize-macro-to-enum): the preprocessor compares them.
#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 3
#define HEED_VERSION_PATCH 0
// NOLINTEND(modernize-macro-to-enum)
/// @}
