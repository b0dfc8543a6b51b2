#pragma once

/// Marks what the library exports; everything else stays hidden.
#define HEED_API __attribute__((visibility("default")))

/// Keeps a private function of an exported class hidden.
#define HEED_LOCAL __attribute__((visibility("hidden")))
