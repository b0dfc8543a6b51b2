// SPDX-License-Identifier: BSD-3-Clause
#pragma once

/// Marks a class or function that the library exports; all other symbols are hidden.
#define HEED_API __attribute__((visibility("default")))

/// Hides a private function of an exported class.
#define HEED_LOCAL __attribute__((visibility("hidden")))
