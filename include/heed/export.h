#pragma once

/// Marks what the library exports; everything else stays hidden.
#define HEED_API __attribute__((visibility("default")))
