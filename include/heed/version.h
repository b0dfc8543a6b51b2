#pragma once

/// The version of these headers. Semantic versioning, but before 1.0 a minor version may break what
/// the one before promised.
/// @{
#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 2
#define HEED_VERSION_PATCH 0
/// @}
